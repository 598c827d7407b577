"""Runs of QoS 1 and 2 packets: PUBLISH packets for the same subscribers, and acknowledgements.

Theory of operation. A busy client sends its packets in chunks, and most neighbours in a chunk are
alike: PUBLISH packets of one topic and length, or acknowledgements in the order in which the
messages were sent. Such a *run* is found by comparing bytes, and handled at once: the subscribers
are looked up once, their inflight windows share one `MessageRun`, each of them gets one copy of the
bytes in which only the Packet Identifiers differ, and the publisher gets one string of
acknowledgements. A run may be a single packet.

Each function here returns 0 before it has changed anything, and leaves the packet to the plain way,
in three cases:
* A sink, a shared subscription or a journal has to be told of each packet, or the publisher is owed
  an earlier acknowledgement (`FastCore.fast_plans` and the functions themselves).
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
from penstock.broker.fast_paths.message_run import MessageRun, Segment
from penstock.broker.mqtt.enums import MQTT_5
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
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
from penstock.broker.sending.sender import ANSWER_MEMORY_BYTES
from penstock.broker.sessions.session import DIRECT_BYTES

if TYPE_CHECKING:
    from penstock.broker.fast_paths.fast_connection import FastClient
    from penstock.broker.fast_paths.fast_core import FastCore, FastSession
    from penstock.broker.sending.sender import WriteQueue

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
    if client.receipts or client.sender.held:
        return 0
    qos = (data[position] >> 1) & 3
    if qos == 2 and (client.session.journal is not None or client.is_relay):
        return 0
    if not data[start - 1]:
        return 0  # a Remaining Length that is not in its shortest form [MQTT-1.5.5-1]
    found = _find_run(client, data, position, start, stop)
    if found is None:
        return 0
    sessions, segments, packet_ids, stop = found
    acknowledgements = answers(_PUBACK if qos == 1 else _PUBREC, packet_ids)
    pass_run_on(client, sessions, data[position:stop], segments, qos, acknowledgements, now)
    return stop


def pass_run_on(
    client: FastClient,
    sessions: tuple[FastSession, ...],
    data: bytes,
    segments: list[Segment],
    qos: int,
    acknowledgements: bytes | bytearray,
    now: float,
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
    """
    core = client.core
    arrived_at = core.arrived_at(now)
    publisher = client.session.known_as
    run = MessageRun(data, segments, qos, client.version, publisher, arrived_at, now)
    n_messages = run.n_messages
    counters = core.counters
    counters.packets_received += n_messages
    counters.publish_received += n_messages
    n_bytes = len(data)
    n_sent = 0
    for session in sessions:
        sender = session.sender
        inflight = session.inflight
        first = 0
        if (  # `Session.sends_at_once`, for all of the run
            session.is_direct
            and sender is not None
            and run.largest_bytes <= (outgoing := session.outgoing).copy_maximum
            and n_messages + inflight.n_messages <= sender.send_quota
            and n_bytes + inflight.n_bytes < sender.send_quota_bytes
            and (out_bytes := n_bytes + outgoing.out_bytes) < DIRECT_BYTES
        ):
            first = inflight.start_run(run)
        if not first:
            core.turn.steps += n_messages
            for index in range(n_messages):
                message = run.message(index)
                session.deliver(message, run.qos, retain=False, subscription_ids=(), now=now)
            continue
        outgoing.out.append(run.renumbered(first))
        outgoing.out_bytes = out_bytes
        if not outgoing.is_touched:
            core.turn.write_soon(outgoing)
        session.ledger.matched += n_messages
        n_sent += n_messages
        if core.timing and not (core.spares and now < session.link.quiet_until):
            _tell_sent(core, session, first, run, now)
    counters.packets_sent += n_sent
    counters.publish_sent += n_sent
    answer(core, client.outgoing, acknowledgements, n_messages)
    if core.turn.congested:
        client.throttle.wait_for_congested(now)


def takes_run(
    core: FastCore, sessions: tuple[FastSession, ...], n_messages: int, n_bytes: int
) -> bool:
    """Say whether messages for some sessions may go as a run: none is stored, all have room."""
    if core.journal is not None and has_durable(sessions):
        return False
    room = core.room
    if room.over_half or (room.rejects and len(sessions) > MANY_SESSIONS):
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
            if plan.sessions is not sessions:
                if sessions is not None:
                    break
                sessions = plan.sessions
                if not are_direct(sessions):
                    n_left = max(1, _MOST_DELIVERIES // len(sessions))
                n_bytes = len(data) - position
                n_most = min(n_left, n_bytes // _LEAST_PUBLISH_BYTES)
                if not takes_run(core, sessions, n_most, n_bytes):
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

    Args:
        client: it came from.
        encoded: Property Length and properties, one at least.

    Returns:
        False where they are wrong, or large, or mean something to the broker itself.
    """
    if encoded == client.known_properties:
        return True
    core = client.core
    limits = core.limits
    if len(encoded) > min(SMALL_PROPERTIES_BYTES, limits.properties_bytes):
        return False
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
        False, and nothing is noted, where one of them is no new one, or they are more than the
        client may have unacknowledged.
    """
    incoming = client.session.incoming
    n_messages = len(packet_ids) // 2
    is_over = len(incoming) + n_messages > client.receive_maximum
    if is_over and not client.keeps_no_receive_maximum:
        return False
    new = dict.fromkeys(
        high << 8 | low for high, low in zip(packet_ids[::2], packet_ids[1::2], strict=True)
    )
    if len(new) != n_messages or not incoming.keys().isdisjoint(new):
        return False
    incoming.update(new)
    return True


def has_durable(sessions: tuple[FastSession, ...]) -> bool:
    """Say whether what is sent to any of them must be stored."""
    for session in sessions:  # noqa: SIM110 (hot: a generator costs more than most loops here)
        if session.inflight.journal is not None:
            return True
    return False


def answer(
    core: FastCore, outgoing: WriteQueue, packets: bytes | bytearray, n_packets: int
) -> None:
    """Put acknowledgements of success into `out`.

    Args:
        core: the broker.
        outgoing: to the client whose packets they answer.
        packets: whole ones, without a reason code.
        n_packets: how many.
    """
    outgoing.out.append(packets)
    outgoing.out_bytes += len(packets)
    core.counters.packets_sent += n_packets
    if outgoing.is_paused:
        outgoing.unread_bytes += n_packets * ANSWER_MEMORY_BYTES
        core.turn.touch(outgoing)  # it may be too much to read on
    elif not outgoing.is_touched:
        core.turn.write_soon(outgoing)


def _take_last(
    client: FastClient, data: bytes, position: int, _start: int, _stop: int, now: float
) -> int:
    """Take a run of PUBACK or PUBCOMP packets, in the order of sending."""
    session = client.session
    inflight = session.inflight
    if inflight.journal is not None:
        return 0
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
    if session.inflight.journal is not None or client.sender.held:
        return 0
    first, n_packets = session.inflight.release_run(data, position)
    if not n_packets:
        return 0
    core = client.core
    core.counters.packets_received += n_packets
    if core.timing:
        sample(session, core, first, n_packets, now)
    answer(core, client.outgoing, packets_from(ALL_PUBREL, first, n_packets), n_packets)
    return position + n_packets * PACKET_BYTES


def _take_pubrels(
    client: FastClient, data: bytes, position: int, _start: int, _stop: int, _now: float
) -> int:
    """Take a run of PUBREL packets and answer it [MQTT-4.3.3-11]."""
    session = client.session
    if session.journal is not None or client.sender.held:
        return 0
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
        n_known += 1
    if not n_known:
        return 0
    stop = position + n_known * PACKET_BYTES
    packet_ids = packet_ids_at(data, position + 2, stop, PACKET_BYTES)
    core = client.core
    core.counters.packets_received += n_known
    answer(core, client.outgoing, answers(_PUBCOMP, packet_ids), n_known)
    return stop


def _tell_sent(
    core: FastCore, session: FastSession, first: int, run: MessageRun, now: float
) -> None:
    link = session.link
    for sampler in core.timing:
        packet_id = first
        try:
            if run.n_messages == 1:
                sampler.sent(link, first, run.payload_bytes, now)
                continue
            for n_packets, _, _, _, n_bytes, _ in run.segments:
                sampler.sent_run(link, packet_id, n_packets, n_bytes, now)
                packet_id += n_packets
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not the client's)
            core.guard.failed(sampler, error)


TAKE_RUN: Final[dict[int, Callable[[Any, bytes, int, int, int, float], int]]] = {
    0x32: _take_publishes,
    0x34: _take_publishes,
    _PUBACK: _take_last,
    _PUBREC: _take_pubrecs,
    _PUBREL: _take_pubrels,
    _PUBCOMP: _take_last,
}
"""First byte of a packet to what takes a run of such.

Each takes (client, data, position of the first packet, where its variable header begins, where
it ends, now), and returns where the run ends; 0 where its first packet is not for this way.
"""
