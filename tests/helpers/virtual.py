"""A broker core on a virtual clock, and clients that are joined to it without a network."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
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
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.core import Core
from penstock.broker.sessions.session import Session
from tests.helpers.frames import frames_of

Kind = TypeVar("Kind")


class VirtualBroker:
    """A core, its driver and its clock, all in the test's hands.

    Attributes:
        core: the broker.
        now: virtual monotonic seconds; move it by `advance`.
        waiting: coroutines that the core has handed over because they have to wait.
    """

    def __init__(self, limits: Limits | None = None, **extensions: Any) -> None:
        self.now = 1000.0
        self.waiting: list[Coroutine[Any, Any, None]] = []
        names = (f"assigned-{number}" for number in itertools.count(1))
        self.core = Core(
            limits or Limits(),
            logger=logging.getLogger("test"),
            wake=lambda: None,
            spawn=self.waiting.append,
            new_client_id=lambda: next(names),
            options=extensions.pop("options", MqttOptions()),
            **extensions,
        )

    def settle(self) -> None:
        """Serve every connection that wants it, as the driver does after each call."""
        while touched := self.core.turn.take_touched():
            for connection in touched:
                connection.driver.serve()

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
            self.core.timers.run(self.now)
            self.settle()
        self.now = end

    def connect(self, client_id: str = "c", version: int = 5, **options: Any) -> VirtualClient:
        """Connect a client, without keep-alive unless asked for, and take its CONNACK."""
        options.setdefault("keep_alive", 0)
        client = VirtualClient(self, version)
        client.send(Connect(client_id=client_id, protocol_version=version, **options))
        client.connack = client.take(ConnAck)
        return client

    def session(self, client_id: str) -> Session:
        """Return the session of a client that has one."""
        session = self.core.sessions.get(client_id)
        assert session is not None
        return session


class VirtualClient:
    """One client: packets in, packets out, with a transport whose room the test decides.

    Attributes:
        inbox: packets that came and were not taken yet, oldest first.
        received: all bytes that ever came.
        is_lost: the broker has closed the connection.
        unsent_bytes: what the transport says it holds.
        room_bytes: what it takes before it has no room any more; None for all there is.
        is_reading: the broker reads from this client.
    """

    def __init__(self, broker: VirtualBroker, version: int = 5) -> None:
        self.broker = broker
        self.version = version
        self.connack: ConnAck
        self.inbox: list[Packet] = []
        self.received = bytearray()
        self.is_lost = False
        self.is_reading = True
        self.unsent_bytes = 0
        self.room_bytes: int | None = None
        self._buffer = ReceiveBuffer(268_435_460)
        self.connection = Connection(broker.core, broker.now, driver=self)

    @property
    def session(self) -> Session:
        """The client's session."""
        return self.connection.session

    def serve(self) -> None:
        """Do what the driver does for a touched connection."""
        connection = self.connection
        if not connection.needs_look:
            self._receive()
            if connection.out and not connection.is_stuck:
                self.broker.core.turn.write_soon(connection)
            return
        connection.needs_look = False
        while True:
            connection.pump(self.unsent_bytes, self.broker.now)
            if not self._receive() or connection.is_paused or connection.out:
                break
            if not connection.wants_more:
                break
        has_rest = bool(connection.out) and not connection.is_stuck
        if has_rest or (connection.wants_more and not connection.is_paused):
            self.broker.core.turn.touch(connection)  # later: when others have had their turn
        if connection.wants_turn:
            connection.go_on(self.broker.now)
        self.is_reading = connection.wants_reading
        if connection.is_closing:
            while connection.out and not connection.is_stuck:
                self._receive()
            self.is_lost = True

    def _receive(self) -> bool:
        """Take what the broker has to send; return False where that is nothing."""
        data = b"".join(self.connection.data_to_send())
        self.received += data
        if self.room_bytes is not None and data:
            self.room_bytes -= len(data)
            if self.room_bytes <= 0 and not self.connection.is_paused:
                self.connection.pause_sending(self.broker.now)
        for first_byte, body in frames_of(self._buffer, self._buffer.receive_data(data)):
            self.inbox.append(read_packet(first_byte, body, self.version))
        return bool(data)

    def send(self, *packets: Packet) -> None:
        """Send packets in one chunk."""
        self.send_bytes(b"".join(write_packet(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
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

    def lose(self) -> None:
        """Lose the network connection without a word."""
        self.is_lost = True
        self.connection.connection_lost(self.broker.now)
        self.broker.settle()


def will(topic: str = "will", payload: bytes = b"gone", **options: Any) -> Will:
    """Return a Will Message for a CONNECT."""
    return Will(topic, payload, **options)
