"""SUBSCRIBE and UNSUBSCRIBE from a client (MQTT 5.0, 3.8 and 3.10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, get_args

from penstock.broker.access_control import RECEIVE, SUBSCRIBE
from penstock.broker.config.capabilities import check_subscribe, refusal_of_filter
from penstock.broker.counters import count
from penstock.broker.errors import ProtocolError
from penstock.broker.events import ClientSubscribed
from penstock.broker.message import SIZE_PROPERTY, SizeClass
from penstock.broker.mqtt.data_types import read_variable_byte_integer
from penstock.broker.mqtt.enums import PacketType, ProtocolVersion
from penstock.broker.mqtt.packets import (
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from penstock.broker.mqtt.reason_codes import SUBACK_FAILURE_3_1_1, ReasonCode, describe_reason_code
from penstock.broker.mqtt.size_limit import explained
from penstock.broker.mqtt.topics import parse_share
from penstock.broker.plugin_guard import is_logged
from penstock.broker.receiving.publishing import MAX_LOGGED_TOPIC
from penstock.broker.routing.topic_tree import Subscription, most_bytes
from penstock.broker.sending import eager_coroutine
from penstock.broker.sessions import redelivery, retained_delivery
from penstock.broker.sessions.bridges import of_bridge
from penstock.broker.sessions.source_subscriptions import asked_filter

if TYPE_CHECKING:
    from penstock.broker.extensions import MessageSource
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.session import Session

MIN_FILTERS: Final = 1_000
"""Filters that one SUBSCRIBE may have at least: up to so many, SUBACK says which are refused."""


FILTERS_IN_TURN: Final = 256
"""Topic filters of one SUBSCRIBE or UNSUBSCRIBE that are handled before other clients have their
turn.
Each takes some 4 us, all of them 1 ms."""

MAX_SHOWN: Final = 40
"""Characters of a size class that is unknown, in the Reason String."""

_LEAST_REQUEST_BYTES: Final = 3
"""Bytes that a topic filter of one character takes in UNSUBSCRIBE."""


def check_number(client: Client, packet_type: int, body: bytes) -> None:
    """Refuse a packet that has more filters than a session may, before they are read.

    Others would wait while a hundred thousand of them are read and refused one by one.

    Raises:
        ProtocolError: quota exceeded.
    """
    maximum = max(client.core.limits.subscriptions, MIN_FILTERS)
    if len(body) <= maximum * _LEAST_REQUEST_BYTES:
        return
    position = 2
    if client.version == ProtocolVersion.MQTT_5:
        n_bytes, position = read_variable_byte_integer(body, position)
        position += n_bytes
    rest = 3 if packet_type == PacketType.SUBSCRIBE else 2
    end = len(body) - 1
    for _ in range(maximum):
        if position >= end:
            return
        position += (body[position] << 8 | body[position + 1]) + rest
    if position < end:
        name = "SUBSCRIBE" if packet_type == PacketType.SUBSCRIBE else "UNSUBSCRIBE"
        raise ProtocolError(
            f"{name}: more filters than are allowed: at most {maximum}", ReasonCode.QUOTA_EXCEEDED
        )


def handle_subscribe(client: Client, packet: Subscribe, now: float) -> None:
    """Take a SUBSCRIBE (section 3.8).

    Raises:
        ProtocolError: it needs what an MQTT 5 client was told not to use.
    """
    if client.version == ProtocolVersion.MQTT_5:
        check_subscribe(client.core.options, packet)
    sizes, problem = _asked_sizes(client, packet)
    if problem:
        code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # "valid but the Server does not accept it"
        codes = (code,) * len(packet.subscriptions)
        count(client.core.counters.subscribe_refused, describe_reason_code(code), len(codes))
        client.sender.send_packet(SubAck(packet.packet_id, codes, explained(problem)))
    else:
        client.run(_subscribe(client, packet, sizes, now))


async def _subscribe(
    client: Client, packet: Subscribe, sizes: SizeClass | None, now: float
) -> None:
    """Decide about each filter, and add those that are granted in runs.

    What is asked about one filter may depend on what was added before it; then a run ends.
    """
    core = client.core
    session = client.session
    (subscription_id,) = packet.properties.get("subscription_identifier") or (0,)
    maximum_qos = core.options.maximum_qos
    codes: list[int] = []
    reasons: list[str] = []
    granted: list[retained_delivery.Granted] = []
    n_refused = 0
    wanted = packet.subscriptions
    if client.is_bridge:
        wanted = tuple(map(of_bridge, wanted))
    if maximum_qos < 2:
        wanted = tuple(each._replace(qos=min(each.qos, maximum_qos)) for each in wanted)
    checks_subscribe = core.access is not None and core.access.checks_subscribe
    for start in range(0, len(wanted), FILTERS_IN_TURN):
        if start:
            await eager_coroutine.others_turn()
            if not client.is_open:
                return
        requests = wanted[start : start + FILTERS_IN_TURN]
        is_plain = _are_plain(client, requests)
        if is_plain and not checks_subscribe:
            codes += [request[1] for request in requests]
            _grant(client, requests, subscription_id, sizes, granted)
            continue
        run: list[SubscriptionRequest] = []
        for request in requests:
            topic_filter = request.topic_filter
            refusal = None
            if not is_plain:
                _grant(client, run, subscription_id, sizes, granted)
                run = []
                if core.consuming is not None and (
                    source := core.consuming.source_of(topic_filter)
                ):
                    refusal = await _consume(client, request, source, subscription_id)
                    if not client.is_open:
                        return
                    n_refused += refusal is not None
                    codes.append(
                        _refuse(client, request, *refusal, reasons)
                        if refusal is not None
                        else session.subscriptions[topic_filter].qos
                    )
                    continue
                refusal = _refusal(client, topic_filter)
            if refusal is None and checks_subscribe:
                # A share opens no topic that its filter alone would not.
                answer = core.router.ask(session, parse_share(topic_filter).topic_filter, SUBSCRIBE)
                if not isinstance(answer, bool):
                    _grant(client, run, subscription_id, sizes, granted)
                    run = []
                    answer = await answer
                if not client.is_open:
                    return
                if not answer:
                    refusal = ReasonCode.NOT_AUTHORIZED, "not authorized to subscribe"
            if refusal is not None:
                n_refused += 1
                codes.append(_refuse(client, request, *refusal, reasons))
                continue
            codes.append(request.qos)
            run.append(request)
        _grant(client, run, subscription_id, sizes, granted)
    is_granted = n_refused < len(wanted)
    if is_granted and core.routed is not None and not client.is_local:
        await core.guard.wait_for("session owner", core.routed, otherwise=None)
    suback = SubAck(packet.packet_id, tuple(codes), explained("; ".join(reasons)))
    _answer(client, suback, granted, now, is_granted=is_granted)


def _answer(
    client: Client,
    suback: SubAck,
    granted: list[retained_delivery.Granted],
    now: float,
    *,
    is_granted: bool,
) -> None:
    """Acknowledge a SUBSCRIBE, and begin to send what is retained; the client may have gone.

    Retained messages may be due for the granted ones. Where `is_granted`, some subscription was
    added, and may have to be stored.
    """
    if not client.is_open:
        return
    send = client.sender.send_when_safe if is_granted else client.sender.send_packet
    send(suback)
    retained_delivery.subscribed(client.session, granted)
    retained_delivery.begin(client.session, now)


def _grant(
    client: Client,
    requests: Sequence[SubscriptionRequest],
    subscription_id: int,
    sizes: SizeClass | None,
    granted: list[retained_delivery.Granted],
) -> None:
    """Add the granted subscriptions of a run; one alone where its filter begins with ``$``.

    Those that retained messages may be due for are added to `granted`.
    """
    if not requests:
        return
    core = client.core
    session = client.session
    subscriptions: list[Subscription] = []
    for topic_filter, qos, no_local, retain_as_published, _ in requests:
        subscription = Subscription(session, topic_filter, qos)
        if no_local or retain_as_published or subscription_id or sizes:
            subscription.no_local = no_local
            subscription.retain_as_published = retain_as_published
            subscription.subscription_id = subscription_id
            subscription.sizes = sizes
        subscriptions.append(subscription)
    _note_sizes(session, sizes)
    is_special = requests[0].topic_filter[0] == "$"
    if is_special:
        are_new = [add_subscription(core, session, subscriptions[0])]
    else:
        are_new = _add_run(core, session, subscriptions)
    if is_special or retained_delivery.is_anything_due(session):
        handling = [request.retain_handling for request in requests]
        granted += zip(subscriptions, handling, are_new, strict=True)


def _are_plain(client: Client, requests: Sequence[SubscriptionRequest]) -> bool:
    """Say whether `_refusal` refuses none of several filters, and none of them begins with ``$``.

    One SUBSCRIBE may have thousands. A character has four bytes at most, and a level one character
    at least, with the ``/`` before it.
    """
    core = client.core
    limits, options, session = core.limits, core.options, client.session
    if (
        (core.journal is not None and core.journal.is_failing)
        or len(session.subscriptions) + len(requests) > limits.subscriptions
        or not options.wildcard_subscription_available
        or not options.shared_subscription_available
    ):
        return False
    topic_filters = [request[0] for request in requests]
    text = "/".join(topic_filters)
    if text[0] == "$" or "/$" in text or not text.isprintable():
        return False
    if max(map(len, topic_filters)) > min(limits.topic_bytes // 4, limits.topic_levels - 1):
        return False
    n_bytes = most_bytes(topic_filters)
    most = limits.total_subscription_bytes
    return session.subscription_bytes + n_bytes <= limits.subscription_bytes and (
        most is None or core.subscription_bytes + n_bytes <= most
    )


def _note_sizes(session: Session, sizes: SizeClass | None) -> None:
    """Take note whether small messages may come, before a subscription is added."""
    if sizes != "large":
        session.link.gets_small = True
    elif not session.subscriptions:
        session.link.gets_small = False


async def _consume(
    client: Client, request: SubscriptionRequest, source: MessageSource, subscription_id: int
) -> tuple[ReasonCode, str] | None:
    """Make a client a consumer of a source.

    Returns:
        The reason code by which it is refused, and why; None where it is granted.
    """
    core = client.core
    session = client.session
    topic_filter = request.topic_filter
    refusal = _refusal(client, topic_filter)
    if refusal is not None:
        return refusal
    shared = parse_share(topic_filter)
    if shared.share_name:
        return (
            ReasonCode.TOPIC_FILTER_INVALID,
            f"its messages are shared by all who subscribe to it; allowed: {shared.topic_filter}",
        )
    asked = asked_filter(core.consuming, topic_filter)
    for action in (SUBSCRIBE, RECEIVE):
        if not await core.router.is_allowed(session, asked, action):
            return ReasonCode.NOT_AUTHORIZED, "not authorized to subscribe"
    why = core.guard.call(source, source.refusal, topic_filter, otherwise="it cannot be served")
    if why:
        return ReasonCode.TOPIC_FILTER_INVALID, why
    if client.is_open:
        qos = min(request.qos, 1)
        subscription = Subscription(session, topic_filter, qos)
        subscription.subscription_id = subscription_id
        _note_sizes(session, None)
        add_subscription(core, session, subscription)
    return None


def _asked_sizes(client: Client, packet: Subscribe) -> tuple[SizeClass | None, str]:
    """Return the size class that a SUBSCRIBE asks for; None for both.

    Returns:
        (the class; what is wrong with the SUBSCRIBE, or "").
    """
    core = client.core
    user_properties = packet.properties.get("user_property", ())
    asked = [value for name, value in user_properties if name == SIZE_PROPERTY]
    if not asked:
        of_listener = core.sizes_by_listener.get(client.listener)
        return core.options.sizes_for(client.session.client_id, of_listener), ""
    if len(asked) > 1:
        return None, f"user property {SIZE_PROPERTY}: read {len(asked)} of them; allowed: one"
    for sizes in get_args(SizeClass):
        if asked[0] == sizes:
            return sizes, ""
    read = asked[0][:MAX_SHOWN]
    return None, f"user property {SIZE_PROPERTY}: read {read!r}; allowed: small or large"


def _refusal(client: Client, topic_filter: str) -> tuple[ReasonCode, str] | None:
    """Return the reason code by which a subscription is refused, and why; None where it is not.

    Access control is asked after that.
    """
    core = client.core
    limits = core.limits
    session = client.session
    if core.journal is not None and core.journal.is_failing and session.journal:
        return ReasonCode.QUOTA_EXCEEDED, "the disk refuses"
    share_name, inner = parse_share(topic_filter)
    problem = limits.topic_problem(inner) or limits.character_problem(share_name)
    if problem:
        return ReasonCode.TOPIC_FILTER_INVALID, problem
    code = refusal_of_filter(core.options, topic_filter)
    if code is not None:
        return code, describe_reason_code(code)
    if topic_filter not in session.subscriptions:
        problem = _no_room(client)
        if problem:
            return ReasonCode.QUOTA_EXCEEDED, problem
    return None


def _no_room(client: Client) -> str:
    """Say why a session may have no further subscription; "" where it may.

    Bytes are asked for what there is: one filter may go beyond them.
    """
    core = client.core
    limits = core.limits
    session = client.session
    if len(session.subscriptions) >= limits.subscriptions:
        return f"allowed: {limits.subscriptions} subscriptions"
    if session.subscription_bytes >= limits.subscription_bytes:
        return f"allowed: {limits.subscription_bytes} bytes of subscriptions"
    most = limits.total_subscription_bytes
    if most is not None and core.subscription_bytes >= most:
        return f"allowed: {most} bytes of all subscriptions"
    return ""


def _refuse(
    client: Client, request: SubscriptionRequest, code: ReasonCode, reason: str, reasons: list[str]
) -> int:
    """Count and log a refused subscription; return its code in SUBACK, and add to the reasons."""
    core = client.core
    count(core.counters.subscribe_refused, describe_reason_code(code))
    client.n_filters_refused += 1
    if is_logged(client.n_filters_refused):
        core.logger.info(
            "client %s: subscription to %.*s refused: %s; %d so far",
            client.session.client_id,
            MAX_LOGGED_TOPIC,
            request.topic_filter,
            reason,
            client.n_filters_refused,
        )
    if client.version == ProtocolVersion.MQTT_3_1_1:
        return SUBACK_FAILURE_3_1_1  # [MQTT-3.9.3-2] of MQTT 3.1.1
    if client.version == ProtocolVersion.MQTT_3_1:
        return request.qos  # it has no word for a refusal
    told = core.options.told(code)
    if told == code:
        reasons.append(f"{request.topic_filter}: {reason}")
    return told


def add_subscription(core: Core, session: Session, subscription: Subscription) -> bool:
    """Add or replace a subscription; return True where the session had none to this filter."""
    topic_filter = subscription.topic_filter
    if topic_filter[0] != "$":
        return _add_run(core, session, (subscription,))[0]
    is_new = topic_filter not in session.subscriptions
    _note_subscriptions(session, (subscription,))
    if core.consuming is not None and core.consuming.source_of(topic_filter):
        core.consuming.add(session, subscription)
    elif core.kept is not None and core.kept.routes(session, topic_filter):
        core.kept.add(subscription)
        core.kept.subscribed(session, [topic_filter] if is_new else ())
    else:
        core.tree.add(subscription)
    if is_new and topic_filter in core.tree.shares:
        redelivery.member_came(session)
    _tell_subscribed(core, session, (subscription,), (is_new,))
    return is_new


def _add_run(core: Core, session: Session, subscriptions: Sequence[Subscription]) -> list[bool]:
    """Add or replace subscriptions, none of whose filters begins with ``$``; as the one above."""
    _note_subscriptions(session, subscriptions)
    kept = core.kept
    if kept is None or not kept.has(session):
        are_new = core.tree.add_each(session, subscriptions)
    else:
        are_new = kept.tree.add_each(session, subscriptions)
        found = zip(subscriptions, are_new, strict=True)
        kept.subscribed(session, [each.topic_filter for each, is_new in found if is_new])
    if core.callbacks.client_subscribed:
        _tell_subscribed(core, session, subscriptions, are_new)
    return are_new


def _note_subscriptions(session: Session, subscriptions: Sequence[Subscription]) -> None:
    own, journal = session.subscriptions, session.journal
    for subscription in subscriptions:
        own[subscription.topic_filter] = subscription
        if journal is not None:
            journal.subscription_changed(subscription.topic_filter)


def _tell_subscribed(
    core: Core, session: Session, subscriptions: Sequence[Subscription], are_new: Sequence[bool]
) -> None:
    for subscription, is_new in zip(subscriptions, are_new, strict=True):
        event = ClientSubscribed(session, subscription.topic_filter, subscription.qos, is_new)
        core.guard.tell(core.callbacks.client_subscribed, event)


def handle_unsubscribe(client: Client, packet: Unsubscribe, now: float) -> None:
    """Take an UNSUBSCRIBE (section 3.10)."""
    client.run(_unsubscribe(client, packet, now))


async def _unsubscribe(client: Client, packet: Unsubscribe, now: float) -> None:
    session = client.session
    codes = []
    for number, topic_filter in enumerate(packet.topic_filters, 1):
        if not number % FILTERS_IN_TURN:
            await eager_coroutine.others_turn()
            if not client.is_open:
                return
        had_it = topic_filter in session.subscriptions
        codes.append(ReasonCode.SUCCESS if had_it else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if had_it:
            client.core.sessions.remove_subscription(session, topic_filter, now)
    is_5 = client.version == ProtocolVersion.MQTT_5
    client.sender.send_when_safe(UnsubAck(packet.packet_id, tuple(codes) if is_5 else ()))
