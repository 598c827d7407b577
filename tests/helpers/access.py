"""Access control for tests, whose answers the test gives, at once or after a wait."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Generator
from typing import Generic, TypeVar

from penstock.broker.access_control import (
    AccessControl,
    Action,
    Admittance,
    ConnectAttempt,
    SessionView,
)
from penstock.broker.errors import PeerError
from tests.helpers.virtual import VirtualClient

Answer = TypeVar("Answer")


class Access(AccessControl):
    """An access control that allows everything that the test has not refused.

    Attributes:
        waits: whether answers wait until `finish` is called.
        is_open: whether clients may connect.
        refused: each refused (action, topic) or (action, topic, client id).
        answer: the answer to every CONNECT; with ``...``, `is_open` decides.
        error: the exception that is raised instead of an answer, or None.
        attempts: all CONNECT packets that were judged.
    """

    def __init__(
        self, *, publish: bool = True, subscribe: bool = True, receive: bool = True
    ) -> None:
        """Make access control that is asked for these actions."""
        self.checks_publish = publish
        self.checks_subscribe = subscribe
        self.checks_receive = receive
        self.waits = False
        self.is_open = True
        self.refused: set[tuple[str, ...]] = set()
        self.answer: Admittance | types.EllipsisType = ...
        self.error: Exception | None = None
        self.attempts: list[ConnectAttempt] = []

    def authenticate(self, attempt: ConnectAttempt) -> Admittance | Awaitable[Admittance]:
        """Answer for a CONNECT."""
        self.attempts.append(attempt)
        if not isinstance(self.answer, types.EllipsisType):
            return Later(self.answer) if self.waits else self.answer
        return self._answer(is_allowed=self.is_open)

    def authorize(self, session: SessionView, topic: str, action: Action) -> bool | Awaitable[bool]:
        """Answer for a topic."""
        asked = (action.name, topic)
        is_refused = asked in self.refused or (*asked, session.client_id) in self.refused
        return self._answer(is_allowed=not is_refused)

    def _answer(self, *, is_allowed: bool) -> bool | Awaitable[bool]:
        if self.error is not None:
            raise self.error
        return Later(is_allowed) if self.waits else is_allowed


class Later(Generic[Answer]):
    """An answer that takes one wait."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def __await__(self) -> Generator[str, None, Answer]:
        yield "waiting"
        return self.answer


def finish(client: VirtualClient) -> None:
    """Run what a connection is suspended on to its end, as the driver does."""
    while (suspended := client.connection.client.suspended) is not None:
        try:
            while True:
                suspended.send(None)
        except StopIteration:
            client.connection.resume(client.broker.now)
        except PeerError as error:
            client.connection.client.peer_failed(error, client.broker.now)
            client.connection.resume(client.broker.now)
        client.broker.settle()
