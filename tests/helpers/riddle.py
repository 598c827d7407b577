"""An authentication method for tests."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.broker.access_control import (
    Accepted,
    Authenticator,
    AuthExchange,
    AuthStep,
    Challenge,
    ConnectAttempt,
    Refused,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.access import Later


class Riddle(Authenticator):
    """An authenticator that asks ``why`` and accepts the answer ``because``, as user ``sphinx``.

    Attributes:
        waits: whether each step waits until `finish` is called.
        is_broken: whether `start` raises.
        reason_code: the reason code with which a wrong answer is refused.
        username: the user name of an accepted client.
        attempts: all exchanges that were started.
    """

    method = "RIDDLE"

    def __init__(self) -> None:
        self.waits = False
        self.is_broken = False
        self.reason_code = ReasonCode.NOT_AUTHORIZED
        self.username: str | None = "sphinx"
        self.attempts: list[ConnectAttempt] = []

    def start(self, attempt: ConnectAttempt) -> AuthExchange:
        """Begin."""
        if self.is_broken:
            raise OSError("no riddle")
        self.attempts.append(attempt)
        return RiddleExchange(self)


class RiddleExchange(AuthExchange):
    """One client's answers."""

    def __init__(self, riddle: Riddle) -> None:
        self.riddle = riddle

    def step(self, data: bytes | None) -> AuthStep | Awaitable[AuthStep]:
        """Judge an answer."""
        if data == b"crash":
            raise ZeroDivisionError
        answer: AuthStep
        if data is None:
            answer = Challenge(b"why")
        elif data == b"hm":
            answer = Challenge()
        elif data == b"because":
            answer = Accepted(self.riddle.username, data=b"well done")
        else:
            answer = Refused(self.riddle.reason_code, username=self.riddle.username)
        return Later(answer) if self.riddle.waits else answer
