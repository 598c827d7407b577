"""A site whose disk fills during an outage, by what waits for its uplink or by other files."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import Publish, PubRec
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import serving, until
from tests.edge_proxy.uplink.test_uplink import deliver, edge_policy
from tests.helpers.process import SECONDS, BrokerProcess, Program, running_broker
from tests.helpers.wire import WireClient, connected

DISK_BYTES = 24 * 1024**2
"""With 16 MiB of reserve; a log of 8 MiB takes what is left, or the file does."""
PAYLOAD_BYTES = 100_000
MOST_MESSAGES = 400
N_LEFT = 30
"""So many of the messages that wait, or fewer, are left to the second start."""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Mount a small file system at ``disk`` of a folder.

    Yields:
        (where others find it; a command that runs a program which finds it at that place).
    """
    (folder / "disk").mkdir()
    script = f"mount -t tmpfs -o size={DISK_BYTES} none disk && echo ready >&2 && exec sleep $0"
    holder = Program(["unshare", "--mount", "sh", "-c", script, f"{10 * SECONDS}"], cwd=folder)
    try:
        holder.wait_for_log("ready")
        place = f"/proc/{holder.process.pid}"
        yield (
            Path(f"{place}/root{folder}/disk"),
            ("nsenter", f"--mount={place}/ns/mnt", f"--wd={folder}"),
        )
    finally:
        holder.kill()


def fill(path: Path) -> None:
    """Write a file until nothing is left of its disk."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


async def publish_until(broker: BrokerProcess, number: int, told: str = "") -> int:
    """Publish numbered messages that are to go up; all are acknowledged.

    Args:
        broker: of the site.
        number: of the first one.
        told: end when this stands in the broker's log.

    Returns:
        The number behind the last one that was published.
    """
    async with await connected(broker.port, "near") as near:
        for packet_id in range(1, MOST_MESSAGES):
            payload = (b"%d " % number).ljust(PAYLOAD_BYTES, b".")
            qos = 1 + number % 2
            await deliver(near, Publish("up/a", payload, qos=qos, packet_id=packet_id))
            number += 1
            if told in broker.log:
                return number
    raise AssertionError(f"{told!r} is not in the log:\n{broker.log}")


def restored(broker: BrokerProcess) -> int:
    """Return how many messages a site's broker found in its database."""
    found = re.search(r"(\d+) messages for them", broker.log)
    assert found is not None
    return int(found[1])


async def take_until(far: WireClient, last: int) -> list[int]:
    """Take numbered messages until one has this number or a higher one."""
    got: list[int] = []
    while not got or got[-1] < last:
        got.append(int((await far.take(Publish)).payload.split()[0]))
    return got


async def is_taken(near: WireClient, payload: bytes) -> bool:
    """Publish a message that is to go up at QoS 2; say whether it was not refused."""
    await near.send(Publish("up/a", payload, qos=2, packet_id=1))
    return (await near.take(PubRec)).reason_code < 0x80


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
async def test_what_waits_for_an_uplink_leaves_a_full_disk(tmp_path: Path) -> None:
    """In order, at QoS 2 once, through kills; its place in the file takes what comes later."""
    persistence = {"path": f"{tmp_path}/disk/site.db", "durability": "normal"}
    first = 0
    with reserved_port() as port, small_disk(tmp_path) as (disk, wrapper):
        cloud_keys = {
            "listeners": {"default": {"bind": f"127.0.0.1:{port}"}},
            "persistence": {"path": str(tmp_path / "cloud.db"), "durability": "normal"},
        }
        for when_full in ("drop_newest", "drop_oldest"):
            policy = edge_policy(
                port, policy={"persistence": persistence}, backlog={"when_full": when_full}
            )
            with running_broker(policy, tmp_path, wrapper) as broker:
                behind = await publish_until(broker, first, "has no room for messages")
                if when_full == "drop_oldest":
                    behind = await publish_until(broker, behind, "room for messages again")
                    behind = await publish_until(broker, behind)
                broker.kill()
            assert "for it dropped: not_stored" in broker.log
            if when_full == "drop_newest":
                fill(disk / "others")
            async with serving(**cloud_keys), await connected(port, "far") as far:
                await far.subscribe("up/#")
                with running_broker(policy, tmp_path, wrapper) as broker:
                    end = behind
                    if when_full == "drop_newest":  # none behind those that are stored
                        end = restored(broker)
                        assert end > N_LEFT + 20
                    got = await take_until(far, end - N_LEFT)
                    broker.kill()
                with running_broker(policy, tmp_path, wrapper) as broker:
                    async with await connected(broker.port, "near") as near:
                        while not await is_taken(near, b"%d" % behind):
                            await until(lambda: "room for messages again" in broker.log)
                    got += await take_until(far, behind)
            assert got.pop() == behind
            once = [number for number in got if number % 2]
            at_least_once = dict.fromkeys(n for n in got if not n % 2 and n >= first)
            if when_full == "drop_newest":
                assert sorted((*once, *at_least_once)) == list(range(first, max(got) + 1))
            else:
                assert min(*once, *at_least_once) > first
                assert max(got) == behind - 1
            assert once == sorted(once)
            assert list(at_least_once) == sorted(at_least_once)
            first = behind + 1
