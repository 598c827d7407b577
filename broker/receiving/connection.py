"""One client's network connection, without the network.

Theory of operation. The driver hands over each chunk of received bytes with the time. The
connection puts it behind the bytes of a packet that is not whole, and `receive_packets` cuts it
into packets, each of which goes to the function that handles it. Everything that follows from them
is done before anything is written: what is to be sent collects in `WriteQueue.out`, which the
driver writes once.

A client is *suspended* while access control takes its time, and then no further packet is handled.
`Client.wants_reading` then tells the driver to stop reading. It does so too while
`penstock.broker.sending.throttle` or `penstock.broker.receiving.rate_limit` slows this publisher
down, and while the journal waits for the disk. A chunk that takes many steps is not handled all at
once: its rest waits until the other clients have had their turn, and the driver calls `go_on`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from penstock.broker.counters import count
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.events import PacketReceived
from penstock.broker.mqtt.enums import PUBLISH, PacketType
from penstock.broker.mqtt.reader import answer_version, may_be_connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import (
    ReceiveBuffer,
    packet_too_large,
    read_remaining_length,
)
from penstock.broker.receiving import control_packets
from penstock.broker.receiving.acknowledging import TAKE_ACKNOWLEDGEMENT
from penstock.broker.receiving.authenticating import check_packet_type
from penstock.broker.receiving.publishing import receive_publish
from penstock.broker.receiving.rate_limit import RateLimit, n_publishes
from penstock.broker.sessions.client import Client
from penstock.broker.sessions.received_bytes import FREE_BYTES
from penstock.broker.sessions.session import pump
from penstock.broker.timers import Timer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.broker.sending.sender import Outlet
    from penstock.broker.sessions.broker_state import Core


_CONNECT_BYTE: Final = PacketType.CONNECT << 4

_NOTHING_KEPT: Final = ReceiveBuffer(0)
"""The empty buffer of all connections that have not received a part of a packet yet."""

_HEAD_OF_CONNECT_BYTES: Final = 7
"""Bytes of a CONNECT's variable header up to the protocol version, which is among them."""


class Served(Protocol):
    """A connection with its transport, as the driver serves it."""

    is_reading: bool

    @property
    def transport(self) -> Outlet:
        """Its transport."""

    def is_late(self, now: float) -> bool:
        """Say whether a call that began at `now` has taken its time, and others wait."""

    def wait_for_turn(self) -> None:
        """Take another turn when the others have had theirs."""

    def run_suspended(self, connection: Connection) -> None:
        """Run what the connection is suspended on."""

    def heard_at(self, now: float) -> float:
        """Return when bytes last came that are not read; `now` where that cannot be told."""

    def has_hung_up(self) -> bool:
        """Say whether the peer has gone, though not all is read that it has sent."""

    def see_to_reading(self, connection: Connection) -> None:
        """Read if the connection wants it, and take another turn if it wants one."""

    def close(self, connection: Connection) -> None:
        """Close the transport; all that there is room for is written."""


class Connection:
    """One client's network connection: what the driver calls.

    Attributes:
        outgoing: the client's, which the driver takes after each call.
    """

    client_class: ClassVar[type[Client]] = Client

    __slots__ = ("_buffer", "_layer_bytes", "_rate", "_rate_timer", "client", "outgoing")

    def __init__(
        self,
        core: Core,
        now: float,
        *,
        listener: str = "default",
        remote_address: str = "",
        remote_port: int = 0,
        served: Any = None,
        ssl_object: Any = None,
        certificate_name: str | None = None,
        refusal: ReasonCode | None = None,
    ) -> None:
        """Take a network connection.

        Args:
            core: the broker.
            now: monotonic seconds at which it was accepted.
            listener: name of the listener in the policy file.
            remote_address: of the peer.
            remote_port: of the peer.
            served: what the driver serves: this with its transport.
            ssl_object: the TLS connection, or None.
            certificate_name: common name of the client's verified certificate, or None.
            refusal: reason code that answers its CONNECT, or None.
        """
        self.client = self.client_class(
            core,
            now,
            served,
            listener,
            remote_address,
            remote_port,
            ssl_object,
            certificate_name,
            refusal,
        )
        self.outgoing = self.client.outgoing
        self._buffer = _NOTHING_KEPT
        self._rate = RateLimit(core.limits, now) if core.limits.has_publish_rate else None
        self._rate_timer: Timer | None = None
        self._layer_bytes = 0

    # -- what the driver calls ------------------------------------------------------------

    def receive_data(self, chunk: bytes, now: float) -> None:
        """Handle every packet that is complete with this chunk.

        What the peer did never raises here: the connection closes itself.
        """
        client = self.client
        client.last_received = now
        if client.is_closing:
            return
        if client.backlog or client.suspended is not None:
            client.put_off(chunk)
            self._count_held(now)
            return
        behind = data = b""
        buffer = self._buffer
        if buffer.is_large:
            n_bytes = buffer.missing_bytes
            chunk, behind = chunk[:n_bytes], chunk[n_bytes:]
        try:
            data = buffer.receive_data(chunk) if buffer.pending_bytes else chunk
            if data:
                if self._rate is None:
                    self._receive(client, data, now)
                else:
                    self._receive_at_rate(self._rate, data, now)
        except PeerError as error:
            client.peer_failed(error, now)
        if behind and not client.is_closing:
            self._put_off(behind)
        if (
            self._buffer.pending_bytes + client.incoming_aliases.n_bytes > FREE_BYTES
            or client.backlog
            or client.is_counted
        ):
            self._count_held(now)

    def _count_held(self, now: float) -> None:
        """Count the received bytes that are kept: the broker may close the largest holder."""
        client = self.client
        if client.is_closing:
            return
        n_bytes = self._buffer.pending_bytes + client.incoming_aliases.n_bytes + self._layer_bytes
        if client.backlog:
            n_bytes += sum(map(len, client.backlog))
        client.is_counted = n_bytes > FREE_BYTES
        client.core.received.count(client, n_bytes, now)

    @property
    def is_known(self) -> bool:
        """Whether its CONNECT was accepted."""
        return self.client.is_open

    def held_in_layer(self, n_bytes: int) -> None:
        """Count what a layer below holds, as WebSocket does of a frame that is not whole."""
        if n_bytes > FREE_BYTES or self._layer_bytes:
            self._layer_bytes = n_bytes
            self._count_held(self.client.last_received)

    def resume(self, now: float) -> None:
        """Go on after `suspended` has run to its end."""
        self.client.suspended = None
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Handle what was put off: nothing keeps it any more, or it `wants_turn`."""
        client = self.client
        backlog, client.backlog = client.backlog, ()
        client.core.turn.touch(self.outgoing)
        for chunk in backlog:
            self.receive_data(chunk, now)

    def pause_sending(self, now: float) -> None:
        """The transport has too many unsent bytes: yield nothing until `resume_sending`."""
        client = self.client
        self.outgoing.is_paused = True
        client.throttle.paused(now)
        if client.is_open:
            client.session.is_direct = False

    def resume_sending(self, now: float) -> None:
        """The transport has room again."""
        self.outgoing.is_paused = False
        self.outgoing.unread_bytes = 0
        self.client.throttle.resumed(now)
        self.outgoing.want_pump()

    def connection_lost(self, now: float) -> None:
        """The network connection has ended, from whichever side."""
        if not self.client.is_closing:
            self.client.detach(now)
        self.stop_receiving()

    def stop_receiving(self) -> None:
        """Stop the timer of the publish rate, and free a large buffer: the client is closing."""
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        if self.client.is_counted:
            self._buffer.clear()

    @property
    def missing_bytes(self) -> int:
        """Bytes that only complete the packet which has begun to come: most are just kept."""
        return self._buffer.missing_bytes

    @property
    def wants_turn(self) -> bool:
        """Whether the driver should call `go_on` after the others have had their turn."""
        client = self.client
        return bool(client.backlog) and self._rate_timer is None and client.may_receive

    @property
    def has_backlog(self) -> bool:
        """Whether some of what an accepted client has sent was put off."""
        return self.client.is_open and bool(self.client.backlog)

    @property
    def is_held_up(self) -> bool:
        """Whether more can be handled only after `suspended`, or when the publish rate allows."""
        client = self.client
        return client.is_open and (client.suspended is not None or bool(client.backlog))

    def peer_left(self, now: float) -> None:
        """Note that the peer has gone: nothing more is sent to it, and it cannot be slowed down.

        Its input is still handled as far as the driver allows; `connection_lost` follows that, or
        `drop_input`.
        """
        client = self.client
        client.has_peer_left = True
        if client.timer is not None and client.is_open:
            client.timer.cancel()  # its keep-alive does not count for what it has left
            client.timer = None
        client.throttle.let_go()
        if client.is_open:
            client.core.sessions.peer_left(client.session, client, now)

    def drop_input(self, rest: bytes) -> None:
        """Drop what has come from a peer that is gone, and count the messages in it."""
        client = self.client
        if not (rest or client.backlog):
            return
        backlog, client.backlog = client.backlog, ()
        n_messages = n_publishes(self._buffer.receive_data(b"".join([*backlog, rest])))
        if n_messages:
            count(client.core.counters.publish_refused, "publisher gone", n_messages)
            client.core.logger.info(
                "%s: gone; %d of its messages were not handled", client.peer(), n_messages
            )

    # -- sending -----------------------------------------------------------------------------

    def look(self, served: Served, now: float) -> None:
        """Do all that the connection wants: move on its outbox, write, wait, read or not, close.

        The order of these steps decides what a client gets first, who waits, and who reads.
        """
        client = self.client
        outgoing = self.outgoing
        outgoing.needs_look = False
        transport = served.transport
        while True:
            pump(client, transport.get_write_buffer_size(), now)
            if not outgoing.out:
                break
            outgoing.write_to(transport)
            if outgoing.is_paused or outgoing.out or not outgoing.wants_more:
                break
            if served.is_late(now):
                break
        if outgoing.out:
            if not outgoing.is_stuck:
                client.core.turn.touch(outgoing)
        elif outgoing.wants_more and not outgoing.is_paused:
            served.wait_for_turn()
        if client.suspended is not None:
            served.run_suspended(self)
        if not (served.is_reading and client.wants_reading):
            served.see_to_reading(self)
        if client.is_closing:
            self.stop_receiving()
            while outgoing.out and not outgoing.is_stuck:
                outgoing.write_to(transport)
            served.close(self)

    # -- receiving ------------------------------------------------------------------------

    def limits_changed(self, now: float) -> None:
        """Take the publish rate of the limits that were changed.

        Another broker has limited that of each publisher whose messages it forwards.
        """
        limits = self.client.core.limits
        has_rate = limits.has_publish_rate and not self.client.is_forwarded
        self._rate = RateLimit(limits, now) if has_rate else None

    def _receive_at_rate(self, rate: RateLimit, data: bytes, now: float) -> None:
        """Handle what the client's publish rate allows now, and the rest when it does.

        Raises:
            PeerError: as `_receive`; message rate too high, where that is not waited for.
        """
        client = self.client
        stop = rate.take(data, now)
        if stop:
            self._receive(client, data[:stop], now)
        if client.is_closing:
            return
        if client.backlog:
            for rest in client.backlog:
                rate.give_back(rest)
            self._put_off(data[stop:])
            return
        if stop == len(data):
            return
        core = client.core
        if core.limits.publish_rate_exceeded == "disconnect":
            raise ProtocolError("publishes too fast", ReasonCode.MESSAGE_RATE_TOO_HIGH)
        client.put_off(data[stop:])
        core.counters.publishers_slowed += 1
        self._rate_timer = core.timers.at(now + rate.wait_seconds, self._rate_allows)
        core.turn.touch(self.outgoing)

    def _rate_allows(self, now: float) -> None:
        self._rate_timer = None
        self.go_on(now)

    def _put_off(self, data: bytes) -> None:
        """Keep bytes that were not handled, in their order, for `go_on`."""
        if data:
            self.client.put_off(data)
            self.client.core.turn.touch(self.outgoing)

    def _receive(self, client: Client, data: bytes, now: float) -> None:
        """Handle each whole packet in `data`, as far as the steps go; keep the rest.

        Raises:
            PeerError: for a packet that is malformed or not allowed.
        """
        position = self._receive_packets(client, data, now)
        if client.suspended is not None:
            client.put_off(data[position:])
        elif client.is_closing:
            pass
        elif (turn := client.core.turn).steps >= turn.most_steps:
            self._put_off(data[position:])
        elif position < len(data):
            if self._buffer is _NOTHING_KEPT:
                self._buffer = ReceiveBuffer(client.core.limits.maximum_packet_size)
            self._buffer.unread(data, position)

    @staticmethod
    def _receive_packets(client: Any, data: bytes, now: float) -> int:
        """Handle each whole packet in `data`; see `receive_packets`."""
        return receive_packets(client, data, now)


def receive_packets(client: Client, data: bytes, now: float) -> int:
    """Handle each whole packet in `data`, as far as the steps go.

    What takes many steps is not done at once: each packet is a step, and so is each delivery of its
    message. After `PendingWrites.most_steps` the rest waits until the others have had their turn.

    Args:
        client: they came from; neither closing nor suspended.
        data: received bytes, at least one; a packet begins at the first.
        now: monotonic seconds.

    Returns:
        Where the rest begins: a packet that is not whole yet; or, where the connection is now
        suspended or closing, or `PendingWrites.steps` has come to `PendingWrites.most_steps`, one
        that is left.

    Raises:
        PeerError: a packet is malformed or not allowed; those before it are handled.
    """
    core = client.core
    turn = core.turn
    turn.steps = 0
    end = len(data)
    position = 0
    n_packets = 0
    try:
        maximum = client.maximum_packet_size if client.is_open else _first_bytes(client, data)
        while end - position >= 2:
            start, length = position + 2, data[position + 1]
            if length > 0x7F:
                start, length = read_remaining_length(data, position)
                if not start:
                    break
            stop = start + length
            if stop - position > maximum:
                raise _too_large(client, data, start, stop - position, maximum)
            if stop > end:
                if data[position] >> 4 != PUBLISH:
                    core.limits.check_control_bytes(stop - position)
                break
            n_packets += 1
            receive_packet(client, data, position, start, stop, now)
            position = stop
            if (
                turn.steps + n_packets >= turn.most_steps
                or client.is_closing
                or client.suspended is not None
            ):
                break
            maximum = client.maximum_packet_size
    finally:
        core.counters.packets_received += n_packets
        core.counters.bytes_received += position
    turn.steps += n_packets
    return position


def _first_bytes(client: Client, data: bytes) -> int:
    """Return the bytes of the largest packet that a client may send which is not accepted yet.

    Raises:
        ProtocolError: the first packet is not CONNECT [MQTT-3.1.0-1]. This is said at its first
            byte: a client that speaks another protocol is not waited for.
    """
    if data[0] != _CONNECT_BYTE and not may_be_connect(data) and client.authentication is None:
        raise ProtocolError("the first packet is not CONNECT")
    limits = client.core.limits
    return min(client.maximum_packet_size, limits.connect_bytes, limits.control_bytes)


def _too_large(
    client: Client, data: bytes, start: int, n_bytes: int, maximum: int
) -> ProtocolError:
    """Return the error for a packet that is too large; a CONNECT is answered where it can be."""
    head = data[start : start + _HEAD_OF_CONNECT_BYTES]
    is_connect = not client.is_open and client.authentication is None
    if is_connect and len(head) == _HEAD_OF_CONNECT_BYTES:
        client.set_version(answer_version(head))
        client.is_answered = True
    return packet_too_large(n_bytes, maximum)


def receive_packet(
    client: Client, data: bytes, position: int, start: int, stop: int, now: float
) -> None:
    """Handle one whole packet.

    Raises:
        PeerError: it is malformed or not allowed.
    """
    core = client.core
    first_byte = data[position]
    packet_type = first_byte >> 4
    if client.authentication is not None and not client.is_open:
        check_packet_type(packet_type)
    if core.callbacks.packet_received:
        session = client.session if client.is_open else None
        chunk = memoryview(data)[position:stop]
        event = PacketReceived(session, first_byte, stop - position, (chunk,))
        core.guard.tell(core.callbacks.packet_received, event)
    if packet_type == PUBLISH:
        core.counters.publish_received += 1
        receive_publish(client, data, first_byte, start, stop, now)
        if core.catch_up is not None:
            _let_catch_up(client, core.catch_up())
    elif stop - start == 2 and (take := TAKE_ACKNOWLEDGEMENT.get(first_byte)) is not None:
        take(client, (data[start] << 8) | data[start + 1], now)
    else:
        if stop - position > core.limits.control_bytes:
            core.limits.check_control_bytes(stop - position)  # raises
        try:
            control_packets.receive(client, first_byte, data[start:stop], now)
        except PeerError:
            if not (client.is_open or client.is_answered):  # it was not read
                client.set_version(answer_version(data[start:stop]))
                client.is_answered = first_byte == _CONNECT_BYTE
            raise
        if core.catch_up is not None:
            _let_catch_up(client, core.catch_up())


def _let_catch_up(client: Client, wait: Coroutine[Any, Any, None] | None) -> None:
    """Receive nothing more until the callbacks have caught up with this client's events."""
    if wait is None:
        return
    if client.suspended is not None or client.is_closing:
        wait.close()
        return
    client.suspended = wait
    client.core.turn.touch(client.outgoing)
