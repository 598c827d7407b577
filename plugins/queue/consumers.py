"""MQTT consumers read a queue by subscribing to ``$queue/NAME`` or ``$queue/NAME/GROUP``.

Theory of operation. Each consumer has a task that receives as many messages as its client has room
for and gives them to the broker, which sends them. PUBACK acknowledges a message; one of 0x80 or
above, or the end of the connection, makes it visible to others at once. Outcomes are collected for
a round of the event loop and settled together. While messages are with the client, whether sent or
held back by the broker, their leases are extended: a slow device keeps what it has. All are
extended as soon as the first one has to be. The visibility timeout may be made shorter or longer at
any time, also by another program, so each lease counts with the one that it was made with.

Consumers of a group take turns, as each asks for a few messages at a time, behind those that wait.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from logging import Logger
from typing import Any, Final

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import Consumer, MessageSource, Outcome
from penstock.broker.message import Message
from penstock.broker.mqtt.expiry import expiry_time
from penstock.broker.plugin_guard import note_fault
from penstock.plugins.queue.client import Action
from penstock.plugins.queue.config import DEFAULT_GROUP
from penstock.plugins.queue.engines.contract import (
    GroupKindError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.wire.frames import DEAD_LETTER, RETAIN, ReceivedMessage

PREFIX: Final = "$queue"

BATCH_MESSAGES: Final = 16
"""How many messages a consumer receives at a time. It is small, so that the consumers of a group
share a backlog."""

MOST_HELD: Final = 256
"""The most messages that a consumer holds, whatever its Receive Maximum, so that others get
some."""

WAIT_SECONDS: Final = 600.0
"""How long one request for messages waits. Another request follows."""

LOOK_SECONDS: Final = 0.25
"""The interval at which a client without room is checked: other messages may have made room."""

RETRY_SECONDS: Final = 1.0
"""The pause after an error, such as a deleted queue or a storage that refuses."""

LEASE_PART: Final = 3
"""A lease is extended whenever a third of the visibility timeout has passed."""

EXTEND_SECONDS: Final = 0.05
"""The least time between two extensions, because the visibility timeout may be 0."""

LOST_SECONDS: Final = 10.0
"""The longest time between two searches for messages that were dropped before they were sent."""


class QueueConsumers(MessageSource):
    """Feeds the consumers of all queues."""

    prefix = PREFIX

    def __init__(self, service: QueueService, clock: Callable[[], float], logger: Logger) -> None:
        self._service = service
        self._clock = clock
        self._logger = logger
        self._feeds: set[QueueFeed] = set()

    def asked_topic(self, topic_filter: str) -> str:
        """Return ``$queue/NAME``: who may read a queue may read it in any group."""
        return f"{PREFIX}/{_parts(topic_filter)[0]}"

    def refusal(self, topic_filter: str) -> str:
        """Return why a client cannot consume; "" where it can."""
        levels = topic_filter.split("/")
        if len(levels) not in (2, 3) or not all(levels):
            return f"read {topic_filter}; allowed: {PREFIX}/NAME or {PREFIX}/NAME/GROUP"
        name, group = _parts(topic_filter)
        try:
            self._service.queue(name)
            groups = self._service.engine.outline(name).groups
        except PenstockError as error:
            return str(error)
        leased = sorted(one for one, held in groups.items() if held.spec.kind == "lease")
        if group not in leased:
            read = f"group of queue {name}: read {group}"
            if group in groups:
                read += ", which is of kind offsets"
            return f"{read}; allowed: {', '.join(leased) or 'none, it has no lease group'}"
        return ""

    def open(self, topic_filter: str, consumer: Consumer) -> QueueFeed:
        """Begin to feed a consumer."""
        name, group = _parts(topic_filter)
        feed = QueueFeed(self._service, name, group, consumer, self._clock, self._logger)
        self._feeds.add(feed)
        feed.on_end = partial(self._feeds.discard, feed)
        feed.start()
        return feed

    def note_uses(self) -> None:
        """Keep the groups of connected consumers from expiring, whether or not these have room."""
        for feed in self._feeds:
            feed.note_use()

    async def close(self) -> None:
        """Give nothing more, and settle what is done; may be called again."""
        feeds = list(self._feeds)
        for feed in feeds:
            feed.stop()
        for feed in feeds:
            await feed.close()


class QueueFeed:
    """Gives messages of one group to one consumer.

    Attributes:
        on_end: called when nothing is left to do.
    """

    def __init__(
        self,
        service: QueueService,
        queue: str,
        group: str,
        consumer: Consumer,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        self.on_end: Callable[[], None] = lambda: None
        self._service = service
        self._queue = queue
        self._group = group
        self._consumer = consumer
        self._clock = clock
        self._logger = logger
        self._faults: dict[str, int] = {}
        self._held: dict[str, None] = {}
        self._done: dict[Action, list[str]] = {"ack": [], "nack": []}
        self._unsent: list[ReceivedMessage] = []
        self._woken = asyncio.Event()
        self._extend_at = math.inf
        self._is_sooner = asyncio.Event()
        self._is_stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._giving: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to give messages."""
        self._giving = self._run(self._give_all(), "consumer")
        self._keeping = self._run(self._keep_leases(), "leases")

    def _run(self, coroutine: Any, what: str) -> asyncio.Task[None]:
        name = f"{what} {self._queue}/{self._group} {self._consumer.client_id}"
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed(task.exception())
        if not self._tasks:
            self.on_end()

    def wake(self) -> None:
        """Look at the client's room again."""
        self._woken.set()

    def note_use(self) -> None:
        """Let the group be in use, where there is one."""
        if not self._is_stopped:
            with suppress(PenstockError):
                self._service.engine.visible(self._queue, self._group)

    def stop(self) -> None:
        """Give no more; what the client has is still to be done."""
        self._is_stopped = True
        self._woken.set()
        if self._giving is not None:
            self._giving.cancel()
        self._end_leases()

    def _end_leases(self) -> None:
        if self._is_stopped and not self._held and self._keeping is not None:
            self._keeping.cancel()

    async def close(self) -> None:
        """Settle what is done, and leave the rest to its visibility timeout."""
        settling = self._settling
        for task in list(self._tasks):
            if task is not settling:
                task.cancel()
        if settling is not None:
            await asyncio.wait([settling], timeout=RETRY_SECONDS)
            settling.cancel()

    # -- from the queue to the client ---------------------------------------------------------

    async def _give_all(self) -> None:
        while not self._is_stopped:
            n_free = min(self._consumer.room(), BATCH_MESSAGES, MOST_HELD - len(self._held))
            if n_free <= 0:
                await self._wait(LOOK_SECONDS)
                continue
            visibility = self._visibility_timeout()
            request = ReceiveRequest(n_free, WAIT_SECONDS)
            try:
                received = await self._service.queue(self._queue).receive(self._group, request)
            except Exception as error:  # noqa: BLE001 (the next attempt must follow any error)
                self._failed(error)
                received = []
            if received:  # with the timeout of before, or that of now
                self._extend_in_time(min(visibility, self._visibility_timeout()))
            for one in received:
                self._give(one)
            if not received:
                await self._wait(RETRY_SECONDS)

    async def _wait(self, seconds: float) -> None:
        self._woken.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    def _give(self, received: ReceivedMessage) -> None:
        now = self._clock()
        try:
            message = self._message(received, now)
        except ValueError as error:
            # Its lease runs out: given back at once, it would come back at once.
            self._logger.error(  # noqa: TRY400 (the trace tells nothing more)
                "queue %s: message %d of physical queue %d cannot be sent: %s",
                self._queue,
                received.offset,
                received.physical_queue,
                error,
            )
            return
        self._held[received.receipt_handle] = None
        self._consumer.give(message, partial(self._is_done, received), now)

    def _message(self, received: ReceivedMessage, now: float) -> Message:
        """Return a message as the client is to get it.

        Raises:
            ValueError: its properties cannot be read.
        """
        properties: dict[str, Any] = json.loads(received.properties) if received.properties else {}
        if "correlation_data" in properties:
            properties["correlation_data"] = base64.b64decode(properties["correlation_data"])
        pairs = [(name, value) for name, value in properties.get("user_property", ())]
        origin = properties.pop(DEAD_LETTER, {})
        properties.pop(RETAIN, None)
        properties["user_property"] = [
            *pairs,
            *((f"penstock-dead-{name.replace('_', '-')}", f"{origin[name]}") for name in origin),
            ("penstock-queue", self._queue),
            ("penstock-group", self._group),
            ("penstock-receive-count", str(received.receive_count)),
        ]
        return Message(
            received.topic,
            received.payload,
            qos=1,
            arrived_at=now,
            expires_at=expiry_time(properties, now),
            properties=properties,
            publisher=received.publisher,
        )

    # -- from the client to the queue ---------------------------------------------------------

    def _is_done(self, received: ReceivedMessage, outcome: Outcome) -> None:
        self._held.pop(received.receipt_handle, None)
        self._end_leases()
        if outcome == "unsent":  # it does not count as received
            self._unsent.append(received)
            self._settle_soon()
        else:
            self._settle("ack" if outcome == "acknowledged" else "nack", received.receipt_handle)

    def _settle(self, action: Action, handle: str) -> None:
        self._done[action].append(handle)
        self._settle_soon()

    def _settle_soon(self) -> None:
        if self._settling is None:
            self._settling = self._run(self._settle_all(), "settling")

    async def _settle_all(self) -> None:
        """Settle what is done; where the storage refuses, try again until it does not."""
        try:
            await asyncio.sleep(0)  # what else is done in this round of the loop
            while self._unsent or any(self._done.values()):
                unsent, self._unsent = self._unsent, []
                if unsent:
                    self._service.engine.give_back(self._queue, self._group, unsent)
                for action in self._done:
                    handles, self._done[action] = self._done[action], []
                    if handles and not await self._settled(action, handles):
                        self._done[action] += handles
                        await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._settling = None

    async def _settled(self, action: Action, handles: list[str], seconds: float = 0.0) -> bool:
        """Settle receives; return False where it is to be tried again.

        A handle that is stale is one whose lease was over: another consumer has the message.
        """
        service = self._service
        try:
            await service.settle(self._queue, self._group, action, handles, seconds)
        except PenstockError as error:
            self._failed(error)
            return isinstance(error, UnknownQueueError | UnknownGroupError | GroupKindError)
        return True

    def _extend_in_time(self, visibility: float) -> None:
        """Have all leases extended in time for those that begin now."""
        wait = max(visibility / LEASE_PART, EXTEND_SECONDS)
        at = asyncio.get_running_loop().time() + wait
        if at < self._extend_at:
            self._extend_at = at
            self._is_sooner.set()

    async def _keep_leases(self) -> None:
        """Extend what the client has, until it has nothing and gets no more."""
        loop = asyncio.get_running_loop()
        while not self._is_stopped or self._held:
            self._is_sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._extend_at - loop.time(), LOST_SECONDS)):
                    await self._is_sooner.wait()
            self._consumer.find_lost()
            if loop.time() >= self._extend_at:
                self._extend_at = math.inf
                if self._held:
                    # One that waits for a node that is away must not hold up the next one.
                    self._run(self._extend(self._visibility_timeout()), "extending")

    async def _extend(self, visibility: float) -> None:
        self._extend_in_time(visibility)
        await self._settled("extend", list(self._held), visibility)

    def _visibility_timeout(self) -> float:
        try:
            groups = self._service.engine.outline(self._queue).groups
            return groups[self._group].spec.visibility_timeout
        except (PenstockError, KeyError):  # the queue or the group is gone
            return RETRY_SECONDS

    def _failed(self, error: BaseException | None) -> None:
        what = f"consumer {self._consumer.client_id} of queue {self._queue}"
        if isinstance(error, Exception):
            note_fault(self._logger, self._faults, what, error)


def _parts(topic_filter: str) -> tuple[str, str]:
    """Return the names of queue and group that a topic filter is for."""
    _, _, rest = topic_filter.partition("/")
    name, _, group = rest.partition("/")
    return name, group or DEFAULT_GROUP
