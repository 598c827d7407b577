"""What the broker does for each packet of a client, PUBLISH apart.

`handle` is a table from packet class to ``handle_<packet>``. PUBLISH has its own module,
`broker.publishing`, and the PUBACK of the common form comes here as `acknowledged` at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ProtocolError
from broker.events import ClientConnected, ClientSubscribed, ClientUnsubscribed
from broker.extensions import SUBSCRIBE, ConnectAttempt
from broker.message import Message
from broker.mqtt.enums import ProtocolVersion
from broker.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker.mqtt.packets import Subscription as Request
from broker.mqtt.reason_codes import CONNACK_RETURN_CODES, ReasonCode
from broker.mqtt.topics import parse_share
from broker.topic_tree import Subscription

if TYPE_CHECKING:
    from broker.connection import Connection
    from broker.core import Core
    from broker.session import Session

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF
"""A Session Expiry Interval of this value means for ever (MQTT 5.0, 3.1.2.11.2)."""


def handle(connection: Connection, packet: Packet, now: float) -> None:
    """Handle one packet that was read.

    Raises:
        ProtocolError: the packet is not allowed here.
    """
    handler = _HANDLERS.get(type(packet))
    if handler is None:  # a packet that only servers send
        raise ProtocolError(f"{type(packet).__name__} from a client")
    handler(connection, packet, now)


# -- CONNECT ----------------------------------------------------------------------------------


def handle_connect(connection: Connection, packet: Connect, now: float) -> None:
    """Take a client's CONNECT (section 3.1).

    Raises:
        ProtocolError: it is the second one [MQTT-3.1.0-2], or asks for an authentication
            method, of which there is none [MQTT-4.12.0-1].
    """
    if connection.is_open:
        raise ProtocolError("a second CONNECT")
    connection.version = packet.protocol_version
    if packet.properties.get("authentication_method") is not None:
        raise ProtocolError(
            "CONNECT: authentication method; allowed: none",
            ReasonCode.BAD_AUTHENTICATION_METHOD,
        )
    if not packet.client_id and not packet.clean_start and packet.protocol_version == 4:
        raise ProtocolError(  # [MQTT-3.1.3-8]
            "CONNECT: empty Client Identifier without Clean Session",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        )
    connection.run(_connect(connection, packet, now))


async def _connect(connection: Connection, packet: Connect, now: float) -> None:
    core = connection.core
    client_id = packet.client_id or core.new_client_id()
    will = _will_message(packet.will, client_id, now) if packet.will is not None else None
    attempt = ConnectAttempt(
        client_id=client_id,
        username=packet.username,
        password=packet.password,
        protocol_version=packet.protocol_version,
        clean_start=packet.clean_start,
        keep_alive=packet.keep_alive,
        will=will,
        remote_address=connection.remote_address,
        remote_port=connection.remote_port,
        listener=connection.listener,
    )
    is_authenticated = await _authenticate(core, attempt)
    if connection.is_closing:
        return
    if not is_authenticated:
        core.logger.info("client %s: not authorized", client_id)
        refuse_connect(connection, ReasonCode.NOT_AUTHORIZED)
        connection.disconnected(now)
        return
    session, session_present = core.sessions.open(
        client_id, clean_start=packet.clean_start, now=now
    )
    _set_up(session, connection, packet, will)
    keep_alive = _keep_alive(core, packet.keep_alive)
    properties = _connack_properties(connection, packet, session, keep_alive)
    connection.send_packet(ConnAck(session_present, ReasonCode.SUCCESS, properties))
    connection.open(
        session,
        keep_alive=keep_alive,
        receive_maximum=packet.properties.get("receive_maximum", 65_535),
        maximum_packet_size=packet.properties.get("maximum_packet_size"),
    )
    core.tell_samplers(lambda sampler: sampler.connected(session.link, now))
    if core.listeners.client_connected:
        core.tell(core.listeners.client_connected, ClientConnected(session))


async def _authenticate(core: Core, attempt: ConnectAttempt) -> bool:
    if core.access is None:
        return True
    try:
        answer = core.access.authenticate(attempt)
        return answer if isinstance(answer, bool) else await answer
    except Exception as error:  # noqa: BLE001 (a plugin's fault must not let a client in)
        core.on_extension_error("access control, authenticate", error)
        return False


def refuse_connect(connection: Connection, reason_code: ReasonCode) -> None:
    """Answer a CONNECT that is not accepted, where the version has a word for it.

    [MQTT-3.2.2-7] of MQTT 5.0; MQTT 3.1.1 closes without CONNACK where it has no return code.
    """
    if connection.version == ProtocolVersion.MQTT_5 or reason_code in CONNACK_RETURN_CODES:
        connection.send_packet(ConnAck(session_present=False, reason_code=reason_code))


def _will_message(will: Will, client_id: str, now: float) -> Message:
    properties = {k: v for k, v in will.properties.items() if k != "will_delay_interval"}
    return Message(
        will.topic,
        will.payload,
        qos=will.qos,
        retain=will.retain,
        arrived_at=now,
        properties=properties,
        publisher=client_id,
    )


def _set_up(
    session: Session, connection: Connection, packet: Connect, will: Message | None
) -> None:
    """Write into the session what the newest CONNECT says."""
    core = connection.core
    if session.version != packet.protocol_version:
        session.version = packet.protocol_version
        if session.subscriptions:
            core.tree.void_plans()
    session.username = packet.username
    session.link.username = packet.username
    session.will = will
    session.will_delay = (
        packet.will.properties.get("will_delay_interval", 0) if packet.will is not None else 0
    )
    if packet.protocol_version == ProtocolVersion.MQTT_5:
        interval = packet.properties.get("session_expiry_interval", 0)
    else:
        interval = 0 if packet.clean_start else SESSION_NEVER_EXPIRES
    session.expiry_interval = _expiry(core, interval)


def _expiry(core: Core, interval: int) -> float | None:
    asked = None if interval == SESSION_NEVER_EXPIRES else float(interval)
    limit = core.session_expiry_limit
    if limit is None:
        return asked
    return limit if asked is None else min(asked, limit)


def _keep_alive(core: Core, asked: int) -> int:
    limit: int | None = core.limits.maximum_keep_alive
    if limit is None:
        return asked
    return min(asked or limit, limit)


def _connack_properties(
    connection: Connection, packet: Connect, session: Session, keep_alive: int
) -> dict[str, Any]:
    """Say what the broker allows and what it has changed (MQTT 5.0, 3.2.2.3)."""
    if packet.protocol_version != ProtocolVersion.MQTT_5:
        return {}
    limits = connection.core.limits
    properties: dict[str, Any] = {
        "receive_maximum": limits.receive_maximum,
        "maximum_packet_size": limits.maximum_packet_size,
        "shared_subscription_available": 0,
    }
    if not packet.client_id:
        properties["assigned_client_identifier"] = session.client_id  # [MQTT-3.2.2-16]
    if keep_alive != packet.keep_alive:
        properties["server_keep_alive"] = keep_alive  # [MQTT-3.1.2-21]
    asked = packet.properties.get("session_expiry_interval", 0)
    if session.expiry_interval != _uncapped(asked):
        properties["session_expiry_interval"] = int(session.expiry_interval or 0)
    return properties


def _uncapped(interval: int) -> float | None:
    return None if interval == SESSION_NEVER_EXPIRES else float(interval)


# -- SUBSCRIBE, UNSUBSCRIBE -------------------------------------------------------------------


def handle_subscribe(connection: Connection, packet: Subscribe, now: float) -> None:
    """Take a SUBSCRIBE (section 3.8)."""
    connection.run(_subscribe(connection, packet, now))


async def _subscribe(connection: Connection, packet: Subscribe, now: float) -> None:
    session = connection.session
    found = packet.properties.get("subscription_identifier") or [0]
    codes = []
    granted: list[tuple[Subscription, Request, bool]] = []
    for request in packet.subscriptions:
        code = await _judge(connection, request)
        if not connection.is_open:
            return
        if code < 0x80:
            subscription = Subscription(
                session,
                request.topic_filter,
                request.qos,
                no_local=request.no_local,
                retain_as_published=request.retain_as_published,
                subscription_id=found[0],
            )
            is_new = add_subscription(connection.core, subscription)
            granted.append((subscription, request, is_new))
        elif connection.version != ProtocolVersion.MQTT_5:
            code = 0x80  # [MQTT-3.9.3-2] of MQTT 3.1.1
        codes.append(code)
    connection.send_packet(SubAck(packet.packet_id, tuple(codes)))
    for subscription, request, is_new in granted:
        if request.retain_handling == 0 or (request.retain_handling == 1 and is_new):
            send_retained(connection.core, subscription, now)


async def _judge(connection: Connection, request: Request) -> int:
    """Return the reason code for one requested subscription."""
    core = connection.core
    if parse_share(request.topic_filter).share_name:
        return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    access = core.access
    if (
        access is not None
        and access.checks_subscribe
        and not await core.is_allowed(access, connection.session, request.topic_filter, SUBSCRIBE)
    ):
        return ReasonCode.NOT_AUTHORIZED
    return request.qos


def add_subscription(core: Core, subscription: Subscription) -> bool:
    """Add or replace a subscription; return True where the session had none to this filter."""
    session = subscription.session
    session.subscriptions[subscription.topic_filter] = subscription
    is_new = core.tree.add(subscription)
    if core.listeners.client_subscribed:
        event = ClientSubscribed(session, subscription.topic_filter, subscription.qos)
        core.tell(core.listeners.client_subscribed, event)
    return is_new


def send_retained(core: Core, subscription: Subscription, now: float) -> None:
    """Deliver the retained messages that a subscription matches [MQTT-3.3.1-9]."""
    session = subscription.session
    identifier = subscription.subscription_id
    for message in core.retained.match(subscription.topic_filter, now):
        if subscription.no_local and message.publisher == session.client_id:
            continue
        session.deliver(
            message,
            min(message.qos, subscription.qos),
            retain=True,  # [MQTT-3.3.1-8]
            subscription_ids=(identifier,) if identifier else (),
            now=now,
        )
    core.congested.clear()  # there is no publisher to slow down


def handle_unsubscribe(connection: Connection, packet: Unsubscribe, _now: float) -> None:
    """Take an UNSUBSCRIBE (section 3.10)."""
    core = connection.core
    session = connection.session
    codes = []
    for topic_filter in packet.topic_filters:
        had_it = session.subscriptions.pop(topic_filter, None) is not None
        codes.append(ReasonCode.SUCCESS if had_it else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        if had_it:
            core.tree.remove(session, topic_filter)
            if core.listeners.client_unsubscribed:
                event = ClientUnsubscribed(session, topic_filter)
                core.tell(core.listeners.client_unsubscribed, event)
    is_5 = connection.version == ProtocolVersion.MQTT_5
    connection.send_packet(UnsubAck(packet.packet_id, tuple(codes) if is_5 else ()))


# -- acknowledgements -------------------------------------------------------------------------


def acknowledged(
    connection: Connection, packet_id: int, qos: int, now: float, reason_code: int = 0
) -> None:
    """Finish a delivery: its PUBACK or PUBCOMP has come, or a PUBREC that refuses it."""
    session = connection.session
    core = connection.core
    delivery = session.inflight.finish(packet_id, qos)
    if delivery is None:
        core.counters.unexpected_acknowledgements += 1
        return
    if reason_code < 0x80:
        session.ledger.delivered += 1
    else:
        session.ledger.drop("refused")
    if qos == 1:
        _sample(session, core, packet_id, now)
    if session.outbox.n_messages or session.resend:
        connection.want_pump()


def _sample(session: Session, core: Core, packet_id: int, now: float) -> None:
    for sampler in core.samplers:
        try:
            has_news = sampler.acknowledged(session.link, packet_id, now)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not the client's)
            core.on_extension_error(type(sampler).__name__, error)
            continue
        if has_news:
            session.link_changed()


def handle_puback(connection: Connection, packet: PubAck, now: float) -> None:
    """Take a PUBACK (section 3.4)."""
    acknowledged(connection, packet.packet_id, 1, now, packet.reason_code)


def handle_pubrec(connection: Connection, packet: PubRec, now: float) -> None:
    """Take a PUBREC (section 3.5) and answer it [MQTT-4.3.3-4]."""
    session = connection.session
    if session.inflight.release(packet.packet_id) is None:
        connection.core.counters.unexpected_acknowledgements += 1
        connection.send_packet(PubRel(packet.packet_id, _not_found(connection)))
        return
    _sample(session, connection.core, packet.packet_id, now)
    if packet.reason_code >= 0x80:
        acknowledged(connection, packet.packet_id, 2, now, packet.reason_code)
    else:
        connection.send_packet(PubRel(packet.packet_id))


def _not_found(connection: Connection) -> int:
    """Return what to say of a packet identifier that nobody knows; MQTT 3.1.1 has no word."""
    is_5 = connection.version == ProtocolVersion.MQTT_5
    return ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_5 else ReasonCode.SUCCESS


def handle_pubrel(connection: Connection, packet: PubRel, _now: float) -> None:
    """Take a PUBREL (section 3.6) and answer it [MQTT-4.3.3-11]."""
    incoming = connection.session.incoming
    if incoming.get(packet.packet_id, 0) is None:
        del incoming[packet.packet_id]
        connection.send_packet(PubComp(packet.packet_id))
    else:
        connection.core.counters.unexpected_acknowledgements += 1
        connection.send_packet(PubComp(packet.packet_id, _not_found(connection)))


def handle_pubcomp(connection: Connection, packet: PubComp, now: float) -> None:
    """Take a PUBCOMP (section 3.7)."""
    acknowledged(connection, packet.packet_id, 2, now)


# -- the rest ---------------------------------------------------------------------------------


def handle_pingreq(connection: Connection, _packet: PingReq, _now: float) -> None:
    """Answer a PINGREQ [MQTT-3.12.4-1]."""
    connection.send_packet(PingResp())


def handle_disconnect(connection: Connection, packet: Disconnect, now: float) -> None:
    """Take a DISCONNECT (section 3.14): without a reason, the will is void [MQTT-3.14.4-3].

    Raises:
        ProtocolError: it sets a Session Expiry Interval that CONNECT had as 0 (3.14.2.2.2).
    """
    session = connection.session
    interval = packet.properties.get("session_expiry_interval")
    if interval is not None:
        if interval and session.expiry_interval == 0:
            raise ProtocolError("DISCONNECT: Session Expiry Interval; allowed: 0, as in CONNECT")
        session.expiry_interval = _expiry(connection.core, interval)
    if packet.reason_code == ReasonCode.SUCCESS:
        session.will = None
    connection.disconnected(now)


def handle_auth(_connection: Connection, _packet: Auth, _now: float) -> None:
    """Refuse an AUTH: no CONNECT with an authentication method was accepted.

    Raises:
        ProtocolError: always [MQTT-4.12.1-1].
    """
    raise ProtocolError("AUTH without an authentication method in CONNECT")


_HANDLERS: Final[dict[type, Callable[[Any, Any, float], None]]] = {
    Auth: handle_auth,
    Connect: handle_connect,
    Disconnect: handle_disconnect,
    PingReq: handle_pingreq,
    PubAck: handle_puback,
    PubComp: handle_pubcomp,
    PubRec: handle_pubrec,
    PubRel: handle_pubrel,
    Subscribe: handle_subscribe,
    Unsubscribe: handle_unsubscribe,
}
