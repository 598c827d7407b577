"""CONNECT: from the first packet of a connection to a client with a session.

The exchange of a client that names an authentication method takes place in
`penstock.broker.receiving.authenticating`, which calls `let_in` when the client is authenticated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access_control import NOT_JUDGED, Accepted, Admittance, ConnectAttempt, Refused
from penstock.broker.config.capabilities import check_connect, connack_properties, redirection
from penstock.broker.counters import count
from penstock.broker.errors import ProtocolError
from penstock.broker.events import ClientConnected
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX, RELAY_CLIENT_PREFIX
from penstock.broker.message import (
    LANE_PROPERTY,
    LARGE_ABOVE_PROPERTY,
    SITE_PROPERTY,
    SIZE_PROPERTY,
    WAITS_PROPERTY,
    YIELDS_PROPERTY,
)
from penstock.broker.mqtt.enums import MAX_REMAINING_LENGTH, MQTT_3_1, MQTT_5, PacketType
from penstock.broker.mqtt.packets import ConnAck, Connect, Will
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.size_limit import explained, fit_packet
from penstock.broker.receiving import authenticating
from penstock.broker.sessions.user_change import hand_over
from penstock.broker.sessions.wills import will_message

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.lanes import LargeOf
    from penstock.broker.sessions.session import Session

_ACCEPTED: Final = Accepted()

_FAILED: Final = Refused(why="access control failed")

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF
"""A session with this Session Expiry Interval does not expire (MQTT 5.0, 3.1.2.11.2)."""


def handle_connect(client: Client, packet: Connect, now: float) -> None:
    """Take a client's first CONNECT (section 3.1).

    Raises:
        ProtocolError: no plugin provides its authentication method [MQTT-4.12.0-1], its will
            exceeds a limit (MQTT 5.0, 3.2.2.2), or it needs what the broker does not offer.
    """
    client.set_version(packet.protocol_version)
    client.is_answered = True
    client.is_bridge = packet.is_bridge
    sender = client.sender
    sender.send_maximum = packet.properties.get("maximum_packet_size", sender.send_maximum)
    sender.is_explained = bool(packet.properties.get("request_problem_information", 1))
    options = client.core.options
    check_connect(options, packet)
    code = redirection(options)
    if code is not None:
        client.refuse_connect(code, server_reference=options.server_reference)
        client.end(now)
        return
    if client.refusal is not None:  # a limit on connections was reached
        client.core.logger.info(
            "client %s: refused, %s, from %s",
            packet.client_id or "without an id",
            describe_reason_code(client.refusal),
            client.peer(),
        )
        client.refuse_connect(client.refusal)
        client.end(now)
        return
    method = packet.properties.get("authentication_method")
    if method is not None:
        authenticating.check_method(client.core, method)
    _check_client_id(packet, may_be_empty=options.allow_empty_client_id)
    if packet.will is not None:
        _check_will(client.core.limits, packet.will, packet.protocol_version)
    client.run(_connect(client, packet, now))


def _check_will(limits: Limits, will: Will, version: int) -> None:
    """Check that a client's will is within the limits of a PUBLISH.

    Raises:
        ProtocolError: topic name invalid, or packet too large; not authorized in MQTT 3.1.1, which
            has no return code for the size.
    """
    problem = limits.topic_problem(will.topic)
    if problem:
        raise ProtocolError(f"CONNECT: Will: {problem}", ReasonCode.TOPIC_NAME_INVALID)
    if len(will.payload) > limits.most_payload_bytes:
        raise ProtocolError(
            f"CONNECT: Will: payload of {len(will.payload)} bytes; allowed: at most "
            f"{limits.payload_bytes}",
            ReasonCode.PACKET_TOO_LARGE if version == MQTT_5 else ReasonCode.NOT_AUTHORIZED,
        )


def _check_client_id(packet: Connect, *, may_be_empty: bool) -> None:
    """Check that a client without Client Identifier may have one assigned.

    MQTT 3.1 has no empty Client Identifier. Its limit of 23 characters is not enforced, because
    real clients exceed it.

    Raises:
        ProtocolError: client identifier not valid [MQTT-3.1.3-8] of MQTT 3.1.1.
    """
    if packet.client_id:
        return
    if not may_be_empty:
        raise ProtocolError(
            "CONNECT: Client Identifier: read an empty one; allowed: at least one character, as "
            "mqtt.allow_empty_client_id is false",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        )
    if packet.protocol_version == MQTT_5:
        return
    if packet.protocol_version == MQTT_3_1 or not packet.clean_start:
        raise ProtocolError(
            "CONNECT: empty Client Identifier; allowed: none in MQTT 3.1, with Clean Session in "
            "MQTT 3.1.1",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        )


async def _connect(client: Client, packet: Connect, now: float) -> None:
    core = client.core
    if client.is_local:
        client.is_relay = packet.client_id.startswith(RELAY_CLIENT_PREFIX)
        await let_in(client, packet, packet.client_id, _ACCEPTED, {}, now)
        return
    client_id = packet.client_id or _assigned_client_id(core)
    will = will_message(packet.will, client_id, now) if packet.will is not None else None
    attempt = ConnectAttempt(
        client_id=client_id,
        username=packet.username,
        password=packet.password,
        protocol_version=packet.protocol_version,
        clean_start=packet.clean_start,
        keep_alive=packet.keep_alive,
        will=will,
        remote_address=client.remote_address,
        remote_port=client.remote_port,
        listener=client.listener,
        ssl_object=client.ssl_object,
        certificate_name=client.certificate_name,
    )
    method = packet.properties.get("authentication_method")
    if method is not None:
        await authenticating.begin(
            client,
            attempt,
            method,
            packet.properties.get("authentication_data"),
            partial(let_in, client, packet, client_id),
            now,
        )
        return
    if attempt.username is None:  # no password can be guessed
        answer = await _authenticate(core, attempt)
    else:
        answer = await _log_in(core, attempt, attempt.username, now)
    if client.is_closing:
        return
    if isinstance(answer, Refused):
        _refuse_login(client, client_id, packet.username, answer, now)
        return
    await let_in(client, packet, client_id, answer, {}, now)


async def let_in(
    client: Client,
    packet: Connect,
    client_id: str,
    accepted: Accepted,
    extra_properties: dict[str, Any],
    now: float,
) -> None:
    """Give an authenticated client its session and its CONNACK.

    Args:
        client: not open yet.
        packet: its CONNECT.
        client_id: as sent or assigned.
        accepted: the names that authentication has given it.
        extra_properties: of the CONNACK, beside those that say what the broker allows.
        now: monotonic seconds.

    Raises:
        ProtocolError: the CONNACK is larger than the client's Maximum Packet Size, or the Client
            Identifier is reserved.
    """
    core = client.core
    client_id = accepted.client_id or client_id
    if client_id.startswith(LOCAL_CLIENT_PREFIX) and not client.is_local:
        raise ProtocolError(
            f"CONNECT: Client Identifier {client_id!r}; allowed: none that begins with "
            f"{LOCAL_CLIENT_PREFIX!r}, which is the broker's own",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        )
    keep_alive = packet.keep_alive
    longest = None if client.is_local else core.limits.maximum_keep_alive
    if longest is not None:
        keep_alive = min(keep_alive or longest, longest)
    expiry_interval = None if client.is_local else _expiry_interval(core, packet)
    properties = extra_properties
    if packet.protocol_version == MQTT_5:
        allowed = _connack_properties(core, packet, client_id, keep_alive, expiry_interval)
        properties = allowed | extra_properties
    username = packet.username if accepted.username is None else accepted.username
    told = packet.properties.get("user_property", ())
    if core.site and (WAITS_PROPERTY, "yes") in told:  # an uplink, which may lead to its own site
        properties["user_property"] = [(SITE_PROPERTY, core.site)]
    other_lane = core.lanes.asked(client_id, username, told) if told else ""
    large = _large_of(core, client_id, told) if other_lane else None
    if other_lane and accepted.client_id is not None:  # both lanes would have one session
        if large == "this":
            raise ProtocolError(
                f"CONNECT: a second lane of user {username!r}; allowed: none, as the user name is "
                "the Client Identifier",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            )
        other_lane = ""
    if other_lane:
        is_there = core.sessions.get(other_lane) is not None
        large_above = core.outbox_rules.default_threshold_s or core.threshold_s("")
        properties["user_property"] = [
            *properties.get("user_property", ()),
            (LANE_PROPERTY, other_lane if is_there else ""),
            (
                LARGE_ABOVE_PROPERTY,
                str(MAX_REMAINING_LENGTH if large_above is None else large_above),
            ),
        ]
    if "maximum_packet_size" in packet.properties:
        _check_connack_fits(client, properties)
    if not packet.clean_start:
        await hand_over(core, client_id, username, client.listener, now)
        if client.is_closing:
            return
    client.holds = accepted.holds
    if not _holds(client):  # files were read again meanwhile
        _refuse_login(client, client_id, username, Refused(), now)
        return
    if not client.is_local and _refuse_session(client, client_id, username, packet.will, now):
        return
    journal = core.journal
    n_changes = journal.n_changes if journal is not None else 0
    session, session_present = core.sessions.open(
        client_id, clean_start=packet.clean_start, now=now
    )
    client.has_begun_session = not session_present
    session.expiry_interval = expiry_interval
    known_as = other_lane if large == "this" and is_there else client_id
    _set_up(session, client, packet, username, known_as)
    core.sessions.quota.count(session, username, client.remote_address)
    connack = ConnAck(session_present, properties=properties)
    if (
        journal is not None
        and not journal.is_failing
        # The inflight messages that are sent again after it must be committed, too.
        and (
            journal.n_changes != n_changes
            or (session_present and session.inflight and not journal.is_settled)
        )
    ):
        client.sender.hold(connack)
    else:
        client.sender.send_packet(connack)
    if not session.is_unused:
        core.connected(session.link, now)
    client.open(
        session,
        keep_alive=keep_alive,
        receive_maximum=packet.properties.get("receive_maximum", 65_535),
        topic_alias_maximum=packet.properties.get("topic_alias_maximum", 0),
    )
    if not client.is_local:
        yields = bool(told) and _yields(core, client_id, told, other_lane)
        core.lanes.connected(session, other_lane, now, yields=yields, large=large)
    if core.callbacks.client_connected:
        core.guard.tell(core.callbacks.client_connected, ClientConnected(session))


def _refuse_login(
    client: Client, client_id: str, username: str | None, refused: Refused, now: float
) -> None:
    is_judged = refused.reason_code != NOT_JUDGED.reason_code
    client.core.logger.info(
        # The log limits the lines of each format: a flood of logins must not hide wrong passwords.
        "client %s: %s: %s, from %s" if is_judged else "client %s: %s: not judged: %s, from %s",
        client_id,
        "no user name" if username is None else f"user {username!r}",
        refused.why or "not authorized",
        client.peer(),
    )
    client.refuse_connect(authenticating.refusal_code(refused, PacketType.CONNACK))
    client.end(now)


def close_if_revoked(client: Client, now: float) -> None:
    """Disconnect a client that access control refuses after a reload of its files.

    Its will is published and its session stays, as whenever the broker closes a connection.
    """
    if not _holds(client):
        revoke(client, "its user may no longer connect", now)


def revoke(client: Client, why: str, now: float) -> None:
    """Disconnect a client whose right to be connected has ended; log and count it."""
    if client.is_closing:
        return
    core = client.core
    core.counters.revoked += 1
    core.logger.info("%s: disconnected: %s", client.peer(), why)
    client.close(ReasonCode.NOT_AUTHORIZED, now)


def _holds(client: Client) -> bool:
    ask = client.holds
    return ask is None or client.core.guard.call("access control, holds", ask, otherwise=False)


def _refuse_session(
    client: Client, client_id: str, username: str | None, will: Will | None, now: float
) -> bool:
    """Refuse a client whose new session or will would exceed a limit.

    Returns:
        True where it was refused.
    """
    core = client.core
    sessions = core.sessions
    limit, allowed = "", ""
    if sessions.get(client_id) is None:
        limit, allowed = sessions.quota.refusal(len(sessions), username, client.remote_address)
    if not limit and will is not None and not sessions.has_room_for(will, client_id):
        limit, allowed = "wills", f"allowed: {core.limits.total_will_bytes} bytes of all wills"
    if not limit:
        return False
    count(core.counters.connections_refused, limit)
    core.logger.info("client %s: refused, %s, from %s", client_id, allowed, client.peer())
    client.refuse_connect(ReasonCode.QUOTA_EXCEEDED, **explained(allowed))
    client.end(now)
    return True


def _assigned_client_id(core: Core) -> str:
    """Return a Client Identifier that no session has [MQTT-3.2.2-16]."""
    while core.sessions.get(client_id := core.new_client_id()) is not None:
        pass
    return client_id


async def _log_in(
    core: Core, attempt: ConnectAttempt, username: str, now: float
) -> Accepted | Refused:
    """Authenticate a CONNECT, unless too many logins of its address or user have failed."""
    password = attempt.password or b""
    login = core.logins.begin(attempt.remote_address, username, password, now)
    if login is not None:
        refusal = authenticating.refused_unjudged(core, login)
        if refusal is not None:
            return refusal
        attempt = attempt._replace(is_wanted=login.is_wanted)
    answer = await _authenticate(core, attempt)
    if login is None or answer is _FAILED:
        return answer
    return authenticating.noted(core, login, answer, password, now)


async def _authenticate(core: Core, attempt: ConnectAttempt) -> Accepted | Refused:
    if core.access is None:
        return _ACCEPTED
    answer: Admittance
    try:  # as `Guard.wait_for`, with a coroutine less for each CONNECT
        asked = core.access.authenticate(attempt)
        answer = asked if asked is True or not isinstance(asked, Awaitable) else await asked
    except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
        core.guard.failed("access control, authenticate", error)
        return _FAILED
    if answer is True:
        return _ACCEPTED
    if isinstance(answer, (Accepted, Refused)):  # a union would be built for each CONNECT
        return answer
    if answer is None and attempt.username is not None:
        return Refused(why="unknown user")
    return _ACCEPTED if answer else Refused()


def _set_up(
    session: Session, client: Client, packet: Connect, username: str | None, known_as: str
) -> None:
    """Write the values of the newest CONNECT into the session, and pass them to the gate."""
    core = client.core
    before = session.version, session.username, session.listener, session.known_as
    session.version = packet.protocol_version
    session.username = username
    session.listener = client.listener
    session.known_as = known_as
    if session.subscriptions and before != (
        session.version,
        username,
        client.listener,
        known_as,
    ):
        core.tree.void_plans()
    told = packet.properties.get("user_property", ())
    if told and _says_yes(core, session.client_id, told, WAITS_PROPERTY):
        client.is_patient = True
    if packet.will is not session.will:
        core.sessions.set_will(session, packet.will)
    if core.journal is not None:
        core.journal.opened(session)  # which uses one that is durable
    if told or not session.is_unused:
        link = session.link
        link.username, link.listener = username, client.listener
        ignored = core.guard.call(core.gate, core.gate.connected, link, told, otherwise="")
        if ignored:
            core.counters.user_properties_ignored += 1
            core.logger.info("client %s: CONNECT: %s; ignored", session.client_id, ignored)


def _says_yes(core: Core, client_id: str, told: Sequence[tuple[str, str]], name: str) -> bool:
    """Say whether a CONNECT has a user property with the value ``yes``; the last one counts."""
    is_yes = False
    for value in [value for one, value in told if one == name]:
        is_yes = value == "yes"
        if not is_yes:
            core.counters.user_properties_ignored += 1
            core.logger.info(
                "client %s: CONNECT: user property %s: read %r; allowed: yes; ignored",
                client_id,
                name,
                value,
            )
    return is_yes


def _yields(core: Core, client_id: str, told: Sequence[tuple[str, str]], other_lane: str) -> bool:
    """Say whether a CONNECT asks that what is sent on its lane yields to the other lane."""
    yields = _says_yes(core, client_id, told, YIELDS_PROPERTY)
    if yields and not other_lane:
        core.counters.user_properties_ignored += 1
        core.logger.info(
            "client %s: CONNECT: user property %s: read without a lane to yield to; allowed: "
            "beside %s; ignored",
            client_id,
            YIELDS_PROPERTY,
            LANE_PROPERTY,
        )
    return yields


def _large_of(core: Core, client_id: str, told: Sequence[tuple[str, str]]) -> LargeOf:
    """Return which of two lanes is to take the large messages of both, by the CONNECT of one."""
    read = [value for name, value in told if name == SIZE_PROPERTY]
    large: LargeOf = None
    if read == ["large"]:
        large = "this"
    elif read == ["small"]:
        large = "other"
    elif read:
        core.counters.user_properties_ignored += 1
        core.logger.info(
            "client %s: CONNECT: user property %s: read %s; allowed: small or large; ignored",
            client_id,
            SIZE_PROPERTY,
            read,
        )
    return large


def _expiry_interval(core: Core, packet: Connect) -> float | None:
    """Return how many seconds a session outlives its connection; None: it does not expire."""
    if packet.protocol_version == MQTT_5:
        return expiry_seconds(core, packet.properties.get("session_expiry_interval", 0))
    return expiry_seconds(core, 0 if packet.clean_start else SESSION_NEVER_EXPIRES)


def expiry_seconds(core: Core, interval: int) -> float | None:
    """Return how many seconds a session outlives its connection; None: it does not expire.

    Args:
        core: whose `session_expiry_limit` is the most.
        interval: Session Expiry Interval that the client requests.
    """
    asked = None if interval == SESSION_NEVER_EXPIRES else float(interval)
    limit = core.session_expiry_limit
    if limit is None:
        return asked
    return limit if asked is None else min(asked, limit)


def _connack_properties(
    core: Core,
    packet: Connect,
    client_id: str,
    keep_alive: int,
    expiry_interval: float | None,
) -> dict[str, Any]:
    """Return the properties that say what the broker allows and has changed (3.2.2.3)."""
    limits = core.limits
    properties: dict[str, Any] = {
        "receive_maximum": limits.receive_maximum,
        "maximum_packet_size": limits.maximum_packet_size,
    }
    properties |= connack_properties(core.options, client_id, packet)
    if not packet.client_id:
        properties["assigned_client_identifier"] = client_id  # [MQTT-3.2.2-16]
    if keep_alive != packet.keep_alive:
        properties["server_keep_alive"] = keep_alive  # [MQTT-3.1.2-21]
    asked = packet.properties.get("session_expiry_interval", 0)
    if expiry_interval != _uncapped(asked):
        properties["session_expiry_interval"] = int(expiry_interval or 0)
    return properties


def _check_connack_fits(client: Client, properties: dict[str, Any]) -> None:
    """Check that the CONNACK is within the client's Maximum Packet Size.

    Before CONNACK no other packet may be sent to the client [MQTT-3.2.0-1].

    Raises:
        ProtocolError: packet too large.
    """
    maximum = client.sender.send_maximum
    connack = ConnAck(properties=properties)
    is_explained = client.sender.is_explained
    if fit_packet(connack, client.version, maximum, is_explained=is_explained) is None:
        raise ProtocolError(
            f"CONNECT: Maximum Packet Size {maximum}; allowed: room for the CONNACK",
            ReasonCode.PACKET_TOO_LARGE,
        )


def _uncapped(interval: int) -> float | None:
    return None if interval == SESSION_NEVER_EXPIRES else float(interval)
