"""aMQTT's view of a session."""

from __future__ import annotations

from asyncio import Queue
from collections import OrderedDict
from typing import Any, ClassVar, Final

from amqtt.session import Session as AmqttSession

from penstock.broker.access_control import ConnectAttempt
from penstock.broker.sessions.session import Session

_INITIAL: Final = vars(AmqttSession())
"""Every attribute of aMQTT's session with its initial value."""

_MADE_WHEN_ASKED: Final = {
    name: type(value) for name, value in _INITIAL.items() if isinstance(value, (OrderedDict, Queue))
}

_OF_THE_CONNECTION: Final = (
    "attributes",
    "clean_session",
    "is_anonymous",
    "keep_alive",
    "password",
    "remote_address",
    "remote_port",
    "ssl_object",
    "username",
    "will_flag",
    "will_message",
    "will_qos",
    "will_retain",
    "will_topic",
)
"""Attributes that a new connection of a client brings to its existing session."""


class SessionState:
    """The state of a session, in place of aMQTT's state machine."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = "new"

    def connect(self) -> None:
        """Go to ``connected``."""
        self.state = "connected"

    def disconnect(self) -> None:
        """Go to ``disconnected``."""
        self.state = "disconnected"

    def is_new(self) -> bool:
        """Say whether the client was never connected."""
        return self.state == "new"

    def is_connected(self) -> bool:
        """Say whether the client is connected."""
        return self.state == "connected"

    def is_disconnected(self) -> bool:
        """Say whether the client was connected and is no longer."""
        return self.state == "disconnected"


class HostedSession(AmqttSession):
    """A session as a plugin gets it, in place of aMQTT's own session.

    aMQTT's constructor builds a state machine and two queues, 23 KB and 140 microseconds for each
    client. Here an attribute has its initial value, which stands in the class, until it is set.

    Attributes:
        session: the broker's session; None while a client is authenticated.
        connected_as: the user name of the CONNECT, then the one that the broker's session had when
            it was last looked at; a plugin may give the client another one.
    """

    session: Session | None = None
    connected_as: str | None = None

    ssl_object: Any

    __hash__: ClassVar[None]  # type: ignore[assignment]  # as aMQTT's own

    def __init__(self, client_id: str) -> None:  # pylint: disable=super-init-not-called
        self.client_id = client_id
        self.attributes: dict[str, Any] = {}
        self.transitions: Any = SessionState()

    def __getattr__(self, name: str) -> Any:
        """Make a container of aMQTT's session on its first use."""
        factory = _MADE_WHEN_ASKED.get(name)
        if factory is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = self.__dict__[name] = factory()
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot be pickled and what belongs to the broker."""
        left_out = {"session", "ssl_object", *_MADE_WHEN_ASKED}
        return {key: value for key, value in self.__dict__.items() if key not in left_out}

    @property
    def username(self) -> str | None:
        """The user name by which topic plugins judge the client."""
        return self.__dict__.get("username")

    @username.setter
    def username(self, name: str | None) -> None:
        if self.session is not None and name != self.username:
            self.session.core.tree.void_plans()  # what was answered before was of another user
        self.__dict__["username"] = name

    @property
    def inflight_in_count(self) -> int:
        """QoS 2 messages of this client that are not released."""
        return len(self.session.incoming) if self.session is not None else 0

    @property
    def inflight_out_count(self) -> int:
        """QoS 1 and 2 messages sent to this client and not acknowledged."""
        return len(self.session.inflight) if self.session is not None else 0

    @property
    def retained_messages_count(self) -> int:
        """Messages that wait for this client; the name is aMQTT's."""
        return self.session.outbox.n_messages if self.session is not None else 0

    def take_over(self, newer: HostedSession) -> None:
        """Take what a new connection of the same client brings."""
        for name in _OF_THE_CONNECTION:
            setattr(self, name, getattr(newer, name))

    def connected(self) -> None:
        """Note that the client is connected, and when."""
        self.transitions.connect()
        self._on_enter_connected()

    def disconnected(self) -> None:
        """Note that the client is no longer connected, and when."""
        self.transitions.disconnect()
        self._on_enter_disconnected()


for _name, _value in _INITIAL.items():
    if _name not in _MADE_WHEN_ASKED and _name != "username":
        setattr(HostedSession, _name, _value)


def session_of_attempt(attempt: ConnectAttempt, keep_alive_grace: int) -> HostedSession:
    """Return the session that aMQTT's authentication plugins get, with a grace in seconds."""
    session = HostedSession(attempt.client_id)
    session.clean_session = attempt.clean_start
    session.username = session.connected_as = attempt.username
    session.password = None if attempt.password is None else _as_text(attempt.password)
    session.remote_address = attempt.remote_address
    session.remote_port = attempt.remote_port
    session.ssl_object = attempt.ssl_object
    if attempt.keep_alive > 0:
        session.keep_alive = attempt.keep_alive + keep_alive_grace
    if attempt.will is not None:
        session.will_flag = True
        session.will_topic = attempt.will.topic
        session.will_message = attempt.will.read_payload()
        session.will_qos = attempt.will.qos
        session.will_retain = attempt.will.retain
    return session


def _as_text(password: bytes) -> str:
    """Return a password as aMQTT decodes it; its plugins compare text."""
    try:
        return password.decode()
    except UnicodeDecodeError:
        return str(password)
