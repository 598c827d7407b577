"""What the protocols of the queue use: HTTP, Amazon SQS and consumers over MQTT.

Each protocol reads requests in its own form, calls the service, and writes answers and errors in
its own form. Calls that need nothing but the engine are made on `QueueService.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import Logger
from typing import Any, NamedTuple

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.client import ReceivedMessage
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engines.contract import (
    Action,
    Engine,
    GroupSnapshot,
    GroupSpec,
    NewMessage,
    Position,
    QueueSnapshot,
    QueueSpec,
)
from penstock.plugins.queue.logical_queue import LogicalQueue


class ReceiveRequest(NamedTuple):
    """What a receiver asks for.

    Attributes:
        max_messages: at most, of 1 or more.
        wait_seconds: how long the receiver waits for messages.
        visibility_timeout: seconds for which they are invisible to others; None for the group's.
        min_messages: with `rds+wake`, the request is held until so many can be received, or the
            wait ends.
        min_bytes: the same in payload bytes.
    """

    max_messages: int
    wait_seconds: float = 0.0
    visibility_timeout: float | None = None
    min_messages: int = 1
    min_bytes: int = 0


class Stored(NamedTuple):
    """What became of one message.

    Attributes:
        physical_queue: in which it is stored; -1 where it is not.
        offset: its offset there; -1 where it is not stored, or not known.
        reason: "" where it is stored; ``duplicate`` where it was stored before; else a key of
            `penstock.plugins.queue.intake.DROP_REASONS`.
    """

    physical_queue: int
    offset: int
    reason: str


class SettingError(PenstockError):
    """A name or a setting of a queue or a group that is not allowed."""


class QueueService:
    """The logical queues of an engine.

    Args:
        config: of the plugin.
        engine: opened before any other call.
        clock: returns monotonic seconds.
        logger: gets faults.

    Attributes:
        engine: holds the messages.
    """

    def __init__(
        self,
        config: QueueConfig,
        engine: Engine,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        self.engine = engine
        self._config = config
        self._clock = clock
        self._logger = logger

    def names(self) -> Sequence[str]:
        """Return the names of all queues, sorted."""
        raise NotImplementedError

    def queue(self, name: str) -> LogicalQueue:
        """Return a queue.

        Raises:
            UnknownQueueError: there is none of this name.
        """
        raise NotImplementedError

    async def create(self, name: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue; one with the same settings is kept.

        A queue without groups gets a lease group of the name `default`.

        Raises:
            ExistsError: it exists with other settings.
            SettingError: a name or a setting that is not allowed.
            StorageError: nothing has changed.
        """
        raise NotImplementedError

    async def change(self, name: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings; missing groups are created, others are left as they are.

        Raises:
            UnknownQueueError: there is none of this name.
            SettingError: a setting that is not allowed.
            StorageError: nothing has changed.
        """
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        """Delete a queue with its messages and groups; requests that wait for it fail.

        Raises:
            UnknownQueueError: there is none of this name.
            StorageError: nothing has changed.
        """
        raise NotImplementedError

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group; one with the same settings is kept; see `Engine.create_group`.

        Raises:
            SettingError: a name or a setting that is not allowed.
        """
        raise NotImplementedError

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings; see `Engine.change_group`.

        Raises:
            SettingError: a setting that is not allowed.
        """
        raise NotImplementedError

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; requests that wait for it fail; see `Engine.delete_group`."""
        raise NotImplementedError

    async def store(self, queue: str, messages: Sequence[NewMessage]) -> Sequence[Stored]:
        """Store messages; return what became of each, in their order.

        Raises:
            UnknownQueueError: there is no such queue.
        """
        raise NotImplementedError

    async def receive(
        self, queue: str, group: str, request: ReceiveRequest
    ) -> list[ReceivedMessage]:
        """Receive messages by the queue's dequeue strategy.

        If the caller is cancelled, what was found becomes visible again at once.

        Raises:
            UnknownQueueError: there is no such queue, or it was deleted.
            UnknownGroupError: the same of the group.
            GroupKindError: the group is of kind `offsets`.
            BusyError: too many requests wait, or too many messages are leased.
            StorageError: nothing could be read.
        """
        raise NotImplementedError

    async def settle(
        self,
        queue: str,
        group: str,
        action: Action,
        handles: Sequence[str],
        seconds: float = 0.0,
    ) -> Mapping[int, str]:
        """Settle receives; see `Engine.settle`."""
        raise NotImplementedError

    async def plan(
        self,
        queue: str,
        start: Position,
        max_messages: int | None,
        max_bytes: int | None,
        wait_seconds: float = 0.0,
    ) -> Position:
        """Return the end of the next range for a reader; see `Engine.plan`.

        Args:
            queue: name of the logical queue.
            start: where the reader is.
            max_messages: of all physical queues; None for all.
            max_bytes: the same in stored bytes.
            wait_seconds: how long to wait for messages where nothing is behind `start`.
        """
        raise NotImplementedError

    def figures(self, queue: str) -> dict[str, Any]:
        """Return a queue's snapshot, counters of its requests and of what came in, as JSON has it.

        Raises:
            UnknownQueueError: there is no such queue.
        """
        raise NotImplementedError
