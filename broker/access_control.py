"""The points at which plugins decide about clients.

`penstock.broker.extensions` has those about messages. `AccessControl` answers for authentication by
what CONNECT says, and for topics; an `Authenticator` is one method of enhanced authentication (MQTT
5.0, 4.12). Both may take a wait. `penstock.broker.sessions.access` puts several together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.reason_codes import ReasonCode


class Action(NamedTuple):
    """An action that a client wants to take on a topic; `name` is aMQTT's word for it."""

    name: str


PUBLISH = Action("publish")
SUBSCRIBE = Action("subscribe")
RECEIVE = Action("receive")


class ConnectAttempt(NamedTuple):
    """The facts that an authenticator may know of a client that asks to connect.

    Attributes:
        client_id: Client Identifier, as assigned where the client sent none.
        username: user name, or None where the client sent none.
        password: the password as sent, or None.
        protocol_version: 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5.
        clean_start: Clean Start, or Clean Session in MQTT 3.1.1.
        keep_alive: seconds as asked for; 0 for none.
        will: the Will Message, or None.
        remote_address: the peer's address, or "" where it has none.
        remote_port: the peer's port, or 0.
        listener: name of the listener in the policy file.
        ssl_object: the TLS connection, or None.
        certificate_name: common name of its verified certificate, as TLS or a proxy says; or None.
        is_wanted: says before long work whether the answer is still wanted; else it is
            `NOT_JUDGED`. None: it is wanted.
    """

    client_id: str
    username: str | None
    password: bytes | None
    protocol_version: int
    clean_start: bool
    keep_alive: int
    will: Message | None
    remote_address: str
    remote_port: int
    listener: str
    ssl_object: Any = None
    certificate_name: str | None = None
    is_wanted: Callable[[], bool] | None = None


class Accepted(NamedTuple):
    """A client is let in, where there is more to say of it than that.

    Attributes:
        username: the user name that it has from now on, such as that of its certificate; None
            leaves the one that CONNECT brought.
        client_id: the Client Identifier that it has from now on, or None.
        data: last Authentication Data of an exchange, for the client to check the server by.
        holds: says whether the client would still be let in for the same reason; asked after each
            reload of files, to disconnect it else. None where no reload changes anything.
    """

    username: str | None = None
    client_id: str | None = None
    data: bytes | None = None
    holds: Callable[[], bool] | None = None


class Refused(NamedTuple):
    """A client is not let in; it is false, so that no test of truth lets the client in.

    Attributes:
        reason_code: the reason code for the client, where a packet may have it.
        why: the reason, for the log alone, such as ``wrong password``; never a part of a secret.
        username: whom the client has claimed to be in an exchange; None for what CONNECT says.
    """

    reason_code: ReasonCode = ReasonCode.NOT_AUTHORIZED
    why: str = ""
    username: str | None = None

    def __bool__(self) -> bool:
        """Return False."""
        return False


NOT_JUDGED = Refused(ReasonCode.CONNECTION_RATE_EXCEEDED, "too many failed logins")

Admittance: TypeAlias = bool | Accepted | Refused | None
"""The answer whether a client may connect; None leaves the client to other access controls."""


class SessionView(Protocol):
    """The parts of a session that an extension may see; all of it is read-only to extensions.

    Attributes:
        client_id: Client Identifier.
        known_as: the Client Identifier by which it is judged: where a client has two lanes, that of
            the first one for both.
        username: user name of the newest connection, or None.
        listener: name of the newest connection's listener; "" before there was one.
        will: the will of the newest connection; None where it has none, or was published.
    """

    client_id: str
    known_as: str
    username: str | None
    listener: str
    will: Will | None

    @property
    def is_connected(self) -> bool:
        """True if the client has a network connection now."""


class AccessControl:
    """Authentication and topic filtering. As it is, it lets no client in and forbids nothing.

    An answer is given at once, or is an awaitable where it takes a wait; while it is awaited
    the connection reads nothing more. Where several are there, `penstock.broker.sessions.access`
    says what their answers come to. What raises has refused; it is logged and counted.

    Attributes:
        checks_publish: whether `authorize` must be asked for each PUBLISH, if it is overridden.
        checks_subscribe: whether it must be asked for each topic filter of a SUBSCRIBE.
        checks_receive: whether it must be asked for each delivery.
        answers_last: whether `authorize` answers at once, and always the same of a topic and an
            action to a session with the same client_id, known_as, username and listener, until
            `rules_changed` is called. The broker then asks once, and remembers the answer.
    """

    checks_publish: bool = True
    checks_subscribe: bool = True
    checks_receive: bool = True
    answers_last: bool = False

    _on_change: Callable[[], None] | None = None

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call a function whenever answers of `authorize` may have changed."""
        self._on_change = on_change

    def rules_changed(self) -> None:
        """Have the broker forget the answers that it remembers; for `answers_last`.

        Call it on the event loop's thread.
        """
        if self._on_change is not None:
            self._on_change()

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:  # noqa: ARG002
        """Say whether the client may connect, or None where that is for others to say.

        Not asked about a client that names an authentication method.
        """
        return None

    def check_password(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:  # noqa: ARG002
        """Say whether a user has this password, for a login elsewhere than at a listener.

        Unlike `authenticate`, it lets in nobody without a password.

        Args:
            attempt: with the username, the password and the remote address.

        Returns:
            None where the user is not one of its own.
        """
        return None

    def authorize(
        self,
        session: SessionView,  # noqa: ARG002
        topic: str,  # noqa: ARG002
        action: Action,  # noqa: ARG002
    ) -> bool | Awaitable[bool]:
        """Say whether the session may do this with a topic (or, to subscribe, a filter)."""
        return True


class Challenge(NamedTuple):
    """The exchange goes on: the client is to answer by another AUTH.

    Attributes:
        data: Authentication Data for the client, or None.
    """

    data: bytes | None = None


AuthStep: TypeAlias = Challenge | Accepted | Refused
"""The result of one step of an exchange."""


class AuthExchange(ABC):
    """One client's way through an authentication method."""

    @abstractmethod
    def step(self, data: bytes | None) -> AuthStep | Awaitable[AuthStep]:
        """Take the Authentication Data of CONNECT or AUTH; None where there was none.

        An exchange that raises has refused. Not called again after `Accepted` or `Refused`.
        """


class Authenticator(ABC):
    """A method of enhanced authentication; it decides alone who connects by it.

    Attributes:
        method: Authentication Method, as in CONNECT; unique in the broker.
    """

    method: str

    @abstractmethod
    def start(self, attempt: ConnectAttempt) -> AuthExchange:
        """Begin an exchange, at CONNECT or when a connected client authenticates again."""
