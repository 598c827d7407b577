"""Clients that go to the next broker whenever they lose theirs, all on one event loop.

A `Member` has a session and a topic of its own; a `Sender` publishes numbers to the topics of a
fleet at QoS 1, each again until it is acknowledged. So it can be told how long each client was
away, and what was acknowledged and has not come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire

RETRY_SECONDS: Final = 0.05
"""From a refused connection to the next attempt."""
LOOK_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 120.0
AT_A_TIME: Final = 100
"""Clients of a fleet that connect for the first time together."""
TURN_SECONDS: Final = 0.01


class Wanderer(asyncio.Protocol):
    """A client of MQTT 3.1.1 that connects again until it is closed.

    Args:
        name: its Client Identifier.
        ports: of the brokers.
        at: the first of them that it goes to.
        is_clean: whether its session ends with its connection.

    Attributes:
        is_in: whether it is connected.
        away: for how many seconds it was not, each time.
    """

    def __init__(
        self, name: str, ports: Sequence[int], at: int = 0, *, is_clean: bool = False
    ) -> None:
        self.name = name
        self.is_in = False
        self.away: list[float] = []
        self._ports = ports
        self._at = at
        self._is_clean = is_clean
        self._is_closed = False
        self._left_at: float | None = None
        self._rest = b""
        self._dialling: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def dial(self) -> None:
        """Connect, now and whenever the connection is lost."""
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            port = self._ports[self._at % len(self._ports)]
            try:
                await loop.create_connection(lambda: self, "127.0.0.1", port)
            except OSError:
                self._at += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send a CONNECT."""
        self.transport = cast("asyncio.Transport", transport)
        self._rest = b""
        self.transport.write(wire.connect_packet(self.name, is_clean=self._is_clean))

    def connection_lost(self, _: Exception | None) -> None:
        """Go to the next broker."""
        was_in, self.is_in, self.transport = self.is_in, False, None
        self._at += 1
        if self._is_closed:
            return
        if was_in:
            self._left_at = time.monotonic()
            self.dial()
        else:  # it was refused
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.dial)

    def data_received(self, data: bytes) -> None:
        """Take packets."""
        packets, self._rest = wire.whole_packets(self._rest + data)
        for packet in packets:
            if packet[0] != wire.CONNACK:
                self.take(packet)
            elif not packet[3]:
                self.is_in = True
                if self._left_at is not None:
                    self.away.append(time.monotonic() - self._left_at)
                self.accepted(is_new=not packet[2] & 1)

    def write(self, data: bytes) -> None:
        """Send packets, if it is connected."""
        if self.transport is not None:
            self.transport.write(data)

    def accepted(self, *, is_new: bool) -> None:
        """Go on where it is connected again; whether its session is a new one."""

    def take(self, packet: bytes) -> None:
        """Take a packet other than a CONNACK."""

    def cut(self) -> None:
        """Lose the connection."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """End for good."""
        self._is_closed = True
        self.cut()


class Member(Wanderer):
    """Subscribes to a topic.

    Attributes:
        topic: its topic.
        is_subscribed: whether it gets what is published there.
        n_new: how often its session was a new one.
        came: numbers that have come, with the monotonic second of their arrival.
    """

    def __init__(
        self, name: str, ports: Sequence[int], at: int = 0, *, is_clean: bool = False
    ) -> None:
        super().__init__(name, ports, at, is_clean=is_clean)
        self.topic = f"fleet/{name}"
        self.is_subscribed = False
        self.n_new = 0
        self.came: dict[int, float] = {}

    def accepted(self, *, is_new: bool) -> None:
        """Subscribe where the session is a new one."""
        if is_new:
            self.n_new += 1
            self.is_subscribed = False
            self.write(wire.subscribe_packet(1, self.topic, 1))

    def take(self, packet: bytes) -> None:
        """Note a message and acknowledge it."""
        if packet[0] == wire.SUBACK:
            self.is_subscribed = True
        elif packet[0] & 0xF0 == wire.PUBLISH:
            at = wire.read_publish(packet).packet_id_at
            self.came.setdefault(int(packet[at + 2 :]), time.monotonic())
            self.write(wire.PUBACK.to_bytes(1) + b"\x02" + packet[at : at + 2])


class Sender(Wanderer):
    """Publishes numbers to the members of a fleet in turn, at a rate, and no more than a window.

    Args:
        name: its Client Identifier.
        ports: of the brokers.
        members: whose topics it publishes to.
        per_second: messages.
        window: of unacknowledged messages.

    Attributes:
        acknowledged: numbers, with the monotonic second at which they were acknowledged.
        n_sent: how many were begun.
    """

    def __init__(
        self,
        name: str,
        ports: Sequence[int],
        members: Sequence[Member],
        per_second: float,
        window: int = 100,
    ) -> None:
        super().__init__(name, ports, is_clean=True)
        self.acknowledged: dict[int, float] = {}
        self.n_sent = 0
        self._members = members
        self._per_second = per_second
        self._window = window
        self._unacknowledged: dict[int, int] = {}
        self._is_ending = False

    async def run(self) -> None:
        """Publish until `end`, and until all is acknowledged."""
        self.dial()
        began_at = time.monotonic()
        while not self._is_ending or self._unacknowledged:
            await asyncio.sleep(TURN_SECONDS)
            due = (time.monotonic() - began_at) * self._per_second
            while (
                self.is_in
                and not self._is_ending
                and self.n_sent < due
                and len(self._unacknowledged) < self._window
            ):
                packet_id = self.n_sent % 0xFFFF + 1
                self._unacknowledged[packet_id] = self.n_sent
                self._publish(packet_id, self.n_sent)
                self.n_sent += 1
        self.close()

    def _publish(self, packet_id: int, number: int) -> None:
        topic = self._members[number % len(self._members)].topic
        self.write(wire.publish_packet(topic, b"%d" % number, packet_id))

    def accepted(self, *, is_new: bool) -> None:  # noqa: ARG002 (it always is)
        """Publish anew what no broker has acknowledged."""
        for packet_id, number in self._unacknowledged.items():
            self._publish(packet_id, number)

    def take(self, packet: bytes) -> None:
        """Take an acknowledgement."""
        if packet[0] == wire.PUBACK:
            number = self._unacknowledged.pop(int.from_bytes(packet[2:4], "big"), None)
            if number is not None:
                self.acknowledged[number] = time.monotonic()

    def end(self) -> None:
        """Begin no more."""
        self._is_ending = True

    def lost(self) -> int:
        """Return how many messages were acknowledged and have not come."""
        members = self._members
        return sum(
            number not in members[number % len(members)].came for number in self.acknowledged
        )

    async def until_all_came(self) -> None:
        """Wait until nothing is lost; what is not here after a time is."""
        with suppress(BenchmarkError):
            await until(lambda: not self.lost(), "what was acknowledged")


def fleet(ports: Sequence[int], n: int) -> list[Member]:
    """Return so many clients with sessions, spread over the brokers."""
    return [Member(f"member-{number}", ports, number) for number in range(n)]


async def until(is_true: Callable[[], object], what: str) -> None:
    """Wait for something.

    Raises:
        BenchmarkError: it has not come in time.
    """
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > give_up_at:
            raise BenchmarkError(f"after {PATIENCE_SECONDS:g} s: {what} has not come")
        await asyncio.sleep(LOOK_SECONDS)


async def enter(members: Sequence[Member]) -> None:
    """Connect clients for the first time, and have them subscribe.

    Raises:
        BenchmarkError: they cannot.
    """
    for at in range(0, len(members), AT_A_TIME):
        some = members[at : at + AT_A_TIME]
        for member in some:
            member.dial()
        await until(lambda some=some: all(one.is_subscribed for one in some), "SUBACK")  # type: ignore[misc]


async def until_in(members: Sequence[Member]) -> None:
    """Wait until all are connected.

    Raises:
        BenchmarkError: they are not, in time.
    """
    await until(lambda: all(one.is_in for one in members), "each client")


async def until_back(members: Sequence[Member]) -> int:
    """Wait until all have lost their connections and are back; return how many lost sessions.

    Raises:
        BenchmarkError: they are not, in time.
    """
    await until(lambda: all(one.away and one.is_in for one in members), "each client")
    return sum(member.n_new - 1 for member in members)
