"""A PUBLISH from a client: from its bytes to its subscribers, and back to its acknowledgement.

Theory of operation, in the order of this file. `receive_publish` reads the packet, checks it
against the limits, and builds the one `Message` that all subscribers refer to. `take_publish` asks
access control whether the client may publish it. `route_allowed` reserves room for it, retains it
if it asks for that, and hands it to the router. A message without room is refused, or held until
there is room.

A QoS 1 or 2 message has a *receipt* from the moment it is taken. The subscribers' queues, the disk
and access control may answer in any order: the receipt counts the answers, and receipts are
acknowledged in the order in which their messages came [MQTT-4.6.0-2].

`penstock.broker.fast_paths` puts shorter ways before this one. They lead to the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access_control import PUBLISH
from penstock.broker.config.capabilities import check_publish, is_payload_valid
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.events import MessageReceived, MessageRouted
from penstock.broker.extensions import NEVER_FITS, QOS_PROPERTY, UPLINK_PROPERTIES
from penstock.broker.message import OF_MQTT_3, Message, Properties
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import MQTT_5, PacketType
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.mqtt.packets import REASON_CODES, PubRec
from penstock.broker.mqtt.properties import read_publish_properties
from penstock.broker.mqtt.publish_head import read_publish_head
from penstock.broker.mqtt.reason_codes import SUCCESS, ReasonCode
from penstock.broker.mqtt.topic_aliases import NO_ALIASES, IncomingAliases
from penstock.broker.mqtt.topics import read_topic
from penstock.broker.payload import STORED_ABOVE_BYTES, Payload
from penstock.broker.routing.shared_subscriptions import choose_members
from penstock.broker.routing.topic_tree import Plan
from penstock.broker.sessions.bridges import may_publish_sys
from penstock.broker.sessions.client import PublishReceipt

if TYPE_CHECKING:
    from penstock.broker.routing.shared_subscriptions import SharedSubscription
    from penstock.broker.routing.topic_tree import Target
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

SMALL_PROPERTIES_BYTES: Final = 1024
"""Properties of so few bytes do not count towards limits of bytes. Most messages have no more."""

MEMORY_PER_PROPERTY_BYTE: Final = 16
"""Memory that CPython takes for a byte of larger properties in the worst case, that of empty user
properties."""

MAX_LOGGED_TOPIC: Final = 80
"""Characters of a topic that is refused for its length, in the log."""

DUP: Final = 0x08
"""DUP in the first byte of a PUBLISH."""

_QOS_BITS: Final = 0x06
"""QoS in the first byte of a PUBLISH."""

_QOS_2_OR_DUP: Final = 0x0C
"""Bits in the first byte of a PUBLISH. One that may be a repeat has at least one of them."""

MOST_HEADER_BYTES: Final = 9
"""The most bytes that a PUBLISH has besides topic, properties and payload: the first byte, the
Remaining Length, the length of the topic and the Packet Identifier."""

_CLOSING: Final = (ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID)
"""Reason codes that end the connection where no acknowledgement can carry them: at QoS 0 and in
MQTT
3.1.1."""

_OF_THE_CONNECTION: Final = (ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, ReasonCode.TOPIC_ALIAS_INVALID)
"""Reason codes that are not caused by one message, so that the message may come again."""

_TOPIC_ALIAS_ALONE: Final = b"\x03\x23"
"""The beginning of encoded properties that are one Topic Alias and nothing else."""

_NOT_UTF_8: Final = "the payload is not UTF-8, as its Payload Format Indicator says"
_NOT_KEPT: Final = "the broker cannot keep the payload"
_IS_SYS: Final = "topics that begin with $SYS are the broker's own"
_NOT_AUTHORIZED: Final = "not authorized to publish to this topic"
_NO_ROOM_TO_RETAIN: Final = "no room for one more retained message"
_CANNOT_BE_SAFE: Final = "the disk refuses or is full, or too many messages wait for it"


def receive_publish(
    client: Client, data: bytes, first_byte: int, start: int, stop: int, now: float
) -> None:
    """Take one PUBLISH.

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
            if client.incoming_aliases is NO_ALIASES:
                client.incoming_aliases = IncomingAliases(client.core.options.topic_alias_maximum)
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
    message = new_message(client, plan, data[payload_at:stop], asked_byte, properties, now)
    if message is None:
        if qos and client.is_patient:  # unacknowledged, it comes again
            return client.close(ReasonCode.QUOTA_EXCEEDED, now)
        is_repeat = bool(first_byte & DUP)
        return _refuse(client, plan.topic, packet_id, qos, _NOT_KEPT, is_repeat=is_repeat)
    if properties is not None and n_properties_bytes > SMALL_PROPERTIES_BYTES:
        message.more_bytes = n_properties_bytes * MEMORY_PER_PROPERTY_BYTE
    is_sys = topic_bytes.startswith(b"$SYS")
    if is_sys and not may_publish_sys(client.session.client_id, plan.topic):
        code = ReasonCode.NOT_AUTHORIZED
        return _refuse(client, plan.topic, packet_id, qos, _IS_SYS, code)
    if is_long or (plan.retaining and message.retain):
        plan = plan.of(message)
    if client.is_forwarded:
        plan = plan.of_sessions()
        if client.share:
            return client.run(_take_shared(client, plan, message, packet_id, now))
    if core.take_unchecked is not None and not client.is_relay:
        return core.take_unchecked(client, plan, message, packet_id, first_byte, now)
    if core.callbacks.message_received and not client.is_forwarded:
        event = MessageReceived(client.session, message)
        core.guard.tell(core.callbacks.message_received, event)
    return client.run(take_publish(client, plan, message, packet_id, first_byte, now))


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


def _topic(topic_bytes: bytes) -> str:
    """Return the Topic Name of a PUBLISH, checked."""
    if not topic_bytes:
        raise ProtocolError("PUBLISH: neither Topic Name nor Topic Alias (3.3.2.1)")
    return read_topic(topic_bytes)


def new_message(
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
    is_large = len(payload) > plan.threshold_s  # few enough for a time of their own
    message = Message(
        plan.topic,
        stored,
        qos=(first_byte >> 1) & 3,
        retain=bool(first_byte & 1),
        arrived_at=now if is_large else core.arrived_at(now, plan.sinks),
        is_large=is_large,
        expires_at=expires_at,
        properties=properties,
        publisher=client.session.known_as,
        topic_bytes=plan.topic_bytes,
    )
    if plan.sinks and client.version != MQTT_5:
        message.properties = OF_MQTT_3
    return message


def _is_repeat(client: Client, packet_id: int, qos: int) -> bool:
    """Answer a PUBLISH that came before [MQTT-4.3.3-10]; return False for another one.

    A QoS 1 message is known while its PUBACK was not sent: until then, nothing else can have its
    packet identifier.
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


async def take_publish(
    client: Client, plan: Plan, message: Message, packet_id: int, first_byte: int, now: float
) -> None:
    """Ask access control about a message; route it, hold it or refuse it.

    The receipt is booked before the first wait and settled after the last: the client may come
    back on another connection meanwhile and repeat the message [MQTT-4.3.3-10].
    """
    core = client.core
    receipt = None
    qos = (first_byte & _QOS_BITS) >> 1  # of the exchange: a relay's message may have another
    if qos:
        receipt = book_receipt(client, packet_id, qos, 1, is_repeat=bool(first_byte & DUP))
    try:
        if not (
            client.is_forwarded
            or await core.router.is_allowed(client.session, message.topic, PUBLISH)
        ):
            code = ReasonCode.NOT_AUTHORIZED
            return _refuse_booked(client, receipt, plan.topic, _NOT_AUTHORIZED, code)
        if receipt is not None:
            if receipt.client.awaiting:
                return core.room.hold(receipt, message, route_held, now)
            problem = problem_of(receipt.client, plan, message)
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
    return refuse_full(receipt, plan.topic, full)


async def _take_shared(
    client: Client, plan: Plan, message: Message, packet_id: int, now: float
) -> None:
    """Give a message to one member of the shared subscription that it is for, or refuse it.

    It does not wait for room: whoever has sent it knows members elsewhere.
    """
    core = client.core
    receipt = book_receipt(client, packet_id, message.qos, 1) if message.qos else None
    try:
        member = None
        share = core.tree.shares.get(client.share)
        if share is not None:
            member = await core.router.choose_allowed(share, message, now)
        if share is None or member is None or not _can_take(core, message, share, member, now):
            why = f"no member of {client.share} can take it"
            return _refuse_booked(client, receipt, plan.topic, why, counted_as="no_member")
    except BaseException:  # as in `take_publish`
        if receipt is not None:
            receipt.settle(ReasonCode.UNSPECIFIED_ERROR)
        raise
    journal = core.journal
    n_changes = journal.n_changes if journal is not None else 0
    core.router.route(message, (), ((share, member),), now)
    client.throttle.wait_for_congested(now)
    if receipt is not None:
        receipt.was_routed = True
        settle_when_safe(receipt, n_changes, plan, message)
    return None


def _can_take(
    core: Core, message: Message, share: SharedSubscription, member: Target, now: float
) -> bool:
    """Say whether a member that was chosen for a message has room for it, or is there for it."""
    qos = min(message.qos, member.qos)
    if not qos:
        return member.session.client is not None
    journal = core.journal
    if journal is not None and member.session.is_durable and journal.lacks_room(message):
        return False
    chosen = ((share, member),)
    return not (core.room.rejects and core.room.lacks(message, (), chosen, now, can_tell=True))


def problem_of(client: Client, plan: Plan, message: Message) -> str:
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
    if keeps(client, message) and can_tell and not core.retained.has_room(message):
        return _NO_ROOM_TO_RETAIN
    return ""


def keeps(client: Client, message: Message) -> bool:
    """Say whether a message is to be retained; what was forwarded is so by who has routed it."""
    return message.retain and not client.is_forwarded


async def route_allowed(
    client: Client, receipt: PublishReceipt | None, plan: Plan, message: Message, now: float
) -> str:
    """Route an authorized message to those who may receive it, and settle its receipt.

    A retained message is kept before access control decides about its receivers: a client that
    subscribes meanwhile gets it as a retained message. Room for it is therefore checked before.

    Returns:
        Why there is no room for it: nothing has been done. "" where it was routed.
    """
    core = client.core
    router = core.router
    chosen: Sequence[tuple[SharedSubscription, Target]]
    retains = keeps(client, message)
    if receipt is None:
        if retains:
            _tell_routed(client, message)
            router.retain(message)
        targets, chosen = await router.allowed_recipients(plan, message, now)
        if not retains:
            _tell_routed(client, message)
        router.route(message, targets, chosen, now)
        router.offer(message, plan.sinks)
        client.throttle.wait_for_congested(now)
        return ""
    n_changes = core.journal.n_changes if core.journal is not None else 0
    targets = plan.targets
    if retains:
        turns = [share.turn for share in plan.shares]
        chosen = choose_members(message, plan.shares, now)
        full = reserve(receipt, message, plan, plan.targets, chosen, now)
        if full:
            return full
        if router.asks_receivers:  # members are chosen anew, of those that may receive it
            for share, turn in zip(plan.shares, turns, strict=True):
                share.turn = turn
        _tell_routed(client, message)
        router.retain(message)
    is_routed = False
    try:
        if router.asks_receivers or not retains:
            targets, chosen = await router.allowed_recipients(plan, message, now)
        if receipt.is_settled:
            return ""  # the publisher has gone meanwhile, and comes again with the message
        is_routed = True
    finally:
        if retains and not is_routed:
            router.release(message, plan.sinks)
    if not retains:
        full = reserve(receipt, message, plan, targets, chosen, now)
        if full:
            return full
        _tell_routed(client, message)
    receipt.sinks = plan.sinks
    receipt.wait_for(len(plan.sinks))
    receipt.reason_code = taken(receipt.client, plan)
    if not receipt.was_routed:
        receipt.was_routed = True
        router.route(message, targets, chosen, now)
    router.store(message, plan.sinks, receipt)
    client.throttle.wait_for_congested(now)
    settle_when_safe(receipt, n_changes, plan, message)
    return ""


def reserve(
    receipt: PublishReceipt,
    message: Message,
    plan: Plan,
    targets: Sequence[Target],
    chosen: Sequence[tuple[SharedSubscription, Target]],
    now: float,
) -> str:
    """Check for room in all outboxes, and hold it in all sinks.

    Returns:
        Why there is no room; "" where `Router.store` is to follow.
    """
    core = receipt.client.core
    can_tell = not receipt.client.waits_for_room
    if (targets or chosen) and core.room.rejects and not receipt.was_routed:
        client = receipt.client
        full = core.room.lacks(
            message,
            targets,
            chosen,
            now,
            can_tell=can_tell,
            awaits_absent=client.forwards,
            is_forwarded=client.is_forwarded,
        )
        if full:
            return full
    return core.router.reserve(message, plan.sinks, can_tell=can_tell)


async def route_held(receipt: PublishReceipt, message: Message, now: float) -> bool:
    """Route a message that was held for want of room or disk; False if it has to wait."""
    client = receipt.client
    core = client.core
    session = client.session
    plan = core.tree.plan(message.topic, message.topic_bytes).of(message)
    if client.is_forwarded:
        plan = plan.of_sessions()
    journal = core.journal
    expires_at = message.expires_at
    if expires_at is not None and now >= expires_at:
        core.router.refuse(session.client_id, message.topic, ReasonCode.SUCCESS, "expired")
        receipt.settle(ReasonCode.SUCCESS)
        return True
    if journal is not None and journal.must_refuse(session, plan, message):
        if client.is_patient:
            return False
        core.router.refuse(session.client_id, message.topic, ReasonCode.QUOTA_EXCEEDED)
        receipt.settle(ReasonCode.QUOTA_EXCEEDED)
        return True
    full = await route_allowed(client, receipt, plan, message, now)
    if full != NEVER_FITS:
        return not full
    core.router.refuse(session.client_id, message.topic, ReasonCode.QUOTA_EXCEEDED, full)
    is_told = receipt.client.version == MQTT_5
    receipt.settle(ReasonCode.QUOTA_EXCEEDED if is_told else ReasonCode.SUCCESS)
    return True


def _tell_routed(client: Client, message: Message) -> None:
    callbacks = client.core.callbacks.message_routed
    if callbacks and not client.is_forwarded:
        client.core.guard.tell(callbacks, MessageRouted(client.session, message))


def settle_when_safe(receipt: PublishReceipt, n_changes: int, plan: Plan, message: Message) -> None:
    """Give the receipt of a routed message the broker's own answer, after the commit if any.

    The packet identifier of a QoS 2 message is stored in the commit of the message itself, so that
    its repeat is known for one after any end of the process. Where a sink has a say, only when that
    is settled: the sink must get the message again if it may have lost it. The journal had noted
    `n_changes` before the message was routed.
    """
    client = receipt.client
    journal = client.core.journal
    if journal is None:
        return receipt.settle(SUCCESS)
    of_session = client.session.journal
    if receipt.qos == 2 and not plan.sinks and of_session is not None:
        receipt.is_stored = True
        of_session.incoming_changed(receipt.packet_id)
    n_noted = journal.n_changes - n_changes
    if not n_noted:
        return receipt.settle(SUCCESS)
    if receipt.is_stored or message.retain:
        return journal.settle_after(receipt, message.payload_bytes, client)
    return journal.settle_after(receipt, message.payload_bytes, client, message, n_noted)


def taken(client: Client, plan: Plan) -> int:
    """Return the reason code of a message that is accepted (MQTT 5.0, 3.4.2.1)."""
    if plan.targets or plan.shares or plan.sinks or client.version != MQTT_5:
        return SUCCESS
    return ReasonCode.NO_MATCHING_SUBSCRIBERS


def book_receipt(
    client: Client, packet_id: int, qos: int, n_answers: int, *, is_repeat: bool = False
) -> PublishReceipt:
    """Book a QoS 1 or 2 PUBLISH as owed, in the order of arrival [MQTT-4.6.0-2].

    `PublishReceipt.settle` will be called `n_answers` times, once at least.

    Raises:
        ProtocolError: an MQTT 5 client has more unacknowledged than Receive Maximum.
    """
    if qos == 2 or client.receipts:  # a QoS 1 message that waits for none is seldom owed for long
        check_receive_maximum(client)
    receipt = PublishReceipt(client, packet_id, qos, n_answers)
    if is_repeat:
        before = client.session.unanswered.get(packet_id)
        receipt.was_routed = before is not None and before.was_routed
        # Later connections of a session that is not durable repeat nothing of before its begin.
        receipt.is_repeat = client.session.journal is not None or client.has_begun_session
    client.owe(receipt)
    if qos == 2:
        client.session.incoming[packet_id] = receipt
    if not client.may_receive:
        client.core.turn.touch(client.outgoing)
    return receipt


def check_receive_maximum(client: Client) -> None:
    """Check that an MQTT 5 client may send one more QoS 1 or 2 message [MQTT-3.3.4-9].

    An MQTT 3.1.1 client knows no Receive Maximum: it is slowed down by not reading. So is a client
    in the broker's process, which passes on what another broker sends: mosquitto 2.0 may send more.

    Raises:
        ProtocolError: receive maximum exceeded.
    """
    incoming = client.session.incoming
    if len(incoming) + client.n_owed < client.receive_maximum:
        return  # whatever the receipts are for
    if client.keeps_no_receive_maximum:
        return
    # What is left of earlier connections is not of this one's quota (4.9).
    n_messages = sum(1 for packet_id in incoming if packet_id not in client.inherited)
    n_messages += sum(receipt.n_messages for receipt in client.receipts if receipt.qos == 1)
    if n_messages >= client.receive_maximum:
        raise ProtocolError(
            f"{n_messages + 1} QoS 1 and 2 messages unacknowledged; "
            f"allowed: {client.receive_maximum}",
            ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        )


def _no_room(reason: str) -> str:
    """Say in words why there is no room for a message."""
    return f"no room for it in a queue of a subscriber or of the broker: {reason}"


def refuse_full(receipt: PublishReceipt, topic: str, full: str) -> None:
    """Refuse a publish for which there is no room; one that never fits as one too large."""
    code = ReasonCode.PACKET_TOO_LARGE if full == NEVER_FITS else ReasonCode.QUOTA_EXCEEDED
    _refuse_booked(receipt.client, receipt, topic, _no_room(full), code, counted_as=full)


def _refuse(
    client: Client,
    topic: str,
    packet_id: int,
    qos: int,
    reason: str,
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED,
    *,
    is_repeat: bool = False,
) -> None:
    """Refuse a publish before it was routed, and acknowledge it as far as the version allows.

    Raises:
        ProtocolError: for a reason that closes the connection (`_CLOSING`).
    """
    if reason_code in _CLOSING and (not qos or client.version != MQTT_5):
        raise ProtocolError(f"PUBLISH: {reason}", reason_code)
    receipt = book_receipt(client, packet_id, qos, 1, is_repeat=is_repeat) if qos else None
    _refuse_booked(client, receipt, topic, reason, reason_code)


def _refuse_booked(
    client: Client,
    receipt: PublishReceipt | None,
    topic: str,
    reason: str,
    reason_code: ReasonCode = ReasonCode.QUOTA_EXCEEDED,
    counted_as: str = "",
) -> None:
    """Refuse a publish whose receipt, with one answer missing, is booked; None at QoS 0.

    MQTT 3.1.1 has no reason codes: a client sends an unacknowledged message again after each
    reconnect. A message that is not authorized [MQTT-3.3.5-2] or too large is therefore
    acknowledged and not delivered. One that cannot be kept closes the connection, unacknowledged.
    The refusal is `counted_as` the name of the reason code where that is "".
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


async def relay_problem(
    core: Core, session: Session, first_byte: int, topic: str, properties: bytes, payload: bytes
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
