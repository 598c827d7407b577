from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish, PubRec
from penstock.plugins.queue.client import NotStoredError, QueueClient, UnavailableError
from tests.helpers.gateway import stored_payloads
from tests.helpers.process import (
    SECONDS,
    BrokerProcess,
    Program,
    anonymous_policy,
    limit_files,
    running_broker,
)
from tests.helpers.wire import connected

QUEUE = "load"
N_PHYSICAL_QUEUES = 2


def queue_policy(port: int = 0) -> dict[str, Any]:
    """Return a policy that stores what is published below `load/`."""
    layout = {
        "topics": ["load/#"],
        "groups": {"reader": {"kind": "offsets"}},
        "physical_queues": N_PHYSICAL_QUEUES,
    }
    section = {"path": "queue.db", "http": "127.0.0.1:0", "queues": {QUEUE: layout}}
    policy = anonymous_policy({"queue": section}, sys_interval=0.1)
    policy["listeners"]["default"]["bind"] = f"127.0.0.1:{port}"
    return policy


# -- a queue that cannot write ----------------------------------------------------------------

PAYLOAD_BYTES = 20_000


def numbered(number: int) -> bytes:
    """Return a payload that says which it is."""
    return b"%d " % number + bytes(PAYLOAD_BYTES)


def stored_numbers(broker: BrokerProcess) -> list[int]:
    """Return which of the numbered payloads are in the queue, in ascending order."""
    return sorted(int(payload.split()[0]) for payload in stored_payloads(broker.queue_url, QUEUE))


async def test_full_disk_refuses_mqtt_5_publishers(tmp_path: Path) -> None:
    """PUBACK and PUBREC carry a reason code >= 0x80; the client stays and succeeds later."""
    acknowledged: list[int] = []
    n_refused = 0
    with running_broker(queue_policy(), tmp_path) as broker:
        async with await connected(broker.port) as client:
            for number in range(40):
                if number == 10:
                    limit_files(broker, 300_000)
                if (await client.publish("load/5", numbered(number))).reason_code < 0x80:
                    acknowledged.append(number)
                else:
                    n_refused += 1
            assert acknowledged[:10] == list(range(10))
            assert n_refused > 10
            broker.wait_for_log("queue storage refuses to write: ")
            await client.send(Publish("load/5", numbered(40), qos=2, packet_id=9))
            assert (await client.take(PubRec)).reason_code >= 0x80
            # What no queue is bound to goes on, and what is stored can be read.
            assert (await client.publish("elsewhere", b"data")).reason_code < 0x80
            assert await asyncio.to_thread(stored_numbers, broker) == acknowledged
            limit_files(broker)
            assert (await client.publish("load/5", numbered(41))).reason_code < 0x80
            acknowledged.append(41)
            broker.wait_for_log("queue storage writes again; ")
            await check_sink_ledger(broker, n_refused + 1)
        broker.kill()
        assert "Traceback" not in broker.log
    with running_broker(queue_policy(), tmp_path) as broker:
        assert await asyncio.to_thread(stored_numbers, broker) == acknowledged


async def check_sink_ledger(broker: BrokerProcess, n_refused: int) -> None:
    """Wait until $SYS accounts for each message that the queue was to get."""
    async with await connected(broker.port) as watcher:
        root = "$SYS/broker/penstock/ledger/sinks/queue.load/"
        await watcher.subscribe(root + "#")
        figures: dict[str, int] = {}
        n_dropped = 0
        while (
            n_dropped != n_refused
            or figures.get("matched") != figures.get("stored", 0) + n_dropped
            or figures.get("queued", 0)
        ):
            packet = await watcher.take(Publish)
            figures[packet.topic.removeprefix(root)] = int(packet.payload)
            n_dropped = sum(n for name, n in figures.items() if name.startswith("dropped/"))


async def test_full_disk_closes_mqtt_3_1_1_publishers(tmp_path: Path) -> None:
    """No PUBACK can refuse: the connection ends without one, and the client comes again."""
    with running_broker(queue_policy(), tmp_path) as broker:
        limit_files(broker, 300_000)
        async with await connected(broker.port, version=4) as client:
            packets = [
                Publish("load/4", numbered(number), qos=1, packet_id=number)
                for number in range(1, 31)
            ]
            await client.send(*packets)
            rest = await client.rest()
            acknowledged = [packet.packet_id for packet in rest if isinstance(packet, PubAck)]
        assert acknowledged == list(range(1, len(acknowledged) + 1))
        assert len(acknowledged) < 30
        limit_files(broker)
        async with await connected(broker.port, version=4) as client:
            for packet in packets[len(acknowledged) :]:
                await client.send(replace(packet, dup=True))
                assert (await client.take(PubAck)).packet_id == packet.packet_id
        assert set(await asyncio.to_thread(stored_numbers, broker)) == set(range(1, 31))


NEEDS_MOUNTS = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists() or not shutil.which("mkfs.ext4"),
    reason="only root may mount a file system, from a file",
)


class Disk:
    """A file system of its own, which only programs of `wrapper` see.

    Attributes:
        wrapper: puts a program where the file system is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._image, self._mount = folder / "image", folder / "disk"
        self._mount.mkdir()
        subprocess.run(["truncate", "-s", "100M", self._image], check=True)
        subprocess.run(["mkfs.ext4", "-q", self._image], check=True)
        script = 'mount --make-rprivate / && echo ready >&2 && exec sleep "$1"'
        self._holder = Program(["unshare", "--mount", "sh", "-c", script, "sh", f"{10 * SECONDS}"])
        self._holder.wait_for_log("ready")
        namespace = f"--mount=/proc/{self._holder.process.pid}/ns/mnt"
        self.wrapper = ("nsenter", namespace, f"--wd={folder}")

    def mount(self, options: str) -> None:
        """Mount it, or change how it is mounted."""
        place = [str(self._mount)] if "remount" in options else [str(self._image), str(self._mount)]
        subprocess.run([*self.wrapper, "mount", "-o", options, *place], check=True)

    def unmount(self) -> None:
        """Unmount it; no program may use it."""
        subprocess.run([*self.wrapper, "umount", str(self._mount)], check=True)

    def close(self) -> None:
        """Leave nothing behind."""
        self._holder.kill()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a file system that is not mounted yet."""
    made = Disk(tmp_path)
    yield made
    made.close()


def policy_on_disk(folder: Path) -> dict[str, Any]:
    """Return a policy whose queue is on the file system of `Disk`.

    By its whole path: a working directory is one of the namespace before.
    """
    policy = queue_policy()
    policy["plugins"]["queue"]["path"] = str(folder / "disk" / "queue.db")
    return policy


@NEEDS_MOUNTS
async def test_a_file_system_that_becomes_read_only_refuses_and_loses_nothing(
    tmp_path: Path, disk: Disk
) -> None:
    """As the kernel makes it after an error: each protocol says so, and a restart has it all."""
    disk.mount("loop")
    with running_broker(policy_on_disk(tmp_path), tmp_path, disk.wrapper) as broker:
        async with await connected(broker.port) as client:
            for number in range(3):
                assert (await client.publish("load/5", numbered(number))).reason_code < 0x80
            disk.mount("remount,abort")
            assert (await client.publish("load/5", numbered(3))).reason_code >= 0x80
            # What no queue is bound to goes on.
            assert (await client.publish("elsewhere", b"data")).reason_code < 0x80
        broker.wait_for_log("queue storage refuses to write: ")
        async with await connected(broker.port, version=4) as client:
            await client.send(Publish("load/4", numbered(4), qos=1, packet_id=1))
            assert await client.rest() == []
        back_end = QueueClient(broker.queue_url)
        with pytest.raises((UnavailableError, NotStoredError)) as refused:
            await asyncio.to_thread(back_end.enqueue, QUEUE, [("load/h", numbered(5))])
        assert refused.value.status in {503, 507}
        back_end.close()
        assert "Traceback" not in broker.log
        broker.kill()
    disk.unmount()
    disk.mount("loop")
    with running_broker(policy_on_disk(tmp_path), tmp_path, disk.wrapper) as broker:
        assert await asyncio.to_thread(stored_numbers, broker) == [0, 1, 2]
        async with await connected(broker.port) as client:
            assert (await client.publish("load/5", numbered(6))).reason_code < 0x80


@NEEDS_MOUNTS
def test_a_file_system_that_is_read_only_at_the_start_ends_it_with_status_2(
    tmp_path: Path, disk: Disk
) -> None:
    """The file is named and what is wrong; when it is writable, the broker starts."""
    disk.mount("loop,ro")
    broker = BrokerProcess(policy_on_disk(tmp_path), tmp_path, disk.wrapper)
    assert broker.wait() == 2
    last = broker.log.splitlines()[-1]
    assert last.startswith("penstock broker: queue database ")
    assert "disk/queue.db.lock cannot be written: Read-only file system; allowed: " in last
    disk.unmount()
    disk.mount("loop")
    with running_broker(policy_on_disk(tmp_path), tmp_path, disk.wrapper):
        pass
