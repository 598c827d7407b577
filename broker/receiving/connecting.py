"""CONNECT: from the first packet of a connection to a client with a session.

The exchange of a client that names an authentication method takes place in
`penstock.broker.receiving.authenticating`, which calls `let_in` when the client is authenticated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock.broker.access_control import NOT_JUDGED, Accepted, Admittance, ConnectAttempt, Refused
from penstock.broker.config.capabilities import check_connect, connack_properties, redirection
from penstock.broker.counters import count
from penstock.broker.errors import PenstockError, ProtocolError
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
from penstock.broker.sessions.lanes import LargeOf
from penstock.broker.sessions.user_change import hand_over, is_anothers
from penstock.broker.sessions.wills import will_message

if TYPE_CHECKING:
    from penstock.broker.config.limits import Limits
    from penstock.broker.durable.kept_sessions import KeptSessions
    from penstock.broker.session_rows import Stored
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.login_backoff import Attempt
    from penstock.broker.sessions.session import Session

_ACCEPTED: Final = Accepted()

_FAILED: Final = Refused(why="access control failed")

SESSION_NEVER_EXPIRES: Final = 0xFFFFFFFF
"""A session with this Session Expiry Interval does not expire (MQTT 5.0, 3.1.2.11.2)."""

_new_tuple: Final = tuple.__new__


class _Lane(NamedTuple):
    """Which of two lanes a client is.

    Attributes:
        other: Client Identifier of the other one; "" where there is none.
        large: which of them takes the large messages of both; None for neither.
        known_as: what access control and No Local know the client as; "" for its own name.
    """

    other: str = ""
    large: LargeOf = None
    known_as: str = ""


_NO_LANE: Final = _Lane()


class _Granted(NamedTuple):
    """What a client is let in with."""

    client_id: str
    username: str | None
    keep_alive: int
    expiry_interval: float | None
    properties: dict[str, Any]
    lane: _Lane


def handle_connect(client: Client, packet: Connect, now: float) -> None:
    """Take a client's first CONNECT (section 3.1).

    Raises:
        ProtocolError: no plugin provides its authentication method [MQTT-4.12.0-1], its will
            exceeds a limit (MQTT 5.0, 3.2.2.2), or it needs what the broker does not offer.
    """
    client.set_version(packet.protocol_version)
    client.is_answered = True
    client.is_bridge = packet.is_bridge
    asked = packet.properties
    if asked:
        sender = client.sender
        sender.send_maximum = asked.get("maximum_packet_size", sender.send_maximum)
        sender.is_explained = bool(asked.get("request_problem_information", 1))
    options = client.core.options
    check_connect(options, packet)
    if options.redirect is not None and (code := redirection(options)) is not None:
        client.refuse_connect(code, server_reference=options.server_reference)
        client.end(now)
        return
    if client.refusal is not None:  # a limit on connections was reached
        why = describe_reason_code(client.refusal)
        _refuse(client, packet.client_id or "without an id", why, client.refusal, now)
        return
    if client.core.bans.entries and _refuse_banned(client, packet.client_id, packet.username, now):
        return
    method = asked.get("authentication_method")
    if method is not None:
        authenticating.check_method(client.core, method)
    if not packet.client_id:
        _check_no_client_id(packet, may_be_empty=options.allow_empty_client_id)
    if packet.will is not None:
        _check_will(client.core.limits, packet.will, packet.protocol_version)
    _connect(client, packet, now)


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


def _check_no_client_id(packet: Connect, *, may_be_empty: bool) -> None:
    """Check that a client without Client Identifier may have one assigned.

    MQTT 3.1 has no empty Client Identifier. Its limit of 23 characters is not enforced, because
    real clients exceed it.

    Raises:
        ProtocolError: client identifier not valid [MQTT-3.1.3-8] of MQTT 3.1.1.
    """
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


def _connect(client: Client, packet: Connect, now: float) -> None:
    core = client.core
    if client.is_local:
        client.is_relay = packet.client_id.startswith(RELAY_CLIENT_PREFIX)
        rest = let_in(client, packet, packet.client_id, _ACCEPTED, {}, now)
        if rest is not None:
            client.run(rest)
        return
    client_id = packet.client_id or _assigned_client_id(core)
    username = packet.username
    # In half the time of a call of its class.
    attempt: ConnectAttempt = _new_tuple(
        ConnectAttempt,
        (
            client_id,
            username,
            packet.password,
            packet.protocol_version,
            packet.clean_start,
            packet.keep_alive,
            will_message(packet.will, client_id, now) if packet.will is not None else None,
            client.remote_address,
            client.remote_port,
            client.listener,
            client.ssl_object,
            client.certificate_name,
            None,
        ),
    )
    method = packet.properties.get("authentication_method")
    if method is not None:
        data = packet.properties.get("authentication_data")
        open_ = partial(let_in, client, packet, client_id)
        client.run(authenticating.begin(client, attempt, method, data, open_, now))
        return
    login = None
    if username is not None:  # otherwise no password can be guessed
        login = core.logins.begin(client.remote_address, username, packet.password or b"", now)
        if login is not None:
            refusal = authenticating.refused_unjudged(core, login)
            if refusal is not None:
                _refuse_login(client, client_id, username, refusal, now)
                return
            attempt = attempt._replace(is_wanted=login.is_wanted)
    answer = _ask(core, attempt)
    if isinstance(answer, (Accepted, Refused)):
        rest = _take_answer(client, packet, attempt, answer, login, now)
        if rest is not None:
            client.run(rest)
    else:
        client.run(_await_answer(client, packet, attempt, answer, login, now))


def _ask(core: Core, attempt: ConnectAttempt) -> Accepted | Refused | Awaitable[Admittance]:
    """Ask access control who may connect; what takes a wait is to be read by `_read`."""
    if core.access is None:
        return _ACCEPTED
    try:
        answer = core.access.authenticate(attempt)
    except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
        core.guard.failed("access control, authenticate", error)
        return _FAILED
    if answer is True:
        return _ACCEPTED
    return answer if isinstance(answer, Awaitable) else _read(answer, attempt)


def _read(answer: Admittance, attempt: ConnectAttempt) -> Accepted | Refused:
    if answer is True:
        return _ACCEPTED
    if isinstance(answer, (Accepted, Refused)):  # a union would be built for each CONNECT
        return answer
    if answer is None and attempt.username is not None:
        return Refused(why="unknown user")
    return _ACCEPTED if answer else Refused()


async def _await_answer(
    client: Client,
    packet: Connect,
    attempt: ConnectAttempt,
    awaited: Awaitable[Admittance],
    login: Attempt | None,
    now: float,
) -> None:
    try:
        answer = _read(await awaited, attempt)
    except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
        client.core.guard.failed("access control, authenticate", error)
        answer = _FAILED
    rest = _take_answer(client, packet, attempt, answer, login, now)
    if rest is not None:
        await rest


def _take_answer(
    client: Client,
    packet: Connect,
    attempt: ConnectAttempt,
    answer: Accepted | Refused,
    login: Attempt | None,
    now: float,
) -> Coroutine[Any, Any, None] | None:
    """Let a client in, as far as that needs no wait, or refuse it; return the rest as `let_in`."""
    if login is not None and answer is not _FAILED:
        answer = authenticating.noted(client.core, login, answer, packet.password or b"", now)
    if client.is_closing:
        return None
    if isinstance(answer, Refused):
        _refuse_login(client, attempt.client_id, packet.username, answer, now)
        return None
    return let_in(client, packet, attempt.client_id, answer, {}, now)


def let_in(
    client: Client,
    packet: Connect,
    client_id: str,
    accepted: Accepted,
    properties: dict[str, Any],
    now: float,
) -> Coroutine[Any, Any, None] | None:
    """Give an authenticated client its session and its CONNACK.

    Returns:
        What is still to be awaited, where the session was another user's or another broker's;
        None where all is done.

    Raises:
        ProtocolError: the CONNACK is larger than the client's Maximum Packet Size, or the Client
            Identifier is reserved.
    """
    core = client.core
    client_id = accepted.client_id or client_id
    username = packet.username if accepted.username is None else accepted.username
    if core.bans.entries and _refuse_banned(client, client_id, username, now):
        return None
    keep_alive = packet.keep_alive
    expiry_interval = 0.0 if client.is_forwarded else None
    if not client.is_local:
        if client_id.startswith(LOCAL_CLIENT_PREFIX):
            raise ProtocolError(
                f"CONNECT: Client Identifier {client_id!r}; allowed: none that begins with "
                f"{LOCAL_CLIENT_PREFIX!r}, which is the broker's own",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            )
        longest = core.limits.maximum_keep_alive
        if longest is not None:
            keep_alive = min(keep_alive or longest, longest)
        expiry_interval = _expiry_interval(core, packet)
    lane = _NO_LANE
    if packet.protocol_version == MQTT_5:
        allowed = _connack_properties(core, packet, client_id, keep_alive, expiry_interval)
        properties = allowed | properties
        told = packet.properties.get("user_property")
        if told:
            lane = _lane_of(core, client_id, accepted, username, told, properties)
        if "maximum_packet_size" in packet.properties:
            _check_connack_fits(client, properties)
    granted: _Granted = _new_tuple(
        _Granted, (client_id, username, keep_alive, expiry_interval, properties, lane)
    )
    return _open_owned(client, packet, accepted, granted, now)


def _open_owned(
    client: Client, packet: Connect, accepted: Accepted, granted: _Granted, now: float
) -> Coroutine[Any, Any, None] | None:
    """Open a session once it is this user's, and this broker has it; return the rest as `let_in`.

    After each wait, all is asked again: the last answer and the opening are one step.
    """
    core = client.core
    client_id = granted.client_id
    if not packet.clean_start and is_anothers(core, client_id, granted.username, client.listener):
        return _hand_over_first(client, packet, accepted, granted, now)
    if core.claim is not None and not client.is_local:
        try:
            claimed = core.claim(client_id, clean_start=packet.clean_start)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
            _refuse_unclaimed(client, client_id, error, now)
            return None
        if claimed is not None:
            return _claim_first(claimed, client, packet, accepted, granted, now)
    _open(client, packet, accepted, granted, now)
    return None


async def _claim_first(
    claimed: Awaitable[Stored | None],
    client: Client,
    packet: Connect,
    accepted: Accepted,
    granted: _Granted,
    now: float,
) -> None:
    core = client.core
    if client.timer is not None:  # that of the CONNECT, which has come
        client.timer.cancel()
        client.timer = None
    try:
        stored = await claimed
        served = client.outgoing.served
        if stored is not None and served is not None and served.has_hung_up():
            client.end(now)  # it may be elsewhere by now, and have sent again what is behind this
        is_here = core.sessions.get(granted.client_id) is not None  # by another connection
        if stored is not None and not (client.is_closing or is_here):
            cast("KeptSessions", core.kept).restore(stored, now)
    except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
        if not client.is_closing:
            _refuse_unclaimed(client, granted.client_id, error, now)
        return
    try:
        rest = None if client.is_closing else _open_owned(client, packet, accepted, granted, now)
        if rest is not None:
            await rest
    finally:
        if stored is not None:
            core.sessions.look(granted.client_id)


async def _hand_over_first(
    client: Client, packet: Connect, accepted: Accepted, granted: _Granted, now: float
) -> None:
    await hand_over(client.core, granted.client_id, granted.username, client.listener, now)
    rest = None if client.is_closing else _open_owned(client, packet, accepted, granted, now)
    if rest is not None:
        await rest


def _refuse_unclaimed(client: Client, client_id: str, error: Exception, now: float) -> None:
    """Refuse a client whose session this broker may not have, or cannot ask for."""
    core = client.core
    why = str(error)
    if not isinstance(error, PenstockError):
        core.guard.failed("session owner", error)
        why = ""
    count(core.counters.connections_refused, "session_owner")
    told = explained(why)
    _refuse(client, client_id, why or "no owner", ReasonCode.SERVER_UNAVAILABLE, now, **told)


def _lane_of(
    core: Core,
    client_id: str,
    accepted: Accepted,
    username: str | None,
    told: Sequence[tuple[str, str]],
    properties: dict[str, Any],
) -> _Lane:
    """Return which lane a client is, and add to the properties of CONNACK what it is told of that.

    Raises:
        ProtocolError: both lanes would have one session.
    """
    if core.site and (WAITS_PROPERTY, "yes") in told:  # an uplink, which may lead to its own site
        properties["user_property"] = [(SITE_PROPERTY, core.site)]
    other_lane = core.lanes.asked(client_id, username, told)
    if not other_lane:
        return _NO_LANE
    large = _large_of(core, client_id, told)
    if accepted.client_id is not None:
        if large == "this":
            raise ProtocolError(
                f"CONNECT: a second lane of user {username!r}; allowed: none, as the user name is "
                "the Client Identifier",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            )
        return _Lane("", large)
    is_there = core.sessions.get(other_lane) is not None
    large_above = core.outbox_rules.default_threshold_s or core.threshold_s("")
    properties["user_property"] = [
        *properties.get("user_property", ()),
        (LANE_PROPERTY, other_lane if is_there else ""),
        (LARGE_ABOVE_PROPERTY, str(MAX_REMAINING_LENGTH if large_above is None else large_above)),
    ]
    return _Lane(other_lane, large, other_lane if large == "this" and is_there else "")


def _open(
    client: Client, packet: Connect, accepted: Accepted, granted: _Granted, now: float
) -> None:
    """Open the session of a client that may have it, and the client with its CONNACK."""
    core = client.core
    client_id, username, keep_alive, expiry_interval, properties, lane = granted
    if accepted.holds is not None:
        client.holds = accepted.holds
        if not _holds(client):  # files were read again meanwhile
            _refuse_login(client, client_id, username, Refused(), now)
            return
    sessions, journal = core.sessions, core.journal
    if not client.is_local and _refuse_session(client, client_id, username, packet.will, now):
        return
    n_changes = journal.n_changes if journal is not None else 0
    session, session_present = sessions.open(client_id, clean_start=packet.clean_start, now=now)
    client.has_begun_session = not session_present
    session.expiry_interval = expiry_interval
    _set_up(session, client, packet, username, lane.known_as or client_id)
    if sessions.quota.is_limited:
        sessions.quota.count(session, username, client.remote_address)
    connack = ConnAck(session_present, 0, properties)
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
    asked = packet.properties
    client.open(
        session,
        keep_alive=keep_alive,
        receive_maximum=asked.get("receive_maximum", 65_535),
        topic_alias_maximum=asked.get("topic_alias_maximum", 0),
    )
    told = asked.get("user_property", ())
    if not client.is_local and (told or core.lanes.has_lanes):
        yields = bool(told) and _yields(core, client_id, told, lane.other)
        core.lanes.connected(session, lane.other, now, yields=yields, large=lane.large)
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
        extra={
            "event": "login_failed" if is_judged else "login_not_judged",
            "user": username,
            "reason": refused.why or "not authorized",
        },
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


def leave_listener(client: Client, now: float) -> None:
    """Disconnect a client whose listener was closed; its session stays."""
    client.core.logger.info(
        "%s: disconnected: listener %s was closed", client.peer(), client.listener
    )
    client.close(ReasonCode.ADMINISTRATIVE_ACTION, now, reason_string="the listener was closed")


def _holds(client: Client) -> bool:
    ask = client.holds
    return ask is None or client.core.guard.call("access control, holds", ask, otherwise=False)


def _refuse_banned(client: Client, client_id: str, username: str | None, now: float) -> bool:
    """Refuse a client whom an operator has banned by its name; say whether it was.

    It is asked before the client is authenticated, and again where that has given it other names.
    """
    core = client.core
    if client.is_local:
        return False
    if core.bans.bans("client_id", client_id, now):
        why = "client id"
    elif core.bans.bans("username", username, now):
        why = f"user {username!r}"
    else:
        return False
    count(core.counters.connections_refused, "banned")
    core.logger.info("client %s: refused, banned by %s, from %s", client_id, why, client.peer())
    client.refuse_connect(ReasonCode.BANNED)
    client.end(now)
    return True


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
        limit, allowed = sessions.quota.refusal(
            sessions.n_of_clients, username, client.remote_address
        )
    if not limit and will is not None and not sessions.has_room_for(will, client_id):
        limit, allowed = "wills", f"allowed: {core.limits.total_will_bytes} bytes of all wills"
    if not limit:
        return False
    count(core.counters.connections_refused, limit)
    _refuse(client, client_id, allowed, ReasonCode.QUOTA_EXCEEDED, now, **explained(allowed))
    return True


def _refuse(
    client: Client, client_id: str, why: str, code: ReasonCode, now: float, **properties: Any
) -> None:
    """Refuse a client, and log why; the properties are those of its CONNACK."""
    client.core.logger.info("client %s: refused, %s, from %s", client_id, why, client.peer())
    client.refuse_connect(code, **properties)
    client.end(now)


def _assigned_client_id(core: Core) -> str:
    """Return a Client Identifier that no session has [MQTT-3.2.2-16]."""
    while core.sessions.get(client_id := core.new_client_id()) is not None:
        pass
    return client_id


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
    if session.subscriptions and before != (session.version, username, client.listener, known_as):
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
            _ignore(core, session.client_id, ignored)


def _says_yes(core: Core, client_id: str, told: Sequence[tuple[str, str]], name: str) -> bool:
    """Say whether a CONNECT has a user property with the value ``yes``; the last one counts."""
    is_yes = False
    for value in [value for one, value in told if one == name]:
        is_yes = value == "yes"
        if not is_yes:
            _ignore(core, client_id, f"user property {name}: read {value!r}; allowed: yes")
    return is_yes


def _yields(core: Core, client_id: str, told: Sequence[tuple[str, str]], other_lane: str) -> bool:
    """Say whether a CONNECT asks that what is sent on its lane yields to the other lane."""
    yields = _says_yes(core, client_id, told, YIELDS_PROPERTY)
    if yields and not other_lane:
        why = f"read without a lane to yield to; allowed: beside {LANE_PROPERTY}"
        _ignore(core, client_id, f"user property {YIELDS_PROPERTY}: {why}")
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
        what = f"user property {SIZE_PROPERTY}: read {read}; allowed: small or large"
        _ignore(core, client_id, what)
    return large


def _ignore(core: Core, client_id: str, what: str) -> None:
    """Count and log what a CONNECT says and cannot be used."""
    core.counters.user_properties_ignored += 1
    core.logger.info("client %s: CONNECT: %s; ignored", client_id, what)


def _expiry_interval(core: Core, packet: Connect) -> float | None:
    """Return how many seconds a session outlives its connection; None: it does not expire."""
    if packet.protocol_version == MQTT_5:
        return expiry_seconds(core, packet.properties.get("session_expiry_interval", 0))
    return expiry_seconds(core, 0 if packet.clean_start else SESSION_NEVER_EXPIRES)


def expiry_seconds(core: Core, interval: int) -> float | None:
    """Return how many seconds a session outlives its connection; None: it does not expire."""
    asked = None if interval == SESSION_NEVER_EXPIRES else float(interval)
    limit = core.session_expiry_limit
    if limit is None:
        return asked
    return limit if asked is None else min(asked, limit)


def _connack_properties(
    core: Core, packet: Connect, client_id: str, keep_alive: int, expiry_interval: float | None
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
