from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.process import (
    SECONDS,
    BrokerProcess,
    Program,
    anonymous_policy,
    resident_bytes,
    running_broker,
)
from tests.helpers.stalled import stalled_subscriber
from tests.helpers.wire import WireClient, connected

N_SUBSCRIBERS = 10
MANY = 20
N_MESSAGES = 24
PAYLOAD_BYTES = 1_000_000
MEMORY_LIMIT = 8_000_000
STEADY_LOOKS = 20
KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


@functools.cache
def payload_of(number: int) -> bytes:
    """Return a payload that tells which it is, in each of its parts."""
    return random.Random(number).randbytes(PAYLOAD_BYTES)  # noqa: S311 (payloads, not secrets)


def spilling(directory: Path, **keys: Any) -> dict[str, Any]:
    """Return a policy whose payloads go to files beyond `MEMORY_LIMIT`."""
    keys = {"store": "spill", "memory_limit": MEMORY_LIMIT, "directory": str(directory), **keys}
    return anonymous_policy({"memory": keys})


def most_resident_bytes(broker: BrokerProcess) -> int:
    """Return the most that the broker's process has had so far (proc(5), VmHWM)."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the broker does in its own time."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 (memory has no event to offer)
            await asyncio.sleep(0.05)


async def steady_bytes(broker: BrokerProcess) -> int:
    """Return its memory once that has not changed for a second: what is spare has gone by then."""
    looks: list[int] = []

    def is_steady() -> bool:
        looks.append(resident_bytes(broker))
        return len(looks) >= STEADY_LOOKS and len(set(looks[-STEADY_LOOKS:])) == 1

    await until(is_steady)
    return looks[-1]


def has_files(broker: BrokerProcess, folder: Path) -> bool:
    """Say whether the broker has files without a name in a directory."""
    for link in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if str(link.readlink()).startswith(f"{folder}/"):
                return True
    return False


async def publish_until_refused(client: WireClient, first: int) -> int:
    """Publish, starting with a number; return the number of the one that was refused."""
    for number in range(first, first + 100):
        answer = await client.publish("large/1", payload_of(number))
        if answer.reason_code >= 0x80:
            assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
            return number
    raise AssertionError("nothing was refused")


async def away(port: int) -> None:
    """Subscribe for a session that is kept, and leave."""
    async with await connected(port, "away", **KEPT) as client:
        assert await client.subscribe("large/#", 1) == 1


async def read_messages(client: WireClient, numbers: range) -> None:
    """Read and acknowledge messages, each of which must be the one that is due."""
    for number in numbers:
        packet = await client.take(Publish)
        assert packet.payload == payload_of(number)
        await client.send(PubAck(packet.packet_id))


@pytest.mark.memory
async def test_memory_stays_within_its_limit_and_everything_arrives(tmp_path: Path) -> None:
    """Stalled subscribers that stand at different messages cost no more than `memory_limit`."""
    folder = tmp_path / "spill"
    folder.mkdir()
    with running_broker(spilling(folder), tmp_path, is_forked=False) as broker:
        async with contextlib.AsyncExitStack() as clients:
            stalled = [
                await clients.enter_async_context(await stalled_subscriber(broker.port, number))
                for number in range(N_SUBSCRIBERS)
            ]
            publisher = await clients.enter_async_context(await connected(broker.port))
            before = resident_bytes(broker)
            for number in range(N_MESSAGES):
                answer = await publisher.publish("large/1", payload_of(number))
                assert answer.reason_code < 0x80
            # Each reads on to a message of its own, and stalls again.
            for behind, client in enumerate(stalled):
                await read_messages(client, range(behind))
            most = MEMORY_LIMIT + (N_SUBSCRIBERS + 5) * PAYLOAD_BYTES // 2
            assert resident_bytes(broker) - before <= most
            async with asyncio.TaskGroup() as tasks:
                for behind, client in enumerate(stalled):
                    tasks.create_task(read_messages(client, range(behind, N_MESSAGES)))
        assert not list(folder.iterdir())
        assert broker.stop() == 0
        assert "ERROR" not in broker.log


@pytest.mark.memory
@pytest.mark.parametrize(
    ("keys", "n_messages", "least", "most"),
    [
        pytest.param({"store": "reference"}, 20, 0.9, 1.5, id="reference"),
        pytest.param({"store": "spill", "memory_limit": MEMORY_LIMIT}, 20, 0.3, 0.8, id="spill"),
        pytest.param({"store": "copy"}, 5, 0.9 * MANY, 1.5 * MANY, id="copy"),
    ],
)
async def test_memory_is_back_at_its_start_after_the_backlog(
    keys: dict[str, Any], n_messages: int, least: float, most: float, tmp_path: Path
) -> None:
    """Within 10 %, with the same clients connected, whatever the store; it was much more before."""
    with running_broker(anonymous_policy({"memory": keys}), tmp_path, is_forked=False) as broker:
        async with contextlib.AsyncExitStack() as clients:
            stalled = [
                await clients.enter_async_context(await stalled_subscriber(broker.port, number, 0))
                for number in range(MANY)
            ]
            publisher = await clients.enter_async_context(await connected(broker.port))
            assert (await publisher.publish("large/1", payload_of(0))).reason_code < 0x80
            for client in stalled:
                await read_messages(client, range(1))
            start = await steady_bytes(broker)
            for number in range(n_messages):
                answer = await publisher.publish("large/1", payload_of(number))
                assert answer.reason_code < 0x80
            grown = (resident_bytes(broker) - start) / (n_messages * PAYLOAD_BYTES)
            assert least <= grown <= most
            async with asyncio.TaskGroup() as tasks:
                for client in stalled:
                    tasks.create_task(read_messages(client, range(n_messages)))
            await until(lambda: resident_bytes(broker) <= 1.1 * start)
        assert broker.stop() == 0


async def test_nothing_is_left_in_the_directory_after_kill_9(tmp_path: Path) -> None:
    """A broker that was killed with payloads in files starts again beside nothing of them."""
    folder = tmp_path / "spill"
    folder.mkdir()
    with running_broker(spilling(folder, memory_limit=0), tmp_path) as broker:
        await away(broker.port)
        async with await connected(broker.port) as publisher:
            for number in range(3):
                assert (await publisher.publish("large/1", payload_of(number))).reason_code < 0x80
        assert has_files(broker, folder)
        broker.kill()
    assert not list(folder.iterdir())
    with running_broker(spilling(folder, memory_limit=0), tmp_path) as broker:
        assert broker.stop() == 0


async def test_a_directory_that_vanishes_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged is delivered; further messages are refused until it is back."""
    folder = tmp_path / "spill"
    folder.mkdir()
    with running_broker(spilling(folder, memory_limit=0), tmp_path) as broker:
        await away(broker.port)
        async with await connected(broker.port) as publisher:
            assert (await publisher.publish("large/1", payload_of(0))).reason_code < 0x80
            shutil.rmtree(folder)
            assert await publish_until_refused(publisher, 1) == 1
            folder.mkdir()
            assert (await publisher.publish("large/1", payload_of(1))).reason_code < 0x80
        async with await connected(broker.port, "away", **KEPT) as client:
            await read_messages(client, range(2))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
async def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """On a disk of 5 MB: what was acknowledged is delivered, and then there is room again."""
    folder = tmp_path / "spill"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=5m tmpfs "{folder}" && exec "$@"'
    wrapper = ("unshare", "--mount", "sh", "-c", mount, "sh")
    with running_broker(spilling(folder), tmp_path, wrapper) as broker:
        await away(broker.port)
        async with await connected(broker.port) as publisher:
            refused = await publish_until_refused(publisher, 0)
            assert await publish_until_refused(publisher, refused) == refused
            async with await connected(broker.port, "away", **KEPT) as client:
                await read_messages(client, range(refused))
                # As many again: no block of the disk is lost.
                again = await publish_until_refused(publisher, refused)
                assert again >= 2 * refused - 1
                await read_messages(client, range(refused, again))
        assert refused * PAYLOAD_BYTES >= MEMORY_LIMIT + 1_000_000  # some in memory, some there
        assert "No space left on device" in broker.log
        assert broker.log.count("SpillStore failed") < 10


@pytest.mark.memory
async def test_persistence_and_spill_go_together(tmp_path: Path) -> None:
    """Stored messages come back after kill -9, one by one to files where memory has no room."""
    policy = spilling(tmp_path) | {"persistence": {"path": str(tmp_path / "sessions.db")}}
    with running_broker(policy, tmp_path, is_forked=False) as broker:
        empty = most_resident_bytes(broker)
        await away(broker.port)
        async with await connected(broker.port) as publisher:
            for number in range(N_MESSAGES):
                assert (await publisher.publish("large/1", payload_of(number))).reason_code < 0x80
        broker.kill()
    with running_broker(policy, tmp_path, is_forked=False) as broker:
        assert most_resident_bytes(broker) - empty <= MEMORY_LIMIT + 4 * PAYLOAD_BYTES
        assert "those that wait longest go to files" in broker.log
        async with await connected(broker.port, "away", **KEPT) as client:
            await read_messages(client, range(N_MESSAGES))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("ending", ["kill", "stop"])
async def test_a_restart_on_a_full_disk_serves_what_was_stored(ending: str, tmp_path: Path) -> None:
    """Its payloads are sent from the database, where neither memory nor disk has room for them."""
    folder = tmp_path / "disk"
    folder.mkdir()
    ready = folder / "ready"
    # Lives until the test ends: both brokers must see the disk.
    hold = f'mount -t tmpfs -o size=100m tmpfs "{folder}" && touch "{ready}" && exec sleep 600'
    holder = Program(["unshare", "--mount", "sh", "-c", hold])
    try:
        disk = Path(f"/proc/{holder.process.pid}/root{folder}")
        await until((disk / "ready").exists)
        wrapper = ("nsenter", f"--mount=/proc/{holder.process.pid}/ns/mnt", f"--wd={tmp_path}")
        policy = spilling(folder, memory_limit=1_000_000)
        policy["persistence"] = {"path": str(folder / "sessions.db")}
        # More than the reserve of the database, which a start on a full disk may have to give up.
        n_messages = 20
        with running_broker(policy, tmp_path, wrapper) as broker:
            await away(broker.port)
            async with await connected(broker.port) as publisher:
                for number in range(n_messages):
                    answer = await publisher.publish("large/1", payload_of(number))
                    assert answer.reason_code < 0x80
            getattr(broker, ending)()
        fill_disk(disk / "filler")
        with running_broker(policy, tmp_path, wrapper) as broker:
            assert re.search(r"no room for \d+ payloads outside", broker.log)
            async with await connected(broker.port, "away", **KEPT) as client:
                await read_messages(client, range(n_messages))
    finally:
        holder.kill()


def fill_disk(path: Path) -> None:
    """Leave not a byte of a disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
