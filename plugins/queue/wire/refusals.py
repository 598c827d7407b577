"""The errors of the queue's client, by the status of the server's answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final


class QueueError(Exception):
    """A request that the queue refused or did not answer; the subclasses say which by status.

    Attributes:
        status: HTTP status; 0 where no answer came.
        message: the server's message, or why there was no answer.
        answer: the JSON object of the refusal; empty where there was none.
    """

    def __init__(self, status: int, message: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.answer = dict(answer or {})

    def __reduce__(self) -> tuple[type[QueueError], tuple[int, str, dict[str, Any]]]:
        return (type(self), (self.status, self.message, self.answer))


class NoAnswerError(QueueError):
    """Nobody answered: no connection, a broken one, or no answer in time."""


class AccessError(QueueError):
    """Status 401 or 403: no valid token, or one without the role that the request needs."""


class UnknownNameError(QueueError):
    """Status 404: no such queue or group."""


class ConflictError(QueueError):
    """Status 409: what the request wants stands against what exists.

    It exists with other settings, the group is of the other kind, or the queue to be deleted is the
    dead letter queue of a group.
    """


class OtherReaderError(ConflictError):
    """Status 409: the group belongs to another reader.

    Attributes:
        reader: the reader that the group belongs to.
    """

    @property
    def reader(self) -> str:
        """The name of that reader."""
        return str(self.answer.get("reader", ""))


class OtherIncarnationError(ConflictError):
    """Status 409: the position is of a queue that was deleted; one of its name was created since.

    Attributes:
        queue: the name of the queue.
        incarnation: the incarnation of the queue that exists.
    """

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return str(self.answer.get("queue", ""))

    @property
    def incarnation(self) -> str:
        """The incarnation of the queue that exists."""
        return str(self.answer["incarnation"])


class RangeGoneError(QueueError):
    """Status 410: the range begins below the earliest offset.

    Attributes:
        earliest: first offset that can be read; None where the server does not say.
    """

    @property
    def earliest(self) -> int | None:
        """The first offset that can be read; None where the server does not say."""
        earliest = self.answer.get("earliest")
        return earliest if isinstance(earliest, int) else None


class BusyError(QueueError):
    """Status 429: too many requests wait, too much is leased, or the queue is full."""


class UnavailableError(QueueError):
    """Status 500 or above: the server or its storage cannot do it at the moment."""


class NoSpaceError(UnavailableError):
    """Status 507: the storage is full."""


class NotStoredError(QueueError):
    """Messages that were refused, while others of the request may have been stored.

    Attributes:
        stored: how many were stored.
        duplicates: indexes of messages that were stored before.
        refused: reason by index of each message that is not stored.
    """

    @property
    def stored(self) -> int:
        """How many were stored."""
        return int(self.answer.get("stored", 0))

    @property
    def duplicates(self) -> list[int]:
        """Indexes of messages that were stored before."""
        return list(self.answer.get("duplicates", []))

    @property
    def refused(self) -> dict[int, str]:
        """The reason for each message that is not stored, by index."""
        return {int(index): reason for index, reason in self.answer["refused"].items()}


_BY_STATUS: Final[Mapping[int, type[QueueError]]] = {
    401: AccessError,
    403: AccessError,
    404: UnknownNameError,
    409: ConflictError,
    410: RangeGoneError,
    429: BusyError,
    507: NoSpaceError,
}

_SERVER_ERRORS: Final = 500


def error_of(status: int, message: str, answer: Mapping[str, Any] | None = None) -> QueueError:
    """Return the error of a refusal, of the class that belongs to it."""
    kind = _BY_STATUS.get(status, UnavailableError if status >= _SERVER_ERRORS else QueueError)
    if status == 0:
        kind = NoAnswerError
    elif answer and isinstance(answer.get("refused"), dict) and answer["refused"]:
        kind = NotStoredError
    elif kind is ConflictError and answer and "incarnation" in answer:
        kind = OtherIncarnationError
    elif kind is ConflictError and answer and "reader" in answer:
        kind = OtherReaderError
    return kind(status, message, answer)


def read_refusal(status: int, answer: bytes) -> QueueError:
    """Return the error of a refusal, whatever program sent it."""
    said: dict[str, Any] = {}
    try:
        read = json.loads(answer)
        message = str(read["error"])
        said = read
    except (ValueError, KeyError, TypeError):
        message = answer.decode(errors="replace").strip()
    return error_of(status, message or "the server gave no reason", said)
