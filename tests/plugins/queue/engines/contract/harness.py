"""An engine under the contract suite: its clocks, its storage, and short words for its calls."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.broker.message import Message
from penstock.plugins.queue.engines.contract import (
    Action,
    AppendResult,
    Engine,
    GroupSnapshot,
    GroupSpec,
    NewMessage,
    Position,
    QueueSnapshot,
    QueueSpec,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.wire.frames import Batch, ReceivedMessage, read_batch
from tests.helpers.clock import Clock

LONG_SECONDS: Final = 60.0
"""Longer than anything here takes; only a test that fails waits for it."""
UNTIL_SECONDS: Final = 600.0
"""Longest wait on a machine that is busy with something else; shorter than the limit of a test."""

EPOCH: Final = 1_700_000_000.0
"""Wall time at which each test begins."""

MANY_BYTES: Final = 1 << 30
"""A limit of bytes that no test reaches."""

LEASE: Final = GroupSpec()
OFFSETS: Final = GroupSpec(kind="offsets")


class Storage(Protocol):
    """What an engine writes to, and what outlives it.

    Attributes:
        is_durable: whether messages survive the engine.
        keeps_leases: whether leases survive it, which the contract leaves open.
        has_file: whether it is a file, which has unused space and can be copied.
    """

    is_durable: bool
    keeps_leases: bool
    has_file: bool

    def engine(self, clock: Clock, wall: Clock) -> Engine:
        """Return an engine on this storage, not opened.

        Args:
            clock: its own monotonic clock.
            wall: the machine's wall time.
        """

    def kill(self) -> None:
        """Leave what the storage would hold had the engine been killed at this moment."""

    def of_backup(self, path: Path) -> Storage:
        """Return a storage whose engine opens a backup."""

    def reboot(self) -> None:
        """Make the next engine believe that the machine was started anew, its clock at zero."""


class LiveClock(Clock):
    """The machine's own clock, for what wakes up by itself."""

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()


class Running:
    """An engine that is open, and its surroundings.

    Most methods name the queue `q`, its group `g` and its physical queue 0 where nothing else is
    said.

    Attributes:
        engine: under test; another one after `reopen`, `kill` and `reboot`.
        storage: of the engine.
        clock: the engine's own, monotonic.
        wall: wall time; moves with the clock in `passes`, and steps when a test sets it.
    """

    engine: Engine

    def __init__(self, storage: Storage, clock: Clock | None = None) -> None:
        self.storage = storage
        self.clock = clock or Clock()
        self.wall = Clock(EPOCH)
        self._abandoned: list[Engine] = []
        self._handles: dict[tuple[str, str], list[str]] = {}

    async def open(self) -> None:
        """Open an engine on the storage."""
        self.engine = self.storage.engine(self.clock, self.wall)
        await self.engine.open()

    async def close(self) -> None:
        """Close the engine, and those that were killed."""
        for engine in (self.engine, *self._abandoned):
            await engine.close()

    async def reopen(self) -> None:
        """Close the engine and open another one on the same storage."""
        await self.engine.close()
        await self._open_again()

    async def _open_again(self) -> None:
        """Open an engine; let leases end that it would keep, as tests count on none."""
        await self.open()
        handles, self._handles = self._handles, {}
        if self.storage.keeps_leases:
            for (queue, group), some in handles.items():
                if not some:
                    continue
                with suppress(UnknownQueueError, UnknownGroupError):
                    await self.engine.settle(queue, group, "nack", some)

    async def kill(self, *, down_seconds: float = 0.0) -> None:
        """Open another engine on what the present one would leave after ``kill -9``.

        Args:
            down_seconds: that pass before.
        """
        self.storage.kill()
        self._abandoned.append(self.engine)
        self.passes(down_seconds)
        await self._open_again()

    async def reboot(self, *, clock: float = 5.0) -> None:
        """Kill the engine and the machine under it: the clock begins again."""
        self.storage.kill()
        self.storage.reboot()
        self._abandoned.append(self.engine)
        # The old engine is to be closed on a clock that never goes back.
        self.clock = Clock(clock)
        await self._open_again()

    def passes(self, seconds: float) -> None:
        """Let time pass, on every clock."""
        self.clock.now += seconds
        self.wall.now += seconds

    def steps(self, seconds: float) -> None:
        """Set the wall time, as a clock that is corrected does; no time passes."""
        self.wall.now += seconds

    # -- queues and groups ---------------------------------------------------------------------

    async def create(
        self, name: str = "q", groups: Mapping[str, GroupSpec] | None = None, **keys: Any
    ) -> QueueSnapshot:
        """Create a queue of one physical queue, with the lease group `g` where none is given."""
        keys.setdefault("physical_queues", 1)
        spec = QueueSpec(groups={"g": LEASE} if groups is None else groups, **keys)
        return await self.engine.create_queue(name, spec)

    async def change(self, name: str = "q", **keys: Any) -> QueueSnapshot:
        """Change settings of a queue."""
        spec = replace(self.engine.snapshot(name).spec, **keys)
        return await self.engine.change_queue(name, spec)

    def snapshot(self, name: str = "q") -> QueueSnapshot:
        """Return what a queue holds."""
        return self.engine.snapshot(name)

    def group(self, group: str = "g", *, queue: str = "q") -> GroupSnapshot:
        """Return a group as it is."""
        return self.engine.snapshot(queue).groups[group]

    async def settled(self, n_messages: int, reason: str, *, group: str = "g") -> None:
        """Wait until so many messages were settled by an action or for a reason."""
        await until(lambda: self.group(group).settled.get(reason, 0) == n_messages)

    # -- storing -------------------------------------------------------------------------------

    def new(
        self,
        payload: bytes = b"21.5",
        topic: str = "plant/1",
        *,
        key: str | None = None,
        dedup: bytes = b"",
        delay: float | None = None,
        expiry: int | None = None,
        is_repeat: bool = True,
        **more: Any,
    ) -> NewMessage:
        """Return a message that arrives at this moment.

        Args:
            payload: of it.
            topic: Topic Name.
            key: of its user property ``penstock-key``.
            dedup: deduplication identifier.
            delay: until it can be received, in seconds.
            expiry: Message Expiry Interval, in seconds.
            is_repeat: whether it may be a duplicate.
            more: of `Message`.
        """
        if key is not None:
            given = dict(more.pop("properties", {}))
            pairs = [*given.get("user_property", ()), ("penstock-key", key)]
            more["properties"] = given | {"user_property": pairs}
        if expiry is not None:
            more["expires_at"] = self.clock() + expiry
            more["properties"] = {"message_expiry_interval": expiry, **more.get("properties", {})}
        more.setdefault("arrived_at", self.clock())
        return NewMessage(Message(topic, payload, **more), dedup, delay, is_repeat)

    def append(
        self, messages: Sequence[NewMessage], *, queue: str = "q", number: int = 0
    ) -> asyncio.Future[AppendResult]:
        """Reserve room for messages and append them."""
        n_bytes = sum(len(message.message.payload) for message in messages)
        assert self.engine.reserve(queue, len(messages), n_bytes)
        return self.engine.append(queue, number, messages)

    async def store(
        self, *payloads: bytes, queue: str = "q", number: int = 0, **more: Any
    ) -> AppendResult:
        """Have messages stored; see `new` for further arguments."""
        messages = [self.new(payload, **more) for payload in payloads]
        return await self.append(messages, queue=queue, number=number)

    # -- receiving -----------------------------------------------------------------------------

    async def receive(
        self,
        n_max: int = 100,
        *,
        group: str = "g",
        queue: str = "q",
        number: int = 0,
        max_bytes: int = MANY_BYTES,
        visibility_timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Receive messages."""
        received = await self.engine.lease(
            queue, group, number, n_max, max_bytes, visibility_timeout
        )
        if self.storage.keeps_leases:
            handles = self._handles.setdefault((queue, group), [])
            handles += [message.receipt_handle for message in received]
        return received

    async def payloads(self, n_max: int = 100, **more: Any) -> list[bytes]:
        """Receive messages; return their payloads."""
        return [message.payload for message in await self.receive(n_max, **more)]

    async def settle(
        self,
        action: Action,
        received: Iterable[ReceivedMessage],
        seconds: float = 0.0,
        *,
        group: str = "g",
        queue: str = "q",
    ) -> Mapping[int, str]:
        """Settle received messages."""
        handles = [message.receipt_handle for message in received]
        return await self.engine.settle(queue, group, action, handles, seconds)

    async def ack(
        self, received: Iterable[ReceivedMessage], *, group: str = "g", queue: str = "q"
    ) -> None:
        """Acknowledge messages, all of which must be the receiver's."""
        assert await self.settle("ack", received, group=group, queue=queue) == {}

    async def drain(self, *, group: str = "g", queue: str = "q", number: int = 0) -> list[bytes]:
        """Receive and acknowledge everything that is visible; return the payloads."""
        drained: list[bytes] = []
        while received := await self.receive(group=group, queue=queue, number=number):
            await self.ack(received, group=group, queue=queue)
            drained += [message.payload for message in received]
        return drained

    # -- reading -------------------------------------------------------------------------------

    async def batch(self, start: int, end: int, *, queue: str = "q", number: int = 0) -> Batch:
        """Read a whole range, however many answers it takes."""
        frames: list[bytes] = []
        while start < end:
            answer = await self.engine.read(queue, number, start, end, end - start)
            if not answer:
                break
            frames += answer
            start = read_batch(b"".join(answer)).offset[-1] + 1
        return read_batch(b"".join(frames))

    async def held(self, *, queue: str = "q") -> list[bytes]:
        """Return the payloads of all messages that exist in a queue."""
        found: list[bytes] = []
        for number, usage in self.snapshot(queue).usage.items():
            batch = await self.batch(usage.earliest, usage.next, queue=queue, number=number)
            found += batch.payload
        return found

    def position(self, offset: int, *, queue: str = "q", number: int = 0) -> Position:
        """Return a place in a queue as it exists."""
        return Position(self.snapshot(queue).incarnation, {number: offset})


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for what an engine does behind an answer."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while not is_true():  # noqa: ASYNC110 (an engine tells nobody)
            await asyncio.sleep(0.002)


def properties_of(received: ReceivedMessage) -> dict[str, Any]:
    """Return the MQTT 5 properties of a received message."""
    found: dict[str, Any] = json.loads(received.properties) if received.properties else {}
    return found


def user_properties(received: ReceivedMessage) -> dict[str, str]:
    """Return the user properties of a received message, by name."""
    return dict(properties_of(received).get("user_property", ()))
