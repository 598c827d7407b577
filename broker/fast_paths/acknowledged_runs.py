"""Runs of QoS 1 and 2 packets: PUBLISH packets for the same subscribers, and acknowledgements.

Theory of operation. A busy client sends its packets in chunks, and most neighbours in a chunk are
alike: PUBLISH packets of one topic and length, or acknowledgements in the order in which the
messages were sent. Such a *run* is found by comparing bytes, and handled at once: the subscribers
are looked up once, their inflight windows share one `MessageRun`, each of them gets one copy of the
bytes in which only the Packet Identifiers differ, and the publisher gets one string of
acknowledgements. A run may be a single packet.

A run for durable sessions is noted in the journal as one. Its acknowledgements then wait for the
commit, or for earlier ones, in one `RunReceipt`, and where its bytes must not leave before the
commit, as with QoS 2, they are held as one.

Each function here returns 0 before it has changed anything, and leaves the packet to the plain way,
in four cases:
* A sink takes no runs or has no room for this one, or the disk may not take all of its packets
  (`FastCore.fast_plans`, `sink_runs` and the functions themselves).
* A member of a shared subscription is to be chosen for each (`shared_runs`).
* The packet is not allowed, or repeats one.
* The bytes that leave would differ from those that came: for another protocol version, QoS or Topic
  Alias.

A subscriber without room does not stop a run: for that one alone the run is taken apart into
messages, which take the plain way of `Session.deliver`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.errors import PeerError
from penstock.broker.fast_paths.fast_core import are_direct
from penstock.broker.fast_paths.message_run import MessageRun, Segment, tell_sent
from penstock.broker.fast_paths.shared_runs import Group
from penstock.broker.fast_paths.sink_runs import RunSinks, sinks_of
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import SUCCESS
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.short_packets import (
    ALL_PUBREL,
    PACKET_BYTES,
    answers,
    end_of_like,
    packet_ids_at,
    packets_from,
)
from penstock.broker.payload import JOIN_BELOW_BYTES
from penstock.broker.receiving.acknowledging import made_room, sample
from penstock.broker.receiving.publishing import SMALL_PROPERTIES_BYTES
from penstock.broker.routing.queue_capacity import MANY_SESSIONS
from penstock.broker.sending.sender import PUMP_BYTES
from penstock.broker.sessions.client import PublishReceipt
from penstock.broker.sessions.session import DIRECT_BYTES

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSink
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.fast_paths.fast_core import FastCore, FastSession
    from penstock.broker.sessions.session import Session

_RETAIN: Final = 0x01
_PUBACK: Final = 0x40
_PUBREC: Final = 0x50
_PUBREL: Final = 0x62
_PUBCOMP: Final = 0x70

_UNKNOWN: Final = object()
"""The answer of a look-up for a Packet Identifier that was not received."""

_LEAST_PUBLISH_BYTES: Final = 4
"""Bytes of the shortest variable header: the length of the topic and the Packet Identifier."""

_MOST_PACKETS: Final = 256
"""The most packets of one run: longer runs gain nothing."""

_MOST_DELIVERIES: Final = 32
"""The most deliveries of a run that is taken apart for subscribers without room. Other clients wait
meanwhile."""


def _take_publishes(
    client: FastClient, data: bytes, position: int, start: int, stop: int, now: float
) -> int:
    """Take a run of QoS 1 or 2 PUBLISH packets."""
    qos = (data[position] >> 1) & 3
    if client.awaiting or (qos == 2 and client.is_relay):
        return 0
    if not data[start - 1]:
        return 0  # a Remaining Length that is not in its shortest form [MQTT-1.5.5-1]
    found = _find_run(client, data, position, start, stop)
    if found is None:
        return 0
    sessions, segments, packet_ids, stop = found
    sinks = sinks_of(sessions) if client.core.run_sinks else None
    if sinks is not None and not sinks.reserve(len(packet_ids) // 2, stop - position):
        if qos == 2:
            _forget_incoming(client, packet_ids)
        return 0
    acknowledgements = answers(_PUBACK if qos == 1 else _PUBREC, packet_ids)
    pass_run_on(client, sessions, data[position:stop], segments, qos, acknowledgements, now, sinks)
    return stop


def pass_run_on(
    client: FastClient,
    sessions: tuple[FastSession, ...],
    data: bytes,
    segments: list[Segment],
    qos: int,
    acknowledgements: bytes | bytearray,
    now: float,
    sinks: RunSinks | None = None,
) -> None:
    """Send a run of QoS 1 or 2 PUBLISH packets on to its subscribers, and acknowledge it.

    The messages go to each subscriber at once, or wait for it.

    Args:
        client: it came from.
        sessions: who gets every message of it, granted their QoS, in their protocol version.
        data: whole packets, found to be correct.
        segments: what they are.
        qos: of all.
        acknowledgements: for the publisher.
        now: monotonic seconds.
        sinks: the last of the sessions where those are sinks, which have reserved room.
    """
    core = client.core
    if sinks is not None:
        sessions = sessions[:-1]
    arrived_at = core.arrived_at(now)
    publisher = client.session.known_as
    retain = bool(data[0] & _RETAIN)
    version = client.version
    run = MessageRun(data, segments, qos, version, publisher, arrived_at, now, retain=retain)
    n_messages = run.n_messages
    journal = core.journal
    n_changes = 0 if journal is None else journal.n_changes
    counters = core.counters
    counters.packets_received += n_messages
    counters.publish_received += n_messages
    if retain:
        for message in run.fresh():
            core.router.retain(message)
    if not sessions and isinstance(sessions, Group):
        for member, part in sessions.parts(run):
            _send(core, (member,), part, now)
    else:
        _send(core, sessions, run, now)
    if (
        client.receipts
        or sinks is not None
        or (
            journal is not None
            and (
                journal.n_changes != n_changes or (qos == 2 and client.session.journal is not None)
            )
        )
    ):
        _owe(client, run, acknowledgements, n_changes, sinks)
    else:
        client.sender.send_run(acknowledgements, n_messages, is_state=False)
    if core.turn.congested:
        client.throttle.wait_for_congested(now)


def _send(core: FastCore, sessions: tuple[FastSession, ...], run: MessageRun, now: float) -> None:
    """Send all of a run to each of some sessions at once, or let it wait for them."""
    qos = run.qos
    n_messages = run.n_messages
    n_bytes = len(run.data)
    n_sent = n_held = 0
    for session in sessions:
        sender = session.sender
        inflight = session.inflight
        first = 0
        is_held = qos == 2 and session.journal is not None
        if (  # `Session.sends_at_once`, for all of the run
            session.is_direct
            and sender is not None
            and run.largest_bytes <= (outgoing := session.outgoing).copy_maximum
            and n_messages + inflight.n_messages <= sender.send_quota
            and n_bytes + inflight.n_bytes < sender.send_quota_bytes
            and n_bytes + outgoing.out_bytes < DIRECT_BYTES
            and (not is_held or n_bytes + sender.held_bytes < PUMP_BYTES)
        ):
            first = inflight.start_run(run)
        if not first:
            core.turn.steps += n_messages
            for index in range(n_messages):
                message = run.message(index)
                session.deliver(
                    message, qos, retain=False, subscription_ids=(), now=now, share=run.share
                )
            continue
        if is_held and sender is not None:
            sender.hold_run(run.renumbered(first), n_messages)
            n_held += n_messages
        else:
            outgoing.out.append(run.renumbered(first))
            outgoing.out_bytes += n_bytes
            if not outgoing.is_touched:
                core.turn.write_soon(outgoing)
            n_sent += n_messages
        session.ledger.matched += n_messages
        if core.timing and not (core.spares and now < session.link.quiet_until):
            tell_sent(core, session.link, first, run, now)
    core.counters.packets_sent += n_sent
    core.counters.publish_sent += n_sent + n_held


def _owe(
    client: FastClient,
    run: MessageRun,
    acknowledgements: bytes | bytearray,
    n_changes: int,
    sinks: RunSinks | None,
) -> None:
    """Let acknowledgements wait for earlier ones and for sinks, which get the run here.

    They wait for the commit as `settle_when_safe` does it. The journal had noted `n_changes` before
    the run was passed on; the sinks have reserved room for it.
    """
    core = client.core
    session = client.session
    receipt = RunReceipt(client, run.qos, acknowledgements, () if sinks is None else sinks.sinks)
    client.owe(receipt)
    journal = core.journal
    n_noted = 0 if journal is None else journal.n_changes - n_changes
    if run.qos == 2:
        packet_ids = receipt.packet_ids()
        session.incoming.update(dict.fromkeys(packet_ids, receipt))
        if session.journal is not None:
            receipt.is_stored = True
            for packet_id in packet_ids:
                session.journal.incoming_changed(packet_id)
    if journal is None or not (n_noted or receipt.is_stored):
        receipt.settle(SUCCESS)
    elif receipt.is_stored or run.retain:
        journal.settle_after(receipt, run.payload_bytes, client)
    else:
        journal.settle_after(receipt, run.payload_bytes, client, run, n_noted)
    if sinks is not None:
        sinks.accept(client, run.data, run.n_messages, run.qos, receipt)
    if client.n_owed >= client.receive_maximum and not client.may_receive:
        core.turn.touch(client.outgoing)


class RunReceipt(PublishReceipt):
    """The acknowledgements that a publisher is owed for a run of QoS 1 or 2 messages."""

    __slots__ = ("_packets", "_singles")

    def __init__(
        self,
        client: FastClient,
        qos: int,
        packets: bytes | bytearray,
        sinks: tuple[MessageSink, ...] = (),
    ) -> None:
        """Owe some acknowledgements, for which the broker's own answer is missing.

        Args:
            client: they go to.
            qos: 1 or 2.
            packets: the acknowledgements.
            sinks: that are to answer, too.
        """
        super().__init__(client, 0, qos, 1 + len(sinks))
        self.n_messages = len(packets) // PACKET_BYTES
        self.was_routed = True
        self.sinks = sinks
        self._packets = packets
        self._singles: list[PublishReceipt] | None = None

    @property
    def deduplication_id(self) -> bytes:
        """Nothing: a message that may be a repeat is in no run."""
        return b""

    def packet_ids(self) -> list[int]:
        """Return the Packet Identifiers of the messages."""
        ids = zip(self._packets[2::PACKET_BYTES], self._packets[3::PACKET_BYTES], strict=True)
        return [high << 8 | low for high, low in ids]

    def settle(self, reason_code: int) -> None:
        """Take one answer for all messages; the last one sends the acknowledgements."""
        if self._singles is not None:
            for single in self._singles:
                single.settle(reason_code)
            return
        if reason_code >= 0x80:
            self.reason_code = reason_code
        self._n_waiting -= 1
        if self._n_waiting == 0:
            self._settled()

    def note_received(self, session: Session) -> None:
        """Note that the messages were received, or may come again as they were refused."""
        if self.reason_code >= 0x80:
            for packet_id in self.packet_ids():
                session.incoming.pop(packet_id, None)
        else:
            session.incoming.update(dict.fromkeys(self.packet_ids()))

    def send(self) -> None:
        """Send the acknowledgements."""
        if self.reason_code:
            for single in self.singles():
                single.send()
        else:
            self.client.sender.send_run(self._packets, self.n_messages, is_state=False)

    def singles(self) -> list[PublishReceipt]:
        """Return a receipt for each message: they may come again one by one."""
        incoming = self.client.session.incoming
        self._singles = []
        for packet_id in self.packet_ids():
            single = PublishReceipt(self.client, packet_id, self.qos, self._n_waiting)
            single.is_settled, single.is_stored = self.is_settled, self.is_stored
            single.reason_code, single.sinks = self.reason_code, self.sinks
            single.was_routed = True
            self._singles.append(single)
            if self.qos == 2 and not self.is_settled:
                incoming[packet_id] = single
        return self._singles


def takes_run(
    client: FastClient,
    sessions: tuple[FastSession, ...],
    qos: int,
    n_messages: int,
    n_bytes: int,
    *,
    retain: bool = False,
) -> bool:
    """Say whether messages may go as a run: all sessions have room, and so has the disk."""
    core = client.core
    journal = core.journal
    if (
        journal is not None
        and (retain or has_durable(sessions) or (qos == 2 and client.session.journal is not None))
        and not journal.takes_run(n_messages, n_bytes, len(sessions))
    ):
        return False
    room = core.room
    if room.over_half or (room.rejects and len(sessions) > MANY_SESSIONS):
        if sinks_of(sessions) is not None:
            sessions = sessions[:-1]
        return room.has_room_for_run(sessions, n_messages, n_bytes)
    return True


def _find_run(
    client: FastClient, data: bytes, position: int, start: int, stop: int
) -> tuple[tuple[FastSession, ...], list[Segment], bytearray, int] | None:
    """Find packets that may go together; note the Packet Identifiers of QoS 2 as received.

    Returns:
        (who gets them, what they are, their Packet Identifiers, where the last of them ends);
        None where the first packet is not for this way.
    """
    core = client.core
    version = client.version
    plans = client.fast_plans
    first_byte = data[position]
    qos = (first_byte >> 1) & 3
    retain = bool(first_byte & _RETAIN)
    run_start = position
    sessions: tuple[FastSession, ...] | None = None
    segments: list[Segment] = []
    packet_ids = bytearray()
    n_left = _MOST_PACKETS
    most_bytes = min(JOIN_BELOW_BYTES, core.limits.maximum_packet_size)
    try:
        while start:
            # As `read_publish_head`, whose call takes 0.3 us of the 2 us for all that the core does
            # for a packet that is unlike its neighbours; with properties it is called.
            if stop - start < _LEAST_PUBLISH_BYTES:
                break
            topic_end = start + 2 + (data[start] << 8 | data[start + 1])
            properties_at = payload_at = topic_end + 2
            if version == MQTT_5:
                payload_at += 1
                if data[properties_at:payload_at] != b"\0":
                    topic_end, _, properties_at, payload_at = read_publish_head(
                        data, first_byte, start, stop, version
                    )
            if payload_at > stop:
                break
            packet_bytes = stop - position
            topic_bytes = data[start + 2 : topic_end]
            plan = plans.get(topic_bytes) or core.fast_plan(topic_bytes, client)
            if plan.least_qos < qos or packet_bytes > most_bytes:
                break
            if retain and (not plan.takes_retained or payload_at == stop):
                break  # an empty payload removes what is retained
            if plan.sessions is not sessions:
                if sessions is not None:
                    break
                sessions = plan.sessions
                n_bytes = len(data) - position
                n_left = _most_together(client, sessions, qos, n_bytes, most_bytes, retain=retain)
                if not n_left:
                    break
            properties = data[properties_at:payload_at]
            if stop - payload_at > plan.threshold_s or (
                len(properties) > 1 and not may_go_on(client, properties)
            ):
                break
            last = min(len(data), position + n_left * packet_bytes) - packet_bytes
            next_at = end_of_like(data, position, stop, topic_end, properties, last)
            found_ids = packet_ids_at(data, topic_end, next_at, packet_bytes)
            if b"\0\0" in found_ids and not all(map(or_, found_ids[::2], found_ids[1::2])):
                break  # [MQTT-2.2.1-3]
            if qos == 2 and not _note_incoming(client, found_ids):
                break
            packet_ids += found_ids
            n_messages = len(found_ids) // 2
            packet_at, packet_id_at = position - run_start, topic_end - run_start
            segments.append(
                (n_messages, packet_at, packet_bytes, packet_id_at, stop - payload_at, plan.topic)
            )
            n_left -= n_messages
            position = next_at
            start, stop = _next_packet(data, position, first_byte) if n_left else (0, 0)
    except PeerError:
        pass  # the packet behind the run is malformed: it is met again, and then refused
    if sessions is None or not segments:
        return None
    return sessions, segments, packet_ids, position


def _most_together(
    client: FastClient,
    sessions: tuple[FastSession, ...],
    qos: int,
    n_bytes: int,
    most_bytes: int,
    *,
    retain: bool,
) -> int:
    """Return how many messages may go as one run; 0 where the first is not for this way.

    They and what follows them have `n_bytes`, and the largest that may be one of them `most_bytes`.
    """
    if retain and not _may_retain(client, sessions, n_bytes):
        return 0
    n_most = _MOST_PACKETS
    if not are_direct(sessions):
        n_most = max(1, _MOST_DELIVERIES // len(sessions))
    n_most = min(n_most, quota_left(client, sessions, qos, retain=retain))
    n_at_most = min(n_most, n_bytes // _LEAST_PUBLISH_BYTES)
    if not n_most or not takes_run(client, sessions, qos, n_at_most, n_bytes, retain=retain):
        return 0
    if not sessions and isinstance(sessions, Group):
        return sessions.prepare(qos, n_at_most, n_bytes, min(n_bytes, most_bytes))
    return n_most


def _may_retain(client: FastClient, sessions: tuple[FastSession, ...], n_bytes: int) -> bool:
    """Say whether messages that are to be retained may go as a run.

    Where one may have to be refused, each is looked at by itself. Where a durable session gets
    them, they are stored once for it and as retained ones.
    """
    core = client.core
    return (
        core.options.retain_available
        and not has_durable(sessions)
        and (
            client.version != MQTT_5
            or core.retained.has_room_for_run(n_bytes, client.session.known_as)
        )
    )


def _next_packet(data: bytes, position: int, first_byte: int) -> tuple[int, int]:
    """Return where the variable header of a packet begins and ends.

    Returns:
        (0, 0) where it is not whole, begins by another byte, or says its length in more bytes than
        are needed.

    Raises:
        MalformedPacketError: its Remaining Length goes on after four bytes.
    """
    end = len(data)
    if end - position < 3 or data[position] != first_byte:
        return 0, 0
    start, length = position + 2, data[position + 1]
    if length > 0x7F:
        start, length = read_remaining_length(data, position)
    stop = start + length
    return (start, stop) if stop <= end and data[start - 1] else (0, 0)


def may_go_on(client: FastClient, encoded: bytes) -> bool:
    """Say whether the properties of a PUBLISH may go on as they came.

    Applications often say the same in each packet: what was found good once is only compared.

    Returns:
        False where they are wrong, or large, or mean something to the broker itself.
    """
    if encoded == client.known_properties:
        return True
    core = client.core
    limits = core.limits
    if client.is_relay or len(encoded) > min(SMALL_PROPERTIES_BYTES, limits.properties_bytes):
        return False  # those of a relay say which QoS its message has
    properties, _ = read_publish_properties(encoded, 0, limits.properties)
    if "topic_alias" in properties or "subscription_identifier" in properties:
        return False
    if properties.get("message_expiry_interval") == 0:  # it expires at once
        return False
    if core.options.check_payload_format and "payload_format_indicator" in properties:
        return False
    client.known_properties = encoded
    return True


def _note_incoming(client: FastClient, packet_ids: bytes | bytearray) -> bool:
    """Note the Packet Identifiers of new QoS 2 messages as received [MQTT-4.3.3-10].

    Returns:
        False, and nothing is noted, where one of them is no new one.
    """
    incoming = client.session.incoming
    new = dict.fromkeys(
        high << 8 | low for high, low in zip(packet_ids[::2], packet_ids[1::2], strict=True)
    )
    if 2 * len(new) != len(packet_ids) or not incoming.keys().isdisjoint(new):
        return False
    incoming.update(new)
    return True


def _forget_incoming(client: FastClient, packet_ids: bytes | bytearray) -> None:
    """Take back what `_note_incoming` has noted: the plain way is to look at each message."""
    for high, low in zip(packet_ids[::2], packet_ids[1::2], strict=True):
        del client.session.incoming[high << 8 | low]


def has_durable(sessions: tuple[FastSession, ...]) -> bool:
    """Say whether what is sent to any of them must be stored."""
    for session in sessions:  # noqa: SIM110 (hot: a generator costs more than most loops here)
        if session.journal is not None:
            return True
    return False


def quota_left(
    client: FastClient, sessions: tuple[FastSession, ...], qos: int, *, retain: bool = False
) -> int:
    """Return how many more messages a client may surely have unacknowledged, 0 at least.

    Those behind them are counted as `check_receive_maximum` does it. That counts no QoS 1 message
    that is acknowledged at once.
    """
    if client.keeps_no_receive_maximum:
        return _MOST_PACKETS
    core = client.core
    receipts = client.receipts
    awaits = core.journal is not None and (retain or has_durable(sessions))
    if core.run_sinks and sinks_of(sessions) is not None:
        awaits = True
    if qos == 1 and not receipts and not awaits:
        return _MOST_PACKETS
    n_owed = len(client.session.incoming) + sum(r.n_messages for r in receipts if r.qos == 1)
    least = 1 if qos == 1 and not receipts else 0
    return max(least, client.receive_maximum - n_owed)


def _take_last(
    client: FastClient, data: bytes, position: int, _start: int, _stop: int, now: float
) -> int:
    """Take a run of PUBACK or PUBCOMP packets, in the order of sending."""
    session = client.session
    inflight = session.inflight
    qos = 1 if data[position] == _PUBACK else 2
    first, n_packets = inflight.finish_run(qos, data, position)
    if not n_packets:
        return 0
    core = client.core
    core.counters.packets_received += n_packets
    session.ledger.delivered += n_packets
    if qos == 1 and core.timing:
        sample(session, core, first, n_packets, now)
    made_room(client, session)
    return position + n_packets * PACKET_BYTES


def _take_pubrecs(
    client: FastClient, data: bytes, position: int, _start: int, _stop: int, now: float
) -> int:
    """Take a run of PUBREC packets, in the order of sending, and answer it [MQTT-4.3.3-4]."""
    session = client.session
    first, n_packets = session.inflight.release_run(data, position)
    if not n_packets:
        return 0
    core = client.core
    core.counters.packets_received += n_packets
    if core.timing:
        sample(session, core, first, n_packets, now)
    client.sender.send_run(packets_from(ALL_PUBREL, first, n_packets), n_packets, is_state=True)
    return position + n_packets * PACKET_BYTES


def _take_pubrels(
    client: FastClient, data: bytes, position: int, _start: int, _stop: int, _now: float
) -> int:
    """Take a run of PUBREL packets and answer it [MQTT-4.3.3-11]."""
    session = client.session
    n_packets = min((len(data) - position) // PACKET_BYTES, _MOST_PACKETS)
    stop = position + n_packets * PACKET_BYTES
    heads = data[position:stop:PACKET_BYTES]
    lengths = data[position + 1 : stop : PACKET_BYTES]
    n_packets -= max(len(heads.lstrip(bytes((_PUBREL,)))), len(lengths.lstrip(b"\x02")))
    if not n_packets:
        return 0
    stop = position + n_packets * PACKET_BYTES
    incoming = session.incoming
    n_known = 0
    for high, low in zip(
        data[position + 2 : stop : PACKET_BYTES],
        data[position + 3 : stop : PACKET_BYTES],
        strict=True,
    ):
        packet_id = high << 8 | low
        if incoming.get(packet_id, _UNKNOWN) is not None:
            break
        del incoming[packet_id]
        if session.journal is not None:
            session.journal.incoming_changed(packet_id)
        n_known += 1
    if not n_known:
        return 0
    stop = position + n_known * PACKET_BYTES
    packet_ids = packet_ids_at(data, position + 2, stop, PACKET_BYTES)
    core = client.core
    core.counters.packets_received += n_known
    client.sender.send_run(answers(_PUBCOMP, packet_ids), n_known, is_state=True)
    return stop


TAKE_RUN: Final[dict[int, Callable[[Any, bytes, int, int, int, float], int]]] = {
    0x32: _take_publishes,
    0x33: _take_publishes,
    0x34: _take_publishes,
    0x35: _take_publishes,
    _PUBACK: _take_last,
    _PUBREC: _take_pubrecs,
    _PUBREL: _take_pubrels,
    _PUBCOMP: _take_last,
}
"""First byte of a packet to what takes a run of such.

Each takes (client, data, position of the first packet, where its variable header begins, where
it ends, now), and returns where the run ends; 0 where its first packet is not for this way.
"""
