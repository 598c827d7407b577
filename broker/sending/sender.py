"""From deliveries and packets to bytes for one client, and the bytes until they are written.

Theory of operation. A `Sender` makes packets and puts them into `WriteQueue.out`, where they
collect until the driver writes them all at once; where that is much, in *rounds* in which the other
connections have their share too. What has something to write is *touched*: the driver's
`PendingWrites` lists it, and the driver serves it after the call.

A small payload is joined to its header. A large one stands in `out` by reference and is never
copied. One that lives elsewhere than in memory stands there as a `PayloadReader`, of which a round
takes one piece; while the transport has no room the rest stays, and with it all that comes behind.
So a client that stalls never has more of such a payload in memory than one piece.

What a client may not learn before it is safe, such as the PUBLISH of a QoS 2 message to a durable
session, is *held*: it stands in `held`, in order, until the journal reports the commit. Meanwhile
other packets of the session's state queue up behind it; behind CONNACK and answers to
subscriptions, nothing leaves the outbox (`penstock.broker.sessions.session.pump`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, cast

from penstock.broker.access_control import SessionView
from penstock.broker.events import PacketSent
from penstock.broker.extensions import PUBLISHER_PROPERTY
from penstock.broker.message import Message
from penstock.broker.mqtt.data_types import (
    read_variable_byte_integer,
    write_string_pair,
    write_variable_byte_integer,
)
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_5, PacketType
from penstock.broker.mqtt.packets import Packet, PubRel
from penstock.broker.mqtt.size_limit import fit_packet
from penstock.broker.mqtt.topic_aliases import OutgoingAliases
from penstock.broker.mqtt.writer import publish_header, write_packet
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery
from penstock.broker.payload import JOIN_BELOW_BYTES, PIECE_BYTES, PayloadReader
from penstock.broker.sending.outgoing_properties import outgoing_properties

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.outbox.inflight import Inflight
    from penstock.broker.outbox.message_counts import Ledger
    from penstock.broker.outbox.outbox import Outbox
    from penstock.broker.sending.core_context import CoreContext
    from penstock.broker.sending.throttle import Throttle

WRITE_BYTES: Final = 640 * 1024
"""Bytes that one connection is written in a round, before the other touched ones have had as much.
While the broker writes to those, another processor handles what the first have acknowledged: 1 MiB
to
each of 50 readers takes the kernel 9 ms in two rounds, 12 ms in one, 16 ms in sixteen."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that a transport writes."""

MOST_STEPS: Final = 64
"""Steps after which the rest of a chunk is put off until the others have had their turn. A packet
that is handled by itself is a step, and so is each delivery of a message that is no mere copy. A
step takes some 5 to 10 us, so all of them take half a millisecond. With 32, a turn took fewer
acknowledgements, where they come one by one, than messages of a window of 100: a subscriber of QoS
1 that once fell behind its
Receive Maximum stayed there, at 97,000 messages a second instead of 380,000."""

PUMP_BYTES: Final = 65_536
"""The most bytes that one pump moves before they are written: enough to be worth a write."""

_ANSWER_BYTES: Final = 64
"""Memory that an answer takes beside its bytes, of which there are often two or four."""

ANSWER_MEMORY_BYTES: Final = 4 + _ANSWER_BYTES
"""Memory that a PUBACK, PUBREC, PUBREL or PUBCOMP takes, its bytes included."""

_CONNACK_BYTE: Final = PacketType.CONNACK << 4

_SHORT_PACKET: Final = struct.Struct(">BBH").pack

_NO_PROPERTIES: Final = b"\0"


class PendingWrites:
    """One call of the driver into the core: what it has caused, and what the driver does after it.

    Attributes:
        is_running: the driver is inside a call and looks at touched connections after it.
        touched: connections that the driver must serve; it takes them by `take_touched`.
        congested: (throttle and outbox of the subscriber, payload bytes) of each message of the
            current publish that found its subscriber without room.
        steps: of the current chunk: packets that took their own way, and deliveries that were no
            mere copies.
        most_steps: the number of steps at which the rest of a chunk is put off.
    """

    __slots__ = ("_wake", "congested", "is_running", "most_steps", "steps", "touched")

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin with nothing."""
        self._wake = wake
        self.is_running = False
        self.touched: list[WriteQueue] = []
        self.congested: list[tuple[Throttle, Outbox, int]] = []
        self.steps = 0
        self.most_steps = MOST_STEPS

    def touch(self, outgoing: WriteQueue) -> None:
        """Let the driver look at all that the connection may want."""
        outgoing.needs_look = True
        if not outgoing.is_touched:
            self.write_soon(outgoing)

    def write_soon(self, outgoing: WriteQueue) -> None:
        """Let the driver write what is in `out`, and no more; the connection is not touched yet."""
        outgoing.is_touched = True
        self.touched.append(outgoing)
        if not self.is_running:
            self._wake()

    def take_touched(self) -> list[WriteQueue]:
        """Return what was touched since the last call, and start a new list."""
        touched, self.touched = self.touched, []
        for outgoing in touched:
            outgoing.is_touched = False
        return touched


class Outlet(Protocol):
    """The sending side of a transport; asyncio's is one."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes it holds that are not sent."""

    def write(self, data: Buffer, /) -> None:
        """Send bytes, or hold them."""

    def writelines(self, data: Iterable[Buffer], /) -> None:
        """Send pieces, or hold them."""


class WriteQueue:
    """The bytes on their way to one client.

    Attributes:
        core: what all of the broker share.
        served: what the driver serves once this was touched: the connection with its transport.
        is_touched: on the turn's list for the driver.
        is_pump_wanted: something may be able to leave the outbox.
        needs_look: the driver must look at more of it than what is in `out`.
        wants_more: there is more to send than the last pump took.
        out: what to write, in order; the driver takes it by `data_to_send`, round by round.
        round_bytes: bytes of `out` above which a round takes not all of it; 0 while there is a
            payload in it that is read piece by piece.
        is_unreadable: a payload that has begun to leave cannot be read on: the connection must end.
        is_paused: the transport has more unsent bytes than it should.
        unread_bytes: about what the memory holds of answers to this client that were put while
            the transport had no room.
        copy_maximum: bytes of the largest PUBLISH that goes to this client as it came; 0 where
            none does, as the client takes Topic Aliases.
    """

    __slots__ = (
        "copy_maximum",
        "core",
        "is_paused",
        "is_pump_wanted",
        "is_touched",
        "is_unreadable",
        "needs_look",
        "out",
        "out_bytes",
        "round_bytes",
        "served",
        "unread_bytes",
        "wants_more",
    )

    def __init__(self, core: CoreContext, served: Any) -> None:
        self.core = core
        self.served = served
        self.is_touched = False
        self.needs_look = False
        self.is_pump_wanted = False
        self.wants_more = False
        self.out: list[Buffer | PayloadReader] = []
        self.out_bytes = 0
        self.round_bytes = WRITE_BYTES
        self.is_paused = False
        self.is_unreadable = False
        self.unread_bytes = 0
        self.copy_maximum = 0

    def want_pump(self) -> None:
        """Ask the driver for a pump: something may be able to leave the outbox."""
        self.is_pump_wanted = True
        self.core.turn.touch(self)

    def write_to(self, transport: Outlet) -> bool:
        """Write what is in `out`, or as much of it as the others get in this round.

        Returns:
            Whether the rest may be written in the next round.
        """
        if len(self.out) == 1 and self.out_bytes <= self.round_bytes:
            # As `data_to_send`: 0.1 us less of the 6 us for all that is done for a lone message.
            out = self.out
            self.core.counters.bytes_sent += self.out_bytes
            self.out = []
            self.out_bytes = 0
            transport.write(out[0])  # type: ignore[arg-type]  # no reader is in it
            return False
        pieces = self.data_to_send()
        if pieces:
            transport.writelines(pieces)
        return bool(self.out) and not self.is_stuck

    def data_to_send(self) -> list[Buffer]:
        """Return what is to be written now, and keep in `out` what goes in the next round."""
        out, self.out = self.out, []
        n_bytes = self.out_bytes
        self.out_bytes = 0
        if n_bytes > self.round_bytes:
            if not self.round_bytes:
                return self._next_piece(out, n_bytes)
            if not self.is_paused:
                self._keep_rest(out)
                n_bytes -= self.out_bytes
        self.core.counters.bytes_sent += n_bytes
        return out  # type: ignore[return-value]  # no reader is in it

    @property
    def has_unread(self) -> bool:
        """Whether a payload in `out` has still to be read, so that only a part can be written."""
        return not self.round_bytes

    @property
    def is_stuck(self) -> bool:
        """Whether nothing of `out` can be written until the transport has room again."""
        return self.is_paused and not self.round_bytes

    def drop_out(self) -> None:
        """Discard the unwritten bytes, because the connection has ended."""
        self.out = []
        self.out_bytes = 0
        self.round_bytes = WRITE_BYTES

    def _next_piece(self, out: list[Any], n_bytes: int) -> list[Buffer]:
        """Return what goes until the end of a stored payload's next piece; keep the rest.

        A packet that has begun and cannot go on is the end of the connection.
        """
        if self.is_paused:
            self.out, self.out_bytes = out, n_bytes
            return []
        index = next(i for i, each in enumerate(out) if isinstance(each, PayloadReader))
        reader = out[index]
        piece = self.core.guard.call(self.core.payload_store, reader.read, otherwise=None)
        if piece is None:
            self.is_unreadable = True
            self.drop_out()
            self.core.turn.touch(self)
            return []
        now = [*out[:index], piece]
        self.out = out[index if len(reader) else index + 1 :]
        if not any(isinstance(each, PayloadReader) for each in self.out):
            self.round_bytes = WRITE_BYTES
        n_now = sum(map(len, now))
        self.out_bytes = n_bytes - n_now
        self.core.counters.bytes_sent += n_now
        return now

    def _keep_rest(self, out: list[Any]) -> None:
        """Move what is beyond `WRITE_BYTES` back into `out`, by reference."""
        room = WRITE_BYTES
        for i, data in enumerate(out):
            if len(data) > room:
                view = memoryview(data)
                self.out = [view[room:], *out[i + 1 :]]
                self.out_bytes = sum(map(len, self.out))
                out[i:] = [view[:room]]
                return
            room -= len(data)


class Recipient(SessionView, Protocol):
    """A session, as its sender sees it.

    Attributes:
        is_direct: a small message may be written at once.
    """

    is_direct: bool
    outbox: Outbox
    inflight: Inflight
    ledger: Ledger
    link: Link

    @property
    def is_durable(self) -> bool:
        """Whether the session outlives the process."""


class Sender:
    """Makes what is to leave for one client, and puts it into its `WriteQueue`.

    Attributes:
        core: what all of the broker share.
        outgoing: the bytes on their way to the client.
        session: the client's session; only after CONNECT was accepted. `session`, `version` and
            `is_open` stand in the client too, as both read them for each packet: the client sets
            both at once.
        is_open: CONNECT was accepted and the connection has not ended.
        held: (commit, first byte, header, payload, how many) of packets that wait for a commit.
        outbox_waits_for: the commit before which nothing may leave the outbox.
        send_maximum: bytes of the largest packet this client takes.
        aliases: Topic Aliases used towards this client, or None for none.
        is_explained: Request Problem Information: the client wants Reason Strings.
        send_quota: QoS 1 and 2 messages that may be inflight to this client.
        send_quota_bytes: payload bytes inflight from which on no further message is sent.
        takes_copies: a PUBLISH may go to this client as it came from another.
    """

    __slots__ = (
        "aliases",
        "core",
        "held",
        "held_bytes",
        "is_explained",
        "is_open",
        "outbox_waits_for",
        "outgoing",
        "send_maximum",
        "send_quota",
        "send_quota_bytes",
        "session",
        "version",
    )

    takes_copies: ClassVar = True

    def __init__(self, outgoing: WriteQueue) -> None:
        self.core = core = outgoing.core
        self.outgoing = outgoing
        self.session: Recipient
        self.version = MQTT_5
        self.held: deque[tuple[int, int, Buffer, bytes | PayloadReader, int]] = NO_QUEUE
        self.held_bytes = 0
        self.outbox_waits_for = 0
        self.send_maximum = MAX_REMAINING_LENGTH + 5
        self.aliases: OutgoingAliases | None = None
        self.is_explained = True
        self.send_quota = 0
        self.send_quota_bytes = core.limits.inflight_bytes
        self.is_open = False

    def has_quota(self) -> bool:
        """Say whether one more QoS 1 or 2 message may be inflight to this client."""
        inflight = self.session.inflight
        return inflight.n_messages < self.send_quota and inflight.n_bytes < self.send_quota_bytes

    def send_packet(self, packet: Packet) -> None:
        """Put a packet other than PUBLISH into `out`, behind what is held."""
        frame = self._frame(packet)
        if frame is None:
            return
        if self.held:
            self._hold(frame[0], frame, b"")
        else:
            self._put(frame[0], frame, b"")

    def _frame(self, packet: Packet) -> bytes | None:
        """Return a packet's bytes, as far as the client takes it; None where it does not."""
        frame: bytes | None
        if self.is_explained:
            frame = write_packet(packet, self.version)
            if len(frame) <= self.send_maximum:
                return frame
        frame = fit_packet(packet, self.version, self.send_maximum, is_explained=self.is_explained)
        if frame is None:
            self.core.logger.warning(
                "%s: %s not sent, it is longer than the client's Maximum Packet Size of %d bytes",
                f"client {self.session.client_id}" if self.is_open else "a client not accepted yet",
                packet.packet_type.name,
                self.send_maximum,
            )
        return frame

    def send_when_safe(self, packet: Packet) -> None:
        """Send a packet that says what a durable session has just become, after the commit."""
        if self._is_safe():
            self.send_packet(packet)
        else:
            self.hold(packet)

    def _is_safe(self) -> bool:
        journal = self.core.journal
        return journal is None or not self.session.is_durable or journal.is_settled

    def hold(self, packet: Packet) -> None:
        """Send a packet after the next commit, and nothing of the outbox before it."""
        frame = self._frame(packet)
        if frame is not None:
            self._hold(frame[0], frame, b"")
            self.outbox_waits_for = self.held[-1][0]
            if self.is_open:
                self.session.is_direct = False

    def keeps_outbox(self) -> bool:
        """Say whether what is held has to go, or to become less, before anything of the outbox.

        A client whose own QoS 2 messages keep some PUBCOMP waiting at any time is sent others.
        """
        held = self.held
        return bool(held) and (
            self.held_bytes >= PUMP_BYTES
            or (held[0][0] <= self.outbox_waits_for and not self.is_disk_failing())
        )

    def _hold(
        self, first_byte: int, header: Buffer, payload: bytes | PayloadReader, n_packets: int = 1
    ) -> None:
        journal = self.core.journal
        assert journal is not None  # noqa: S101 (nothing is held without one)
        if self.held is NO_QUEUE:
            self.held = deque()
        number = journal.hold_for(self)
        self.held.append((number, first_byte, header, payload, n_packets))
        self.held_bytes += len(header) + len(payload)
        if self.held_bytes >= PUMP_BYTES and self.is_open:
            self.session.is_direct = False

    def is_disk_failing(self) -> bool:
        """Say whether the disk refuses, so that nothing can wait for it."""
        journal = self.core.journal
        return journal is not None and journal.is_failing

    @property
    def holds_connack(self) -> bool:
        """Whether CONNACK waits for a commit: nothing may go out before it [MQTT-3.2.0-1]."""
        return bool(self.held) and self.held[0][1] == _CONNACK_BYTE

    def send_held(self, number: int) -> None:
        """Send what was held for a commit that is done."""
        held = self.held
        while held and held[0][0] <= number:
            self._put_held()
        if not self.keeps_outbox():
            self.outgoing.want_pump()

    def send_held_connack(self) -> None:
        """Let the CONNACK go where the disk refuses: a client may come, if nothing is safe."""
        if self.holds_connack:
            self._put_held()
        self.outgoing.want_pump()

    def _put_held(self) -> None:
        _, first_byte, header, payload, n_packets = self.held.popleft()
        self.held_bytes -= len(header) + len(payload)
        if n_packets == 1:
            self._put(first_byte, cast("bytes", header), payload)
        else:
            self.put_run(header, n_packets)

    def drop_held(self) -> bool:
        """Forget what is held, for the connection ends; return whether CONNACK was among it.

        The client may then be sent nothing more, not even a DISCONNECT [MQTT-3.14.0-1].
        """
        has_connack = self.holds_connack
        self.held.clear()
        self.held_bytes = 0
        return has_connack

    def send_short(self, first_byte: int, packet_id: int) -> None:
        """Send a PUBREL or PUBCOMP of success once what it says is safe.

        A PUBLISH may overtake it: only among themselves they keep their order [MQTT-4.6.0-4].
        """
        frame = _SHORT_PACKET(first_byte, 2, packet_id)
        if self.held or not self._is_safe():
            self._hold(first_byte, frame, b"")
        else:
            self._put(first_byte, frame, b"")

    def send_receipt(self, first_byte: int, packet_id: int) -> None:
        """Send the PUBACK or PUBREC of a message that was accepted."""
        frame = _SHORT_PACKET(first_byte, 2, packet_id)
        if self.held:
            self._hold(first_byte, frame, b"")
        else:
            self._put(first_byte, frame, b"")

    def send_run(self, packets: Buffer, n_packets: int, *, is_state: bool) -> None:
        """Send whole packets of one kind that nobody looks at, together; or hold them together.

        Where `is_state`, they say what a durable session has just become, as PUBREL and PUBCOMP do:
        they go out once that is safe.
        """
        if self.held or (is_state and not self._is_safe()):
            self.hold_run(packets, n_packets)
        else:
            self.put_run(packets, n_packets)

    def hold_run(self, packets: Buffer, n_packets: int) -> None:
        """Put packets of one kind that nobody looks at into `out` after the next commit."""
        self._hold(packets[0], packets, b"", n_packets)

    def put_run(self, packets: Buffer, n_packets: int) -> None:
        """Put packets of one kind that nobody looks at into `out`."""
        core = self.core
        outgoing = self.outgoing
        outgoing.out.append(packets)
        outgoing.out_bytes += len(packets)
        core.counters.packets_sent += n_packets
        if outgoing.is_paused:
            outgoing.unread_bytes += n_packets * ANSWER_MEMORY_BYTES
            core.turn.touch(outgoing)  # it may be too much to read on
        elif not outgoing.is_touched:
            core.turn.write_soon(outgoing)

    def send_qos0(
        self, message: Message, *, retain: bool, subscription_ids: tuple[int, ...], now: float
    ) -> None:
        """Send a QoS 0 message that need not wait, and book it."""
        payload = message.payload if type(message.payload) is bytes else self._read(message)
        if payload is None:
            return
        header = self._header(message, subscription_ids, now, retain)
        if self._put_publish(header, payload):
            self.session.ledger.delivered += 1

    def send_delivery(self, delivery: Delivery, now: float) -> None:
        """Send what was taken from the outbox, and book it."""
        message = delivery.message
        if not delivery.qos:
            self.send_qos0(
                message, retain=delivery.retain, subscription_ids=delivery.subscription_ids, now=now
            )
            return
        payload = message.payload if type(message.payload) is bytes else self._read(message)
        if payload is None:
            return
        session = self.session
        session.inflight.start(delivery)
        is_held = delivery.qos == 2 and (
            session.is_durable or delivery.row_start != 0 or bool(self.held)  # none overtakes one
        )
        header = self._header(
            message,
            delivery.subscription_ids,
            now,
            delivery.retain,
            delivery.qos,
            delivery.is_repeat,
            delivery.packet_id,
        )
        if self._put_publish(header, payload, is_held=is_held):
            if self.core.timing:
                link = session.link
                self.core.guard.tell_each(
                    self.core.samplers, lambda s: delivery.tell_sent(s, link, now)
                )
        else:
            session.inflight.drop(delivery)

    def send_again(self, delivery: Delivery, now: float) -> None:
        """Repeat what the last connection left unacknowledged [MQTT-4.4.0-1].

        It is safe since before CONNACK, so that nothing is held and all goes in its order
        [MQTT-4.6.0-1]; unless CONNACK could not wait, as the disk refuses.
        """
        inflight = self.session.inflight
        if not inflight.holds(delivery):  # acknowledged before it was repeated
            return
        if inflight.is_released(delivery.packet_id):
            self.send_when_safe(PubRel(delivery.packet_id))
            return
        message = delivery.message
        payload = self._read(message)
        if payload is None:
            inflight.drop(delivery)
            return
        header = self._header(
            message,
            delivery.subscription_ids,
            now,
            delivery.retain,
            delivery.qos,
            packet_id=delivery.packet_id,
            dup=True,
        )
        is_held = delivery.qos == 2 and self.session.is_durable and self.is_disk_failing()
        if not self._put_publish(header, payload, is_held=is_held):
            inflight.drop(delivery)

    def _read(self, message: Message) -> bytes | PayloadReader | None:
        """Return a payload; None, booked as dropped, where its store cannot read it back."""
        core = self.core
        payload = core.guard.call(core.payload_store, self._start_reading, message, otherwise=None)
        if payload is None:
            self.session.ledger.drop("payload_lost")
        return payload

    def _start_reading(self, message: Message) -> bytes | PayloadReader:
        payload = message.payload
        if isinstance(payload, bytes) or self.core.callbacks.packet_sent:
            return message.read_payload()
        return payload.read_piece(0) if len(payload) <= PIECE_BYTES else PayloadReader(payload)

    def _header(
        self,
        message: Message,
        subscription_ids: tuple[int, ...],
        now: float,
        retain: bool,  # noqa: FBT001 (hot, as `publish_header`)
        qos: int = 0,
        dup: bool = False,  # noqa: FBT001, FBT002
        packet_id: int = 0,
    ) -> bytes:
        """Return all of a PUBLISH that stands before its payload; the topic may get an alias."""
        topic_bytes = message.topic_bytes
        n_bytes = len(message.payload)
        version = self.version
        aliases = self.aliases
        if aliases is not None:
            alias, is_known = aliases.use(topic_bytes)
            if alias:
                name = b"" if is_known else topic_bytes
                properties = outgoing_properties(message, subscription_ids, now, alias)
                header = publish_header(
                    name, n_bytes, qos, retain, dup, packet_id, properties, version
                )
                if is_known or len(header) + n_bytes <= self.send_maximum:
                    return header
                aliases.forget(topic_bytes)  # it may fit without
        properties = _NO_PROPERTIES
        if (message.properties or subscription_ids) and version == MQTT_5:
            properties = outgoing_properties(message, subscription_ids, now)
        return publish_header(
            topic_bytes, n_bytes, qos, retain, dup, packet_id, properties, version
        )

    def _put_publish(
        self, header: bytes, payload: bytes | PayloadReader, *, is_held: bool = False
    ) -> bool:
        """Put a PUBLISH into `out`, or book it as dropped [MQTT-3.1.2-24] and return False.

        Where it `is_held`, it must not leave before what has changed until now is safe: of a QoS 2
        message whose packet identifier is lost, a restart would make another message.
        """
        size = len(header) + len(payload)
        if size > self.send_maximum:
            self.session.ledger.drop("packet_too_large")
            return False
        core = self.core
        core.counters.publish_sent += 1
        # A Topic Alias must not overtake the packet that says what it stands for.
        if is_held or (self.held and self.aliases is not None):
            self._hold(header[0], header, payload)
        elif core.is_plain and len(payload) <= JOIN_BELOW_BYTES >= len(header):
            # As `_put`, with one call less.
            core.counters.packets_sent += 1
            outgoing = self.outgoing
            outgoing.out_bytes += size
            outgoing.out.append(header + payload)  # type: ignore[operator]  # a reader is longer
            if not outgoing.is_touched:
                core.turn.write_soon(outgoing)
        else:
            self._put(header[0], header, payload)
        return True

    def _put(self, first_byte: int, header: bytes, payload: bytes | PayloadReader) -> None:
        """Put one packet into `out`."""
        core = self.core
        outgoing = self.outgoing
        size = len(header) + len(payload)
        outgoing.out_bytes += size
        core.counters.packets_sent += 1
        if outgoing.is_paused:
            outgoing.unread_bytes += len(header) + _ANSWER_BYTES
            core.turn.touch(outgoing)  # it may be too much to read on
        if not payload:
            outgoing.out.append(header)
        elif isinstance(payload, PayloadReader):
            outgoing.out += (header, payload)
            outgoing.round_bytes = 0
        elif len(payload) <= JOIN_BELOW_BYTES >= len(header):
            outgoing.out.append(header + payload)
        else:
            outgoing.out.append(header)
            outgoing.out.append(payload)
        if core.callbacks.packet_sent:
            session = self.session if self.is_open else None
            read = cast("bytes", payload)  # as `_read` has, where there are callbacks
            event = PacketSent(session, first_byte, size, (header, read))
            core.guard.tell(core.callbacks.packet_sent, event)
        if not outgoing.is_touched:
            core.turn.write_soon(outgoing)


class TellingSender(Sender):
    """Sends each message with the Client Identifier of its publisher, as a User Property."""

    __slots__ = ()

    takes_copies = False

    def _header(
        self,
        message: Message,
        subscription_ids: tuple[int, ...],
        now: float,
        retain: bool,  # noqa: FBT001 (as `Sender`)
        qos: int = 0,
        dup: bool = False,  # noqa: FBT001, FBT002
        packet_id: int = 0,
    ) -> bytes:
        """Return all of a PUBLISH that stands before its payload; the publisher comes last."""
        properties = outgoing_properties(message, subscription_ids, now)
        if message.publisher:
            publisher = b"\x26" + write_string_pair((PUBLISHER_PROPERTY, message.publisher))
            n_bytes, start = read_variable_byte_integer(properties, 0)
            length = write_variable_byte_integer(n_bytes + len(publisher))
            properties = length + properties[start:] + publisher
        return publish_header(
            message.topic_bytes,
            len(message.payload),
            qos,
            retain,
            dup,
            packet_id,
            properties,
            self.version,
        )
