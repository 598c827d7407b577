"""Does an uplink keep its promises while both of its ends are killed?

Rerun: ``python -m tests.campaigns.uplink_kills``; a look in half a minute with ``--quick``; with
two lanes ``--lanes size`` or ``--lanes topic``.

A site's broker has an uplink to a cloud's broker: Penstock, or mosquitto. Clients publish on both
sides at QoS 1 and 2, and others receive on both sides; each of them keeps its packet identifiers
over lost connections, as [MQTT-4.4.0-1] asks. Meanwhile the brokers are killed (``kill -9``) at
random moments and started again on their files. Mosquitto does not write its state at each change,
so it is stopped instead, which writes it; the link is cut either way. Then what was received is
held against what was acknowledged.

With lanes, every third message is large, or there is a second topic for the large lane. Publishers
begin when messages of each lane have come down: nothing promises what is published before the site
has subscribed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from benchmarks.program import JsonFile, Program, Quick
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.writer import write_packet
from penstock.netem.runs.broker_process import (
    ANONYMOUS,
    RunningBroker,
    mosquitto_command,
    penstock_command,
    reserved_port,
)
from tests.campaigns.faults.case import Finding, report

Cloud: TypeAlias = Literal["penstock", "mosquitto"]
Side: TypeAlias = Literal["edge", "cloud"]
By: TypeAlias = Literal["size", "topic"]
"""The rule that divides the messages of an uplink between two lanes; None for one connection."""

CLOUDS: Final[Sequence[Cloud]] = ("penstock", "mosquitto")
SIDES: Final[Sequence[Side]] = ("edge", "cloud")
FULL_KILLS: Final = 100
QUICK_KILLS: Final = 4
LARGE_EVERY: Final = 10
LARGE_BYTES: Final = 20_000
"""The size of large messages: with lanes by size, one message in `LARGE_EVERY` is large."""
LONGEST_LIFE_SECONDS: Final = 1.5
"""The longest time between two kills, once clients are connected again."""

WINDOW: Final = 8
"""The number of messages of a publisher that are unacknowledged at a time."""
PAUSE_SECONDS: Final = 0.01
"""The time between two messages of a publisher."""
RETRY_SECONDS: Final = 0.05
START_SECONDS: Final = 300.0
"""The time that a broker has to listen, on a machine that is busy."""
LONGEST_SECONDS: Final = 120.0
"""The longest wait, at the end, for the next of the acknowledged messages, on a machine that is
busy."""
SITE_RECEIVE_MAXIMUM: Final = 1_000
"""The number of messages that the site takes at a time, which is its default."""
_NEVER: Final = {"session_expiry_interval": 0xFFFFFFFF}


class Client:
    """A client with a session, which it keeps over lost connections.

    Attributes:
        name: its Client Identifier.
        is_told_to_end: whether it has been told to end, so that it no longer connects.
    """

    def __init__(self, port: int, name: str) -> None:
        self.is_told_to_end = False
        self._port = port
        self.name = name
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Connect, and connect again, until it is told to end."""
        while not self.is_told_to_end:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._connect_once()
            self._writer = None
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect_once(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            connect = Connect(self.name, clean_start=False, keep_alive=0, properties=_NEVER)
            writer.write(write_packet(connect, 5))
            answer = await _read(reader)
            if not isinstance(answer, ConnAck) or answer.reason_code:
                return
            self._writer = writer
            self.connected(is_known=answer.session_present)
            while True:
                self.received(await _read(reader))
        finally:
            writer.close()

    def send(self, packet: Packet) -> None:
        """Send a packet, if there is a connection."""
        if self._writer is not None:
            self._writer.write(write_packet(packet, 5))

    def connected(self, *, is_known: bool) -> None:
        """Take note of a new connection, on which the broker has the session or not."""

    def received(self, packet: Packet) -> None:
        """Take a packet."""


async def _read(reader: asyncio.StreamReader) -> Packet:
    (first_byte,) = await reader.readexactly(1)
    n_bytes = shift = 0
    while True:
        (byte,) = await reader.readexactly(1)
        n_bytes |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return read_packet(first_byte, await reader.readexactly(n_bytes), 5)


class Publisher(Client):
    """A publisher of numbers to one topic, in order.

    Attributes:
        acknowledged: the numbers that the broker has acknowledged.
        n_sessions_lost: the number of times that the broker had lost the session.
    """

    def __init__(self, port: int, topic: str, qos: int, *, has_large: bool = False) -> None:
        """Make a publisher that has published nothing.

        Args:
            port: the port of the broker.
            topic: the topic of all messages.
            qos: the QoS of all messages.
            has_large: whether some messages are large.
        """
        super().__init__(port, f"publisher-{topic.replace('/', '-')}")
        self.topic = topic
        self.qos = qos
        self._has_large = has_large
        self.acknowledged: set[int] = set()
        self.n_sessions_lost = 0
        self._next = 0
        self._last_id = 0
        self._sent: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._was_connected = False

    async def publish(self) -> None:
        """Publish one number after another, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            if self._writer is None or len(self._sent) + len(self._released) >= WINDOW:
                continue
            self._last_id = self._last_id % 0xFFFF + 1
            self._sent[self._last_id] = self._next
            self._send(self._last_id, self._next)
            self._next += 1

    @property
    def is_done(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._sent and not self._released

    def _send(self, packet_id: int, number: int, *, dup: bool = False) -> None:
        payload = _payload(number, is_large=self._has_large and not number % LARGE_EVERY)
        self.send(Publish(self.topic, payload, self.qos, dup=dup, packet_id=packet_id))

    def connected(self, *, is_known: bool) -> None:
        """Repeat what is unacknowledged [MQTT-4.4.0-1]."""
        self.n_sessions_lost += self._was_connected and not is_known
        self._was_connected = True
        for packet_id in self._released:
            self.send(PubRel(packet_id))
        for packet_id, number in self._sent.items():
            self._send(packet_id, number, dup=True)

    def received(self, packet: Packet) -> None:
        """Take an acknowledgement."""
        if isinstance(packet, PubAck):
            number = self._sent.pop(packet.packet_id, None)
        elif isinstance(packet, PubRec):
            number = self._sent.pop(packet.packet_id, None)
            if number is not None and packet.reason_code < 0x80:
                self._released[packet.packet_id] = number
            if packet.packet_id in self._released:
                self.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubComp):
            self._released.pop(packet.packet_id, None)
            return
        else:
            return
        if number is not None and packet.reason_code < 0x80:
            self.acknowledged.add(number)


def _payload(number: int, *, is_large: bool) -> bytes:
    return (b"%d" % number).ljust(LARGE_BYTES if is_large else 0)


class Collector(Client):
    """A subscriber to all topics below one.

    Attributes:
        numbers: the numbers of each topic, in the order of arrival.
    """

    def __init__(self, port: int, name: str, topic_filter: str) -> None:
        super().__init__(port, name)
        self.numbers: dict[str, list[int]] = {}
        self.is_subscribed = asyncio.Event()
        self._filter = topic_filter
        self._unreleased: set[int] = set()

    def connected(self, *, is_known: bool) -> None:
        """Subscribe, where the broker has no session."""
        if is_known:
            self.is_subscribed.set()
            return
        self._unreleased.clear()
        self.send(Subscribe(1, (SubscriptionRequest(self._filter, 2),)))

    def received(self, packet: Packet) -> None:
        """Take a message, once [MQTT-4.3.3]."""
        if isinstance(packet, SubAck):
            self.is_subscribed.set()
        elif isinstance(packet, PubRel):
            self._unreleased.discard(packet.packet_id)
            self.send(PubComp(packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.packet_id not in self._unreleased:
                topic = packet.topic.removeprefix("site/")
                self.numbers.setdefault(topic, []).append(int(packet.payload.rstrip()))
            if packet.qos == 1:
                self.send(PubAck(packet.packet_id))
            elif packet.qos:
                self._unreleased.add(packet.packet_id)
                self.send(PubRec(packet.packet_id))


class Brokers:
    """The two brokers, which are killed and started again on the same files and ports."""

    def __init__(
        self, cloud: Cloud, folder: Path, edge_port: int, cloud_port: int, lanes: By | None = None
    ) -> None:
        self.cloud = cloud
        self.lanes = lanes
        self.ports: dict[Side, int] = {"edge": edge_port, "cloud": cloud_port}
        self.folders: dict[Side, Path] = {"edge": folder / "edge", "cloud": folder / "cloud"}
        for place in self.folders.values():
            place.mkdir()
        self._running: dict[Side, RunningBroker] = {}
        self._commands: dict[Side, list[str]] = {
            "edge": penstock_command(self.folders["edge"], self._edge()),
            "cloud": self._cloud(),
        }

    def _edge(self) -> dict[str, Any]:
        ends = ("+", "large/+") if self.lanes == "topic" else ("#",)
        uplink: dict[str, Any] = {
            "upstream": {"address": f"127.0.0.1:{self.ports['cloud']}"},
            "up": [{"filter": f"up/{end}", "remote_prefix": "site/"} for end in ends],
            "down": [
                {"filter": f"down/{end}", "remote_prefix": "site/", "when": "always"}
                for end in ends
            ],
            "reconnect": {"min_seconds": 0.05, "max_seconds": 0.2},
        }
        uplink["lanes"] = None
        if self.lanes is not None:
            large = {"large": ["up/large/+", "down/large/+"]} if self.lanes == "topic" else {}
            uplink["lanes"] = {"by": self.lanes, **large}
        plugin = {"uplink": {"site": "site", "uplinks": {"cloud": uplink}}}
        return _policy(self.ports["edge"], plugin)

    def _cloud(self) -> list[str]:
        folder, port = self.folders["cloud"], self.ports["cloud"]
        if self.cloud == "penstock":
            return penstock_command(folder, _policy(port, {}))
        state = folder / "state"
        state.mkdir()
        state.chmod(0o777)  # mosquitto gives up its rights
        lines = [
            f"listener {port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {state}/",
            "max_queued_messages 0",
            # A restart of mosquitto 2.0.11 forgets of all but so many messages that it had released
            # them, and publishes them again: 52 of 72 with the default of 20.
            f"max_inflight_messages {SITE_RECEIVE_MAXIMUM}",
        ]
        return mosquitto_command(folder, lines)

    def start(self, side: Side) -> None:
        """Start one of them, and wait until it listens.

        Raises:
            RunError: it does not.
        """
        running = RunningBroker(side, self._commands[side], self.folders[side])
        self._running[side] = running
        running.wait_until_listening(self.ports[side], START_SECONDS)

    def end(self, side: Side) -> None:
        """Kill one of them; mosquitto writes its state first."""
        running = self._running.pop(side, None)
        if running is None:
            return
        if side == "cloud" and self.cloud == "mosquitto":
            running.stop()
        else:
            running.kill()

    def log(self, side: Side) -> str:
        """Return what one of them has logged."""
        return (self.folders[side] / "broker.log").read_text(errors="replace")


def _policy(port: int, plugins: dict[str, Any]) -> dict[str, Any]:
    return {
        "listeners": {"default": {"bind": f"127.0.0.1:{port}"}},
        "persistence": {"path": "sessions.db", "durability": "normal"},
        "plugins": {ANONYMOUS: {"allow_anonymous": True}, **plugins},
    }


async def play(brokers: Brokers, n_kills: int, seed: int, life_seconds: float) -> list[Finding]:
    """Publish while brokers are killed; return the findings.

    Args:
        brokers: the brokers, none of which runs.
        n_kills: the number of kills of either broker.
        seed: the seed of moments and victims.
        life_seconds: the longest time between two kills.
    """
    rng = random.Random(seed)  # noqa: S311 (no secret)
    await asyncio.gather(*(asyncio.to_thread(brokers.start, side) for side in brokers.ports))
    edge, cloud = brokers.ports["edge"], brokers.ports["cloud"]
    far = Collector(cloud, "far", "site/up/#")
    near = Collector(edge, "near", "down/#")
    local = Collector(edge, "local", "up/#")
    collectors = (far, near, local)
    has_large = brokers.lanes == "size"
    parts = ("", "large/") if brokers.lanes == "topic" else ("",)
    ups, downs = (
        [
            Publisher(port, f"{way}/{part}{qos}", qos, has_large=has_large)
            for part in parts
            for qos in (1, 2)
        ]
        for port, way in ((edge, "up"), (cloud, "site/down"))
    )
    publishers = (*ups, *downs)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(collector.run()) for collector in collectors]
        for collector in collectors:
            await collector.is_subscribed.wait()
        await _until_subscribed(Client(cloud, "prober"), near, parts, has_large=has_large)
        running += [tasks.create_task(publisher.run()) for publisher in publishers]
        publishing = [tasks.create_task(publisher.publish()) for publisher in publishers]
        for _ in range(n_kills):
            await asyncio.sleep(rng.uniform(0.0, life_seconds))
            side = rng.choice(SIDES)
            await asyncio.to_thread(brokers.end, side)
            await asyncio.sleep(rng.uniform(0.0, life_seconds / 4))
            await asyncio.to_thread(brokers.start, side)
        for task in publishing:
            task.cancel()
        await _until_all_has_come(publishers, collectors)
        for task in running:
            task.cancel()
    return judge(ups, downs, far, near, local)


async def _until_subscribed(
    prober: Client, near: Collector, parts: Sequence[str], *, has_large: bool
) -> None:
    """Wait until messages of each lane arrive at the site, which shows that it has subscribed.

    Args:
        prober: the publisher in the cloud.
        near: the subscriber at the site.
        parts: the parts of topics, one for each lane by topic.
        has_large: whether there is a lane for large messages.
    """
    task = asyncio.create_task(prober.run())
    topics = [f"down/{part}probe" for part in parts]
    wanted = {0, 1} if has_large else {0}
    while not all(wanted <= set(near.numbers.get(topic, ())) for topic in topics):
        for topic, number in itertools.product(topics, wanted):
            payload = _payload(number, is_large=number > 0)
            prober.send(Publish(f"site/{topic}", payload))
        await asyncio.sleep(RETRY_SECONDS)
    task.cancel()


async def _until_all_has_come(
    publishers: Sequence[Publisher], collectors: Sequence[Collector]
) -> None:
    """Wait for what was acknowledged, as long as anything comes."""
    n_received, loop = -1, asyncio.get_running_loop()
    ends_at = loop.time()
    while not _has_all(publishers, collectors):
        n_now = sum(len(each) for one in collectors for each in one.numbers.values())
        if n_now != n_received:
            n_received, ends_at = n_now, loop.time() + LONGEST_SECONDS
        elif loop.time() >= ends_at:
            return
        await asyncio.sleep(RETRY_SECONDS)


def _has_all(publishers: Sequence[Publisher], collectors: Sequence[Collector]) -> bool:
    return all(publisher.is_done for publisher in publishers) and not any(
        _lost(publisher, collector)
        for publisher in publishers
        for collector in collectors
        if _receives(collector, publisher)
    )


def _receives(collector: Collector, publisher: Publisher) -> bool:
    is_up = publisher.topic.startswith("up/")
    return collector.name in (("far", "local") if is_up else ("near",))


def _numbers(publisher: Publisher, collector: Collector) -> list[int]:
    return collector.numbers.get(publisher.topic.removeprefix("site/"), [])


def _lost(publisher: Publisher, collector: Collector) -> int:
    return len(publisher.acknowledged.difference(_numbers(publisher, collector)))


def judge(
    ups: Sequence[Publisher],
    downs: Sequence[Publisher],
    far: Collector,
    near: Collector,
    local: Collector,
) -> list[Finding]:
    """Compare the received messages with the acknowledged ones.

    Args:
        ups: the publishers at the site.
        downs: the publishers in the cloud.
        far: the messages that the cloud has received.
        near: the messages from the cloud that the site has received.
        local: the messages between clients of the site.
    """
    findings = []
    ways = (("up", ups, far), ("down", downs, near), ("at the site", ups, local))
    for way, publishers, collector in ways:
        n_acknowledged = sum(len(publisher.acknowledged) for publisher in publishers)
        n_lost = sum(_lost(publisher, collector) for publisher in publishers)
        findings.append(Finding(f"{way}: acknowledged", n_acknowledged, least=1))
        findings.append(Finding(f"{way}: of these lost", n_lost, most=0))
        for publisher in publishers:
            numbers = _numbers(publisher, collector)
            n_twice = len(numbers) - len(set(numbers))
            firsts = list(dict.fromkeys(numbers))
            n_late = sum(b < a for a, b in itertools.pairwise(firsts))
            lane = " on the large lane" if "/large/" in publisher.topic else ""
            what = f"{way}, QoS {publisher.qos}{lane}"
            most = 0 if publisher.qos == 2 else None
            findings.append(Finding(f"{what}: received twice", n_twice, most=most))
            findings.append(Finding(f"{what}: out of order", n_late, most=0))
    n_forgotten = sum(publisher.n_sessions_lost for publisher in (*ups, *downs))
    findings.append(Finding("sessions that a broker has lost", n_forgotten, most=0))
    return findings


def run(
    cloud: Cloud, n_kills: int, seed: int, life_seconds: float, lanes: By | None = None
) -> list[Finding]:
    """Run one campaign in a folder of its own.

    Args:
        cloud: the kind of the cloud's broker.
        n_kills: the number of kills of either end.
        seed: the seed of moments and victims.
        life_seconds: the longest time between two kills.
        lanes: the rule that divides messages between two lanes; None for one connection.
    """
    with (
        tempfile.TemporaryDirectory(prefix="penstock-uplink-") as folder,
        reserved_port() as edge_port,
        reserved_port() as cloud_port,
    ):
        place = Path(folder)
        place.chmod(0o755)
        brokers = Brokers(cloud, place, edge_port, cloud_port, lanes)
        try:
            return asyncio.run(play(brokers, n_kills, seed, life_seconds))
        finally:
            for side in brokers.ports:
                brokers.end(side)


def kill(
    seed: Annotated[int, typer.Option(help="Of moments and victims.")] = 1,
    lanes: Annotated[By | None, typer.Option(help="Two lanes, divided by it.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="With each broker in the cloud.")] = FULL_KILLS,
    json_file: JsonFile = None,
    *,
    quick: Quick = False,
) -> None:
    """Kill a site's broker and the cloud's at random moments.

    Ends with status 1 where a promise is broken. All 200 kills take some five minutes.
    """
    n_kills = QUICK_KILLS if quick else kills
    found: dict[str, Sequence[Finding]] = {
        cloud: run(cloud, n_kills, seed, LONGEST_LIFE_SECONDS, lanes) for cloud in CLOUDS
    }
    report(found, json_file)


main: Final = Program(kill, "python -m tests.campaigns.uplink_kills")


if __name__ == "__main__":
    sys.exit(main())
