"""A broker core on a virtual clock, and clients that are joined to it without a network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar, cast

from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.fast_paths import door
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import ReceiveBuffer
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.loop_scheduler import LoopScheduler
from penstock.broker.receiving.connection import Connection
from penstock.broker.sending.throttle import THROTTLE_SECONDS
from penstock.broker.sessions.session import Session
from tests.helpers.frames import frames_of

Kind = TypeVar("Kind")


class VirtualLoop:
    """The part of an event loop that a driver uses: scheduled calls, which the test runs."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it in `run`."""
        self._soon.append(call)

    def call_later(self, delay: float, call: Callable[[], None]) -> VirtualLoop:
        """Leave it to `VirtualBroker.advance`, which knows the core's deadlines."""
        del delay, call
        return self

    def cancel(self) -> None:
        """Cancel a call that is never made."""

    def run(self) -> None:
        """Call what is to be called soon, until there is nothing."""
        while self._soon:
            self._soon.popleft()()


class RaisingLogger(logging.Logger):
    """A logger that raises: a driver must not go on after a fault in a test."""

    def exception(self, *args: object, **more: object) -> None:
        """Raise what is to be logged."""
        del args, more
        raise  # noqa: PLE0704 (called where it is handled)


class VirtualBroker:
    """A core, the broker's own driver, and a clock, all controlled by the test.

    Attributes:
        core: the core of the broker.
        driver: the driver that serves its connections.
        now: the present time, virtual monotonic seconds; moved by `advance`.
        waiting: the coroutines that the core has handed over because they have to wait.
    """

    def __init__(self, limits: Limits | None = None, **extensions: Any) -> None:
        self.now = 1000.0
        self.waiting: list[Coroutine[Any, Any, None]] = []
        names = (f"assigned-{number}" for number in itertools.count(1))
        limits = limits or Limits()
        self._loop = VirtualLoop()
        self.driver = LoopScheduler(
            limits,
            RaisingLogger("test"),
            loop=cast("asyncio.AbstractEventLoop", self._loop),
            clock=lambda: self.now,
        )
        core_class = extensions.pop("core_class", None) or door.core_class()
        self.core = self.driver.core = core_class(
            limits,
            logger=logging.getLogger("test"),
            wake=self.driver.wake,
            spawn=self.waiting.append,
            new_client_id=lambda: next(names),
            options=extensions.pop("options", MqttOptions()),
            **extensions,
        )

    def settle(self) -> None:
        """Serve every connection that wants it, as after each call into the core."""
        self.driver.settle(self.now)
        self._loop.run()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it when the loop runs, in `settle`."""
        self._loop.call_soon(call)

    def finish_waiting(self) -> None:
        """Run what the core has handed over because it has to wait, to its end."""
        waiting, self.waiting[:] = list(self.waiting), []
        for rest in waiting:
            with contextlib.suppress(StopIteration):
                while True:
                    rest.send(None)
        self.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each deadline on the way."""
        end = self.now + seconds
        while True:
            deadline = self.core.timers.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.driver.timer_due()
            self.settle()
        self.now = end

    def connect(
        self,
        client_id: str = "c",
        version: int = 5,
        *,
        is_forwarded: bool = False,
        share: str = "",
        **options: Any,
    ) -> VirtualClient:
        """Connect a client, without keep-alive unless asked for, and take its CONNACK.

        It may be one of those local clients that forward what another broker has routed.
        """
        options.setdefault("keep_alive", 0)
        client = VirtualClient(self, version)
        client.connection.client.is_local = client.connection.client.is_forwarded = is_forwarded
        client.connection.client.share = share
        client.send(Connect(client_id=client_id, protocol_version=version, **options))
        client.connack = client.take(ConnAck)
        return client

    def session(self, client_id: str) -> Session:
        """Return the session of a client that has one."""
        session = self.core.sessions.get(client_id)
        assert session is not None
        return session


class VirtualClient:
    """A client: packets in, packets out, with a transport whose room the test decides.

    Attributes:
        inbox: the packets that arrived and were not yet taken, oldest first.
        received: all bytes that ever arrived.
        unread: the bytes that the client has sent and the broker has not read.
        is_lost: whether the broker has closed the connection.
        unsent_bytes: the bytes that the transport reports as unsent.
        room_bytes: the bytes that it accepts before it has no room left; None for any number.
        is_reading: whether the broker reads from this client.
        unheard_since: the time since which no bytes have reached its socket, monotonic seconds;
            None if unknown.
        is_in_line: whether it waits for its turn.
        fileno: of no socket.
    """

    fileno = -1

    def __init__(self, broker: VirtualBroker, version: int = 5) -> None:
        self.broker = broker
        self.version = version
        self.connack: ConnAck
        self.inbox: list[Packet] = []
        self.received = bytearray()
        self.unread = bytearray()
        self.is_lost = False
        self.is_reading = True
        self.is_in_line = False
        self.unsent_bytes = 0
        self.room_bytes: int | None = None
        self.unheard_since: float | None = None
        self._buffer = ReceiveBuffer(268_435_460)
        self.connection = door.connection_class(broker.core)(broker.core, broker.now, served=self)

    @property
    def session(self) -> Session:
        """The client's session."""
        return self.connection.client.session

    def serve(self, now: float) -> None:
        """Do what a touched connection wants."""
        connection = self.connection
        if connection.outgoing.needs_look:
            connection.look(self, now)
        elif connection.outgoing.out and connection.outgoing.write_to(self.transport):
            self.broker.core.turn.write_soon(connection.outgoing)

    def take_turn(self, now: float) -> None:
        """Go on with what was put off."""
        turn = self.broker.core.turn
        turn.is_running = True
        if self.connection.wants_turn:
            self.connection.go_on(now)
        else:
            turn.touch(self.connection.outgoing)
        turn.is_running = False
        self.broker.settle()

    def is_late(self, now: float) -> bool:
        """Return False: nothing takes time."""
        del now
        return False

    def wait_for_turn(self) -> None:
        """Take a turn when those before it in the line have had theirs."""
        self.broker.driver.later(self)  # type: ignore[arg-type]

    def run_suspended(self, connection: Connection) -> None:
        """Leave it to the test."""

    def heard_at(self, now: float) -> float:
        """Return when unread bytes last came."""
        return now if self.unheard_since is None else self.unheard_since

    def has_hung_up(self) -> bool:
        """Say whether the client has gone."""
        return self.is_lost

    def see_to_reading(self, connection: Connection) -> None:
        """Read or not."""
        was_reading, self.is_reading = self.is_reading, connection.client.wants_reading
        if connection.wants_turn:
            self.wait_for_turn()
        if self.is_reading and not was_reading:
            self.broker.call_soon(self._read)

    def close(self, connection: Connection) -> None:
        """Be gone."""
        del connection
        self.is_lost = True

    @property
    def transport(self) -> Self:
        """The sending side of the transport, which hands on at once what the broker writes."""
        return self

    def get_write_buffer_size(self) -> int:
        """Return what the test says."""
        return self.unsent_bytes

    def writelines(self, data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Receive pieces."""
        self.write(b"".join(data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Receive bytes, and tell the broker where there is no room for more."""
        self.received += data
        if self.room_bytes is not None:
            self.room_bytes -= len(data)
            if self.room_bytes <= 0 and not self.connection.outgoing.is_paused:
                self.connection.pause_sending(self.broker.now)
        for first_byte, body in frames_of(self._buffer, self._buffer.receive_data(bytes(data))):
            self.inbox.append(read_packet(first_byte, body, self.version))

    def send(self, *packets: Packet) -> None:
        """Send packets in one chunk."""
        self.send_bytes(b"".join(write_packet(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, whatever they are; they wait in `unread` while the broker does not read."""
        self.unread += data
        self._read()

    def finish_sending(self) -> None:
        """Let time pass until the broker has read all, as it does when it has slowed it down."""
        while self.unread and not self.is_lost:
            self.broker.advance(THROTTLE_SECONDS)

    def _read(self) -> None:
        if self.is_reading and self.unread:
            data, self.unread = bytes(self.unread), bytearray()
            self.broker.core.turn.is_running = True
            self.connection.receive_data(data, self.broker.now)
            self.broker.core.turn.is_running = False
            self.broker.settle()

    def take(self, kind: type[Kind]) -> Kind:
        """Take the oldest packet of the inbox, which must be of this kind."""
        assert self.inbox, f"no packet; wanted {kind.__name__}"
        packet = self.inbox.pop(0)
        assert isinstance(packet, kind), f"{packet} instead of {kind.__name__}"
        return packet

    def take_all(self, kind: type[Kind]) -> list[Kind]:
        """Take all packets of one kind off the inbox."""
        taken: list[Kind] = [packet for packet in self.inbox if isinstance(packet, kind)]
        self.inbox = [packet for packet in self.inbox if not isinstance(packet, kind)]
        return taken

    def payloads(self) -> list[bytes]:
        """Take all PUBLISH packets off the inbox and return their payloads."""
        return [packet.payload for packet in self.take_all(Publish)]

    def subscribe(self, topic_filter: str, qos: int = 0, **options: Any) -> int:
        """Subscribe and return the reason code."""
        properties = options.pop("properties", {})
        request = SubscriptionRequest(topic_filter, qos, **options)
        self.send(Subscribe(1, (request,), properties))
        (suback,) = self.take_all(SubAck)
        return suback.reason_codes[0]

    def publish(self, topic: str, payload: bytes = b"", **options: Any) -> None:
        """Publish; a QoS 1 message gets its packet identifier from the options or 1."""
        if options.get("qos"):
            options.setdefault("packet_id", 1)
        self.send(Publish(topic, payload, **options))

    def acknowledge(self) -> list[bytes]:
        """Take all QoS 1 PUBLISH packets, answer each by PUBACK, and return their payloads."""
        packets = self.take_all(Publish)
        for packet in packets:
            if packet.qos == 1:
                self.send(PubAck(packet.packet_id))
        return [packet.payload for packet in packets]

    def stall(self) -> None:
        """Take no more, and have done so for so long that no publisher waits for this client."""
        self.connection.pause_sending(self.broker.now)
        self.connection.client.throttle.is_slow = True

    def lose(self) -> None:
        """Lose the network connection without a word."""
        self.is_lost = True
        self.connection.connection_lost(self.broker.now)
        self.broker.settle()


def will(topic: str = "will", payload: bytes = b"gone", **options: Any) -> Will:
    """Return a Will Message for a CONNECT."""
    return Will(topic, payload, **options)
