"""PUBLISH from a client: from bytes to the router, and back to its acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access_control import PUBLISH
from penstock.broker.config.capabilities import check_publish, is_payload_valid
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.events import MessageReceived
from penstock.broker.extensions import NEVER_FITS, QOS_PROPERTY, UPLINK_PROPERTIES
from penstock.broker.message import Message, Properties
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.packets import REASON_CODES, PubAck, PubRec
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.topics import read_topic
from penstock.broker.payload import STORED_ABOVE_BYTES, Payload
from penstock.broker.receiving.pending_acknowledgements import book_receipt, check_receive_maximum
from penstock.broker.receiving.publish_routing import (
    hold,
    reserve,
    route_allowed,
    route_held,
    settle_when_safe,
    taken,
)
from penstock.broker.routing.shared_subscriptions import choose_members
from penstock.broker.routing.topic_tree import Plan
from penstock.broker.sessions.bridges import may_publish_sys
from penstock.broker.sessions.client import PublishReceipt

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Target
    from penstock.broker.sessions.broker_state import Core, FastPlan
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

SMALL_PROPERTIES_BYTES: Final = 1024
"""Properties of so few bytes, which is most, do not count towards limits of bytes."""

MEMORY_PER_PROPERTY_BYTE: Final = 16
"""What each byte of larger properties takes in CPython at the worst, in empty user properties."""

MAX_LOGGED_TOPIC: Final = 80
"""Characters of a topic that is refused for its length, in the log."""

DUP: Final = 0x08
"""DUP in the first byte of a PUBLISH."""

_QOS_BITS: Final = 0x06
"""QoS in the first byte of a PUBLISH."""

_QOS_2_OR_DUP: Final = 0x0C
"""Bits in the first byte of a PUBLISH, one of which each PUBLISH that may be a repeat has."""

MOST_HEADER_BYTES: Final = 9
"""Of a PUBLISH besides topic, properties and payload: the first byte, the Remaining Length, the
length of the topic and the Packet Identifier."""

_CLOSING: Final = (ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID)
"""They end the connection where no acknowledgement can say so: at QoS 0 and in MQTT 3.1.1."""

_OF_THE_CONNECTION: Final = (
    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
    ReasonCode.TOPIC_ALIAS_INVALID,
)
"""They are no fault of one message, which may come again."""

_TOPIC_ALIAS_ALONE: Final = b"\x03\x23"
"""Properties that are a Topic Alias and nothing else begin so."""

_NOT_UTF_8: Final = "the payload is not UTF-8, as its Payload Format Indicator says"
_NOT_KEPT: Final = "the broker cannot keep the payload"
_IS_SYS: Final = "topics that begin with $SYS are the broker's own"
_NOT_AUTHORIZED: Final = "not authorized to publish to this topic"
_NO_ROOM_TO_RETAIN: Final = "no room for one more retained message"
_CANNOT_BE_SAFE: Final = "the disk refuses or is full, or too many messages wait for it"


def receive_publish(
    client: Client, data: bytes, first_byte: int, start: int, stop: int, now: float
) -> None:
    """Take one PUBLISH that the fast path does not.

    Args:
        client: it came from.
        data: received bytes.
        first_byte: of the packet.
        start: where its variable header begins in `data`.
        stop: where it ends.
        now: monotonic seconds.

    Raises:
        MalformedPacketError: it cannot be parsed.
        ProtocolError: it is not allowed.
    """
    try:
        _receive(client, data, first_byte, start, stop, now)
    except PeerError as error:
        # Who forwards what others were told is safe would send it again with each connection.
        if not client.is_patient or error.reason_code in _OF_THE_CONNECTION:
            raise
        _refuse_for_good(client, data, first_byte, start, stop, error)


def _refuse_for_good(
    client: Client, data: bytes, first_byte: int, start: int, stop: int, error: PeerError
) -> None:
    """Acknowledge a PUBLISH that is not allowed; it is dropped, and the connection stands.

    Raises:
        PeerError: it cannot be acknowledged.
    """
    qos = (first_byte >> 1) & 3
    topic_end, packet_id, _, _ = read_publish_head(data, first_byte, start, stop, client.version)
    topic = data[start + 2 : topic_end].decode(errors="replace")
    code = error.reason_code
    if code not in REASON_CODES[PacketType.PUBACK]:
        code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    receipt = book_receipt(client, packet_id, qos, 1) if qos else None
    client_id, shown = client.session.client_id, topic[:MAX_LOGGED_TOPIC]
    client.core.router.refuse(client_id, shown, code, told=str(error))
    if receipt is not None:
        receipt.reason = str(error)
        receipt.settle(code if client.version == MQTT_5 else ReasonCode.SUCCESS)


def _receive(
    client: Client, data: bytes, first_byte: int, start: int, stop: int, now: float
) -> None:
    """Take one PUBLISH; see `receive_publish`."""
    core = client.core
    qos = (first_byte >> 1) & 3
    topic_end, packet_id, properties_at, payload_at = read_publish_head(
        data, first_byte, start, stop, client.version
    )
    topic_bytes = data[start + 2 : topic_end]
    properties: dict[str, Any] | None = None
    n_properties_bytes = payload_at - properties_at
    if n_properties_bytes > 1:
        alias = None
        if n_properties_bytes == 4 and data.startswith(_TOPIC_ALIAS_ALONE, properties_at):
            alias = (data[properties_at + 2] << 8) | data[properties_at + 3]
        else:
            if n_properties_bytes > core.limits.properties_bytes:
                n_bytes, _ = read_variable_byte_integer(data, properties_at)
                core.limits.check_properties_bytes(n_bytes)
            most = core.limits.properties + (UPLINK_PROPERTIES if client.is_patient else 0)
            properties, _ = read_publish_properties(data, properties_at, most)
            alias = properties.pop("topic_alias", None)
        if alias is not None:
            topic_bytes = client.incoming_aliases.resolve(alias, topic_bytes)
    if first_byte & _QOS_2_OR_DUP and _is_repeat(client, packet_id, qos):
        return None
    asked_byte = _asked_byte(first_byte, properties) if client.is_relay else first_byte
    plan = core.tree.plans.get(topic_bytes)
    if plan is None:
        topic = _topic(topic_bytes)
        problem = core.limits.topic_problem(topic)
        if problem:
            shown = topic if len(topic) <= MAX_LOGGED_TOPIC else f"{topic[:MAX_LOGGED_TOPIC]}..."
            code = ReasonCode.TOPIC_NAME_INVALID
            return _refuse(client, shown, packet_id, qos, problem, code)
        plan = core.tree.plan(topic, topic_bytes)
    if core.is_restricted:
        check_publish(core.options, asked_byte)
        if not is_payload_valid(core.options, properties, data[payload_at:stop]):
            code = ReasonCode.PAYLOAD_FORMAT_INVALID
            return _refuse(client, plan.topic, packet_id, qos, _NOT_UTF_8, code)
    is_long = stop - payload_at > plan.most_bytes
    if is_long and stop - payload_at > core.most_payload_bytes:
        code = ReasonCode.PACKET_TOO_LARGE
        reason = _payload_problem(core, stop - payload_at)
        return _refuse(client, plan.topic, packet_id, qos, reason, code)
    message = _message(client, plan, data[payload_at:stop], asked_byte, properties, now)
    if message is None:
        if qos and client.is_patient:  # unacknowledged, it comes again
            return client.close(ReasonCode.QUOTA_EXCEEDED, now)
        return _refuse(client, plan.topic, packet_id, qos, _NOT_KEPT)
    if properties is not None and n_properties_bytes > SMALL_PROPERTIES_BYTES:
        message.more_bytes = n_properties_bytes * MEMORY_PER_PROPERTY_BYTE
    is_sys = topic_bytes.startswith(b"$SYS")
    if is_sys and not may_publish_sys(client.session.client_id, plan.topic):
        code = ReasonCode.NOT_AUTHORIZED
        return _refuse(client, plan.topic, packet_id, qos, _IS_SYS, code)
    if core.is_plain and not client.is_relay:
        is_simple = core.takes_runs or (first_byte == 0x30 and properties is None)
        if is_simple and not (first_byte & 1 or is_sys):
            core.fast_plan(plan, client.version)
        if is_long:
            plan = plan.of(message)
        return _take(client, plan, message, packet_id, first_byte, now)
    if core.callbacks.message_received:
        event = MessageReceived(client.session, message)
        core.guard.tell(core.callbacks.message_received, event)
    return client.run(_take_checked(client, plan.of(message), message, packet_id, first_byte, now))


def _asked_byte(first_byte: int, properties: dict[str, Any] | None) -> int:
    """Return the first byte of a relay's PUBLISH with the QoS that it names; see `QOS_PROPERTY`.

    The User Property is removed.
    """
    pairs = [] if properties is None else properties.get("user_property", [])
    if properties is None or not pairs or pairs[-1][0] != QOS_PROPERTY:
        return first_byte
    _, qos = pairs.pop()
    if not pairs:
        del properties["user_property"]
    return first_byte & ~_QOS_BITS | int(qos) << 1


async def relay_problem(
    core: Core,
    session: Session,
    first_byte: int,
    topic: str,
    properties: bytes,
    payload: bytes,
) -> str:
    """Say why a PUBLISH of a relay would be refused; see `LocalClients.publish_problem`."""
    limits = core.limits
    topic_bytes = topic.encode()
    n_bytes = len(topic_bytes) + len(properties) + len(payload) + MOST_HEADER_BYTES
    if n_bytes > limits.maximum_packet_size:
        return f"packet of {n_bytes} bytes; allowed: at most {limits.maximum_packet_size}"
    problem = limits.topic_problem(topic)
    if problem:
        return problem
    try:
        if len(properties) > limits.properties_bytes:
            limits.check_properties_bytes(read_variable_byte_integer(properties, 0)[0])
        found, _ = read_publish_properties(properties, 0, limits.properties)
        check_publish(core.options, first_byte)
    except PeerError as error:
        return str(error)
    if not is_payload_valid(core.options, found, payload):
        return _NOT_UTF_8
    if len(payload) > core.most_payload_bytes:
        return _payload_problem(core, len(payload))
    if topic_bytes.startswith(b"$SYS") and not may_publish_sys(session.client_id, topic):
        return _IS_SYS
    is_allowed = await core.router.is_allowed(session, topic, PUBLISH)
    return "" if is_allowed else _NOT_AUTHORIZED


def _payload_problem(core: Core, n_bytes: int) -> str:
    return f"payload of {n_bytes} bytes; allowed: at most {core.limits.payload_bytes}"


def are_direct(sessions: Sequence[Session]) -> bool:
    """Say whether all of them can just be given a copy of what comes for them."""
    for session in sessions:
        if not session.is_direct or not session.outgoing.copy_maximum:
            return False
    return True


def first_plan(client: Client, topic_bytes: bytes) -> FastPlan | None:
    """Plan for a topic without a publish since plans were made void.

    Args:
        client: the publisher's; the core takes runs.
        topic_bytes: Topic Name, as it came.

    Returns:
        None where its plan is not a fast one, or was made before, or where the topic is to be
        refused: `receive_publish` says why.
    """
    core = client.core
    if not topic_bytes or topic_bytes in core.tree.plans or topic_bytes.startswith(b"$SYS"):
        return None
    try:
        topic = _topic(topic_bytes)
    except PeerError:
        return None
    if core.limits.topic_problem(topic):
        return None
    core.fast_plan(core.tree.plan(topic, topic_bytes), client.version)
    return core.fast_plans[client.version].get(topic_bytes)


def pass_on(
    client: Client,
    sessions: Sequence[Session],
    run: bytes,
    n_messages: int,
    largest: int,
    now: float,
) -> int:
    """Copy a run of QoS 0 PUBLISH packets to the subscribers that all of them have.

    Args:
        client: the publisher's.
        sessions: who gets every packet of the run.
        run: whole packets without properties, one after the other.
        n_messages: how many.
        largest: bytes of the largest of them.
        now: monotonic seconds.

    Returns:
        Bytes of the packets that are done, at least one: fewer than all where some subscribers
        cannot just be given a copy, and all of it would be too many steps at once.
    """
    core = client.core
    direct: list[Session] = []
    waiting: list[Session] = []
    for session in sessions:
        if session.is_direct and largest <= session.outgoing.copy_maximum:
            direct.append(session)
        else:
            waiting.append(session)
    if waiting:
        run, n_messages = _deliver_run(client, waiting, run, now)
    n_bytes = len(run)
    for session in direct:
        outgoing = session.outgoing
        outgoing.out.append(run)
        outgoing.out_bytes += n_bytes
        if not outgoing.is_touched:
            core.turn.write_soon(outgoing)
        session.n_direct += n_messages
    counters = core.counters
    counters.packets_received += n_messages
    counters.publish_received += n_messages
    counters.packets_sent += n_messages * len(direct)
    counters.publish_sent += n_messages * len(direct)
    if waiting:
        client.throttle.wait_for_congested(now)
    return n_bytes


def _deliver_run(
    client: Client, sessions: Sequence[Session], run: bytes, now: float
) -> tuple[bytes, int]:
    """Deliver a run one by one, as far as the steps go; return what was, and how many."""
    core = client.core
    end = len(run)
    position = 0
    n_messages = 0
    while position < end:
        start, length = read_remaining_length(run, position)
        position = start + length
        topic_end, _, _, payload_at = read_publish_head(run, 0x30, start, position, client.version)
        topic_bytes = run[start + 2 : topic_end]
        plan = core.tree.plan(topic_bytes.decode(), topic_bytes)
        message = _message(client, plan, run[payload_at:position], 0x30, None, now)
        n_messages += 1
        core.turn.steps += len(sessions)
        if message is None:
            core.router.refuse(client.session.client_id, plan.topic, ReasonCode.QUOTA_EXCEEDED)
        else:
            for session in sessions:
                own = core.router.for_one(message) if core.copies_payloads else message
                session.deliver(own, 0, retain=False, subscription_ids=(), now=now)
        if core.turn.steps >= core.turn.most_steps:
            break
    return run[:position], n_messages


def _topic(topic_bytes: bytes) -> str:
    """Return the Topic Name of a PUBLISH, checked."""
    if not topic_bytes:
        raise ProtocolError("PUBLISH: neither Topic Name nor Topic Alias (3.3.2.1)")
    return read_topic(topic_bytes)


def _message(
    client: Client,
    plan: Plan,
    payload: bytes,
    first_byte: int,
    properties: Properties | None,
    now: float,
) -> Message | None:
    """Build the one Message that all targets refer to; None where its store has no room."""
    expires_at = None
    if properties:
        if "subscription_identifier" in properties:  # [MQTT-3.3.4-6]
            raise ProtocolError("PUBLISH: Subscription Identifier from a client")
        expires_at = expiry_time(properties, now)
    core = client.core
    stored: Payload = payload
    if len(payload) > STORED_ABOVE_BYTES:
        store = core.payload_store
        kept = core.guard.call(store, store.keep, payload, otherwise=None)
        if kept is None:
            return None
        stored = kept
    return Message(
        plan.topic,
        stored,
        qos=(first_byte >> 1) & 3,
        retain=bool(first_byte & 1),
        arrived_at=core.arrived_at(now, plan.sinks),
        is_large=len(payload) > plan.threshold_s,
        expires_at=expires_at,
        properties=properties,
        publisher=client.session.known_as,
        topic_bytes=plan.topic_bytes,
    )


def _is_repeat(client: Client, packet_id: int, qos: int) -> bool:
    """Answer a PUBLISH that came before [MQTT-4.3.3-10]; return False for another one.

    A QoS 1 message is known while its PUBACK was not sent: until then, nothing else can have its
    packet identifier.

    Args:
        client: it came from.
        packet_id: of the PUBLISH.
        qos: 2, or 1 with DUP.
    """
    session = client.session
    if qos == 1:
        unanswered = session.unanswered.get(packet_id)
        if unanswered is None or unanswered.reason_code >= 0x80:
            return False
        if unanswered.client is client:
            return not unanswered.is_settled
        unanswered.move_to(client)
        return True
    incoming = session.incoming
    if packet_id not in incoming:
        return False
    receipt = incoming[packet_id]
    if not isinstance(receipt, PublishReceipt):
        client.sender.send_packet(PubRec(packet_id))
    elif receipt.client is not client:
        receipt.move_to(client)
    return True


def _take(
    client: Client, plan: Plan, message: Message, packet_id: int, first_byte: int, now: float
) -> None:
    """Route an authorized message and see to its acknowledgement."""
    core = client.core
    if message.qos == 0:
        if message.retain:
            core.router.retain(message)
        chosen = choose_members(message, plan.shares, now) if plan.shares else ()
        core.router.route(message, plan.targets, chosen, now)
        if plan.sinks:
            core.router.offer(message, plan.sinks)
        if core.turn.congested:
            client.throttle.wait_for_congested(now)
        return None
    if client.awaiting:
        return hold(client, message, packet_id, now, is_repeat=bool(first_byte & DUP))
    problem = _problem(client, plan, message)
    if problem and client.is_patient:
        return hold(client, message, packet_id, now, is_repeat=bool(first_byte & DUP))
    if problem:
        return _refuse(client, plan.topic, packet_id, message.qos, problem)
    journal = core.journal
    n_changes = journal.n_changes if journal is not None else 0
    chosen = choose_members(message, plan.shares, now) if plan.shares else ()
    if plan.sinks or client.receipts:
        receipt = book_receipt(client, packet_id, message.qos, 1, is_repeat=bool(first_byte & DUP))
        return _take_booked(receipt, plan, message, chosen, n_changes, now)
    if core.room.rejects:
        waits = client.waits_for_room
        full = core.room.lacks(
            message,
            plan.targets,
            chosen,
            now,
            can_tell=not waits,
            awaits_absent=client.forwards,
        )
        if full and waits:
            return hold(client, message, packet_id, now, is_repeat=bool(first_byte & DUP))
        if full:
            qos = message.qos
            return _refuse(client, plan.topic, packet_id, qos, no_room(full), counted_as=full)
    if message.retain:
        core.router.retain(message)
    if message.qos == 2:
        check_receive_maximum(client)
    core.router.route(message, plan.targets, chosen, now)
    if journal is not None and (
        journal.n_changes != n_changes or (message.qos == 2 and client.session.journal is not None)
    ):
        receipt = book_receipt(client, packet_id, message.qos, 1)
        receipt.reason_code = taken(client, plan)
        settle_when_safe(receipt, n_changes, plan, message)
    else:
        if message.qos == 2:
            client.session.incoming[packet_id] = None
        if plan.targets or plan.shares:
            client.sender.send_receipt(0x40 if message.qos == 1 else 0x50, packet_id)
        else:
            kind = PubAck if message.qos == 1 else PubRec
            client.sender.send_packet(kind(packet_id, taken(client, plan)))
    if core.turn.congested:
        client.throttle.wait_for_congested(now)
    return None


def _take_booked(
    receipt: PublishReceipt,
    plan: Plan,
    message: Message,
    chosen: Sequence[tuple[SharedSubscription, Target]],
    n_changes: int,
    now: float,
) -> None:
    """Route a message that sinks get, or whose acknowledgement has to wait for earlier ones.

    Args:
        receipt: of the message, with one answer missing.
        plan: of its topic.
        message: authorized, of QoS 1 or 2.
        chosen: the chosen members of shared subscriptions.
        n_changes: changes in the journal so far.
        now: monotonic seconds.
    """
    client = receipt.client
    core = client.core
    full = reserve(receipt, message, plan, plan.targets, chosen, now)
    if full and client.waits_for_room and full != NEVER_FITS:
        return core.room.hold(receipt, message, route_held, now)
    if full:
        return _refuse_full(receipt, plan.topic, full)
    if message.retain:
        core.router.retain(message)
    receipt.sinks = plan.sinks
    receipt.wait_for(len(plan.sinks))
    receipt.reason_code = taken(client, plan)
    if not receipt.was_routed:
        receipt.was_routed = True
        if plan.targets or chosen:
            core.router.route(message, plan.targets, chosen, now)
    core.router.store(message, plan.sinks, receipt)
    settle_when_safe(receipt, n_changes, plan, message)
    if core.turn.congested:
        client.throttle.wait_for_congested(now)
    return None


async def _take_checked(
    client: Client, plan: Plan, message: Message, packet_id: int, first_byte: int, now: float
) -> None:
    """As `_take`, with access control and callbacks in the way.

    The receipt is booked before the first wait and settled after the last: the client may come
    back on another connection meanwhile and repeat the message [MQTT-4.3.3-10].
    """
    core = client.core
    receipt = None
    qos = (first_byte & _QOS_BITS) >> 1  # of the exchange: a relay's message may have another
    if qos:
        receipt = book_receipt(client, packet_id, qos, 1, is_repeat=bool(first_byte & DUP))
    try:
        if not await core.router.is_allowed(client.session, message.topic, PUBLISH):
            code = ReasonCode.NOT_AUTHORIZED
            return _refuse_booked(client, receipt, plan.topic, _NOT_AUTHORIZED, code)
        if receipt is not None:
            if receipt.client.awaiting:
                return core.room.hold(receipt, message, route_held, now)
            problem = _problem(receipt.client, plan, message)
            if problem and receipt.client.is_patient:
                return core.room.hold(receipt, message, route_held, now)
            if problem:
                return _refuse_booked(client, receipt, plan.topic, problem)
        full = await route_allowed(client, receipt, plan, message, now)
    except BaseException:  # cancelled, such as by a plugin: the client must not wait endlessly
        if receipt is not None:
            receipt.settle(ReasonCode.UNSPECIFIED_ERROR)
        raise
    if not full or receipt is None:
        return None
    if receipt.client.waits_for_room and full != NEVER_FITS:
        return core.room.hold(receipt, message, route_held, now)
    return _refuse_full(receipt, plan.topic, full)


def _problem(client: Client, plan: Plan, message: Message) -> str:
    """Say why a QoS 1 or 2 message cannot be taken, before its subscribers are looked at.

    MQTT 3.1.1 has no reason code for a message that cannot be retained. Were such a client's
    connection closed, it would send the same message again after each reconnect: the message is
    routed, and not retained. So is that of a patient client, which has nobody to tell.

    Returns:
        The reason, for a refusal with `QUOTA_EXCEEDED`; "" for none.
    """
    core = client.core
    journal = core.journal
    if journal is not None and journal.must_refuse(client.session, plan, message):
        return _CANNOT_BE_SAFE
    can_tell = client.version == MQTT_5 and not client.is_patient
    if message.retain and can_tell and not core.retained.has_room(message):
        return _NO_ROOM_TO_RETAIN
    return ""


def no_room(reason: str) -> str:
    """Say in words why there is no room for a message.

    Args:
        reason: of `Room.lacks`, or a sink's.
    """
    return f"no room for it in a queue of a subscriber or of the broker: {reason}"


def _refuse_full(receipt: PublishReceipt, topic: str, full: str) -> None:
    """Refuse a publish for which there is no room; one that never fits as one too large."""
    code = ReasonCode.PACKET_TOO_LARGE if full == NEVER_FITS else ReasonCode.QUOTA_EXCEEDED
    _refuse_booked(receipt.client, receipt, topic, no_room(full), code, counted_as=full)


def _refuse(
    client: Client,
    topic: str,
    packet_id: int,
    qos: int,
    reason: str,
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED,
    counted_as: str = "",
) -> None:
    """Refuse a publish before it was routed, and acknowledge it as far as the version allows.

    Raises:
        ProtocolError: for a reason that closes the connection (`_CLOSING`).
    """
    if reason_code in _CLOSING and (not qos or client.version != MQTT_5):
        raise ProtocolError(f"PUBLISH: {reason}", reason_code)
    receipt = book_receipt(client, packet_id, qos, 1) if qos else None
    _refuse_booked(client, receipt, topic, reason, reason_code, counted_as)


def _refuse_booked(
    client: Client,
    receipt: PublishReceipt | None,
    topic: str,
    reason: str,
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED,
    counted_as: str = "",
) -> None:
    """Refuse a publish whose receipt is booked, if it gets one.

    MQTT 3.1.1 has no reason codes: a client sends an unacknowledged message again after each
    reconnect. A message that is not authorized [MQTT-3.3.5-2] or too large is therefore
    acknowledged and not delivered. One that cannot be kept closes the connection, unacknowledged.

    Args:
        client: the publisher's.
        receipt: with one answer missing; None at QoS 0.
        topic: Topic Name.
        reason: why, in words.
        reason_code: for the publisher.
        counted_as: what the refusal is counted as; "" for the name of the reason code.
    """
    client.core.router.refuse(client.session.client_id, topic, reason_code, counted_as)
    if receipt is None:
        return
    receipt.reason = reason
    is_too_large = reason_code == ReasonCode.PACKET_TOO_LARGE
    if receipt.client.version != MQTT_5:
        if is_too_large or reason_code == ReasonCode.NOT_AUTHORIZED:
            reason_code = ReasonCode.SUCCESS
    elif is_too_large:  # PUBACK and PUBREC have no such code: it is a quota (3.4.2.1)
        reason_code = ReasonCode.QUOTA_EXCEEDED
    receipt.settle(reason_code)
