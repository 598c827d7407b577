"""AUTH: enhanced authentication, by as many packets as its method takes (MQTT 5.0, 4.12).

A CONNECT that names a method starts an exchange with the `Authenticator` of that name. Each
step's answer is a challenge, which goes out as AUTH and is answered by AUTH; or the client is
let in, by `penstock.broker.receiving.connecting`; or refused. Until then the connection is not
open: it takes AUTH and DISCONNECT and nothing else, and the time allowed for CONNECT goes on
    running. A connected
client may start the same exchange again; its other packets go on meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access_control import (
    NOT_JUDGED,
    Accepted,
    AuthExchange,
    AuthStep,
    Challenge,
    ConnectAttempt,
    Refused,
)
from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import REASON_CODES, Auth
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.sessions.client import Authentication, LetIn

if TYPE_CHECKING:
    from penstock.broker.sessions.broker_state import Core
    from penstock.broker.sessions.client import Client
    from penstock.broker.sessions.login_backoff import Attempt

_NOT_TAKEN: Final = frozenset(PacketType) - {PacketType.AUTH, PacketType.DISCONNECT}

_FAILED: Final = Refused(why="the authenticator failed")


class AuthenticationRefusedError(PeerError):
    """The exchange has failed: the connection closes, with this reason code.

    Attributes:
        why: for the log alone: the client is told `detail`.
    """

    reason_code = ReasonCode.NOT_AUTHORIZED

    def __init__(self, message: str, reason_code: ReasonCode, why: str) -> None:
        super().__init__(message, reason_code)
        self.why = why

    def __str__(self) -> str:
        """Say why, too."""
        return f"{super().__str__()}: {self.why}" if self.why else super().__str__()


def check_method(core: Core, method: str) -> None:
    """Check that there is an authenticator for the method that a CONNECT names.

    Raises:
        ProtocolError: there is none [MQTT-4.12.0-1].
    """
    if method not in core.authenticators:
        raise ProtocolError(
            f"CONNECT: authentication method {method!r}; allowed: "
            + (", ".join(core.authenticators) or "none"),
            ReasonCode.BAD_AUTHENTICATION_METHOD,
        )


def check_packet_type(packet_type: int) -> None:
    """Check a packet that comes between a CONNECT with a method and its CONNACK.

    Raises:
        ProtocolError: it is another than AUTH and DISCONNECT [MQTT-3.1.2-30]. A type that
            there is not is left to the reader.
    """
    if packet_type in _NOT_TAKEN:
        raise ProtocolError(
            f"{PacketType(packet_type).name} before CONNACK; allowed: AUTH, DISCONNECT"
        )


async def begin(
    client: Client,
    attempt: ConnectAttempt,
    method: str,
    data: bytes | None,
    let_in: LetIn,
    now: float,
) -> None:
    """Take the first step, with what CONNECT brought, and a method that `check_method` has checked.

    `let_in` is called once, when the client has authenticated.

    Raises:
        AuthenticationRefusedError: the client is refused.
    """
    client.authentication = Authentication(method, attempt, let_in)
    await _start(client, client.authentication, data, now)


def handle_auth(client: Client, packet: Auth, now: float) -> None:
    """Take an AUTH (section 3.15).

    Raises:
        ProtocolError: the client named no method in CONNECT [MQTT-4.12.0-7], or another one
            [MQTT-4.12.1-1], or no exchange waits for this packet [MQTT-4.12.0-3].
        AuthenticationRefusedError: the client is refused.
    """
    authentication = client.authentication
    if authentication is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT")
    method = packet.properties.get("authentication_method")
    if method != authentication.method:
        raise ProtocolError(
            f"AUTH: authentication method {method!r}; allowed: {authentication.method!r}",
            ReasonCode.BAD_AUTHENTICATION_METHOD,
        )
    data = packet.properties.get("authentication_data")
    exchange = authentication.exchange
    if packet.reason_code == ReasonCode.CONTINUE_AUTHENTICATION and exchange is not None:
        client.run(_step(client, authentication, exchange, data, now))
    elif packet.reason_code == ReasonCode.REAUTHENTICATE and exchange is None:
        client.run(_start(client, authentication, data, now))
    else:
        allowed = "Re-authenticate" if exchange is None else "Continue authentication"
        raise ProtocolError(f"AUTH: reason code 0x{packet.reason_code:02X}; allowed: {allowed}")


async def _start(
    client: Client, authentication: Authentication, data: bytes | None, now: float
) -> None:
    authenticator = client.core.authenticators[authentication.method]
    name = f"authenticator {authentication.method}"
    exchange = client.core.guard.call(
        name, authenticator.start, authentication.attempt, otherwise=None
    )
    if exchange is None:
        raise _refused(client, authentication, Refused())
    authentication.exchange = exchange
    await _step(client, authentication, exchange, data, now)


async def _step(
    client: Client,
    authentication: Authentication,
    exchange: AuthExchange,
    data: bytes | None,
    now: float,
) -> None:
    name = f"authenticator {authentication.method}"
    step: AuthStep = await client.core.guard.wait_for(name, exchange.step, data, otherwise=_FAILED)
    if client.is_closing:
        return
    if not isinstance(step, Challenge) and step is not _FAILED:
        step = _judged(client, authentication, step, now)
    properties: dict[str, Any] = {"authentication_method": authentication.method}
    if isinstance(step, Refused):
        raise _refused(client, authentication, step)
    if step.data is not None:
        properties["authentication_data"] = step.data
    if isinstance(step, Challenge):
        client.sender.send_packet(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
        return
    authentication.exchange = None
    if not client.is_open:
        rest = authentication.let_in(step, properties, now)
        if rest is not None:
            await rest
        return
    username = client.session.username
    if step.username not in (None, username):
        # What the session may do was granted to that user; 4.12.1 lets a server refuse.
        raise _refused(client, authentication, Refused())
    client.holds = step.holds
    client.sender.send_packet(Auth(ReasonCode.SUCCESS, properties))


def _judged(
    client: Client, authentication: Authentication, step: Accepted | Refused, now: float
) -> Accepted | Refused:
    """Return what an exchange comes to whose client may have failed too often before.

    Who it is was not known earlier, and to verify a proof is cheap.
    """
    core = client.core
    username = step.username if step.username is not None else authentication.attempt.username
    login = core.logins.begin(client.remote_address, username, None, now)
    if login is None:
        return step
    refused = refused_unjudged(core, login)
    if refused is not None:
        return refused
    return noted(core, login, step, None, now)


def _refused(
    client: Client, authentication: Authentication, step: Refused
) -> AuthenticationRefusedError:
    """Return what closes the connection, with a reason code that its packet may have."""
    packet_type = PacketType.DISCONNECT if client.is_open else PacketType.CONNACK
    return AuthenticationRefusedError(
        f"client {authentication.attempt.client_id}: authentication by {authentication.method}",
        refusal_code(step, packet_type),
        step.why,
    )


def refused_unjudged(core: Core, login: Attempt) -> Refused | None:
    """Return the refusal of a login that is not judged, and count it; None for others."""
    if not login.wait and not login.is_known_wrong:
        return None
    core.counters.logins_not_judged += 1
    if login.is_known_wrong:
        return Refused(why="the same wrong password again")
    why = f"{NOT_JUDGED.why}, the next is judged in {math.ceil(login.wait)} s"
    return NOT_JUDGED._replace(why=why)


def noted(
    core: Core, login: Attempt, answer: Accepted | Refused, password: bytes | None, now: float
) -> Accepted | Refused:
    """Note the outcome of a login for those that follow.

    Returns:
        The answer; a refusal with what the log is to say beside.
    """
    if isinstance(answer, Accepted):
        core.logins.succeeded(login)
        return answer
    if answer.reason_code == NOT_JUDGED.reason_code:
        core.counters.logins_not_judged += 1
        return answer
    core.counters.logins_failed += 1
    wait = core.logins.failed(login, password, now)
    if not wait:
        return answer
    why = f"{answer.why or 'not authorized'}; the next is judged in {math.ceil(wait)} s"
    return answer._replace(why=why)


def refusal_code(refused: Refused, packet_type: PacketType) -> ReasonCode:
    """Return the reason code of a refusal, if a packet of this type may have it."""
    code = refused.reason_code
    is_known = code >= 0x80 and code in REASON_CODES[packet_type]
    return code if is_known else ReasonCode.NOT_AUTHORIZED
