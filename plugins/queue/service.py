"""The service of all queues, which the HTTP API, the SQS API and MQTT consumers use.

Each protocol reads requests in its own form, calls the service, and writes answers and errors in
its own form. Calls that need nothing but the engine are made on `QueueService.engine`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from logging import Logger
from typing import Any, Final, NamedTuple

from penstock.broker.config.checked_yaml import MisfitError, fit
from penstock.broker.config.key_types import NAME_ALLOWED, NAME_FORM
from penstock.broker.errors import PenstockError
from penstock.plugins.queue.append_buffer import AppendBuffer, PendingBudget, StoredEvents
from penstock.plugins.queue.client import Plan, is_same_queue
from penstock.plugins.queue.config import (
    DEFAULT_GROUP,
    GroupConfig,
    LogicalQueueConfig,
    QueueConfig,
)
from penstock.plugins.queue.engines.contract import (
    Action,
    Engine,
    EngineStartError,
    GroupKindError,
    GroupSnapshot,
    GroupSpec,
    KeyOrderError,
    Position,
    QueueSnapshot,
    QueueSpec,
    Start,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.engines.planning import shares_of
from penstock.plugins.queue.logical_queue import LogicalQueue

_SPEC_KEYS: Final = [key.name for key in fields(QueueSpec) if key.name not in {"groups", "tags"}]
_GROUP_KEYS: Final = [key.name for key in fields(GroupSpec)]


class SettingError(PenstockError):
    """A name or a setting of a queue or a group that is not allowed."""


class InUseError(PenstockError):
    """A queue that cannot be deleted, as groups of other queues send their dead letters to it."""


class PlanStart(NamedTuple):
    """Where a reader of one queue is.

    Attributes:
        position: physical queues that it lacks begin at their earliest offset.
        until: offsets that its next range does not exceed, by number of physical queue; those that
            it lacks are not read. None for the end of the queue.
    """

    position: Position
    until: Mapping[int, int] | None = None


class QueueService:
    """The logical queues of an engine: those of the policy file, and those of requests.

    Attributes:
        on_change: called after queues were created, changed or deleted.
    """

    def __init__(
        self, config: QueueConfig, engine: Engine, clock: Callable[[], float], logger: Logger
    ) -> None:
        self.engine = engine
        self.on_change: Callable[[], None] = lambda: None
        self.stored = StoredEvents()
        self._config = config
        self._clock = clock
        self._logger = logger
        self._budget = PendingBudget(config.max_pending_messages, config.max_pending_bytes)
        self._closing: set[asyncio.Task[None]] = set()
        self._wanted: dict[str, QueueSpec] = {}
        self._queues = {
            name: self._make(name, queue_spec(queue)) for name, queue in config.queues.items()
        }

    async def open(self) -> None:
        """Open the engine, and create or change the queues and groups of the policy file.

        Raises:
            EngineStartError: the engine cannot be opened, or a group cannot become what the file
                has.
            StorageError: the engine cannot store the settings.
        """
        await self.engine.open()
        for name in self.engine.queues():
            if name not in self._config.queues:
                self._logger.info(
                    "queue %s is not in the policy file; it has %d messages and is served",
                    name,
                    self.engine.outline(name).messages,
                )
        for name in self._config.queues:
            await self._declare(name)
            self._queues[name].incarnation = self.engine.outline(name).incarnation
        self._follow()

    async def _declare(self, name: str) -> None:
        """Bring a queue of the policy file into the engine."""
        queue = self._queues[name]
        if name not in self.engine.queues():
            await self.engine.create_queue(name, queue.spec)
            return
        snapshot = self.engine.snapshot(name)
        queue.spec = replace(queue.spec, tags=snapshot.spec.tags)
        if snapshot.spec != queue.spec:
            try:
                await self.engine.change_queue(name, queue.spec)
            except KeyOrderError as error:
                self._logger.warning("%s. It goes on with that until it is empty", error)
                self._wanted[name] = queue.spec
                queue.set_up(_placed_as(queue.spec, snapshot.spec))
                await self.engine.change_queue(name, queue.spec)
        for group, spec in queue.spec.groups.items():
            existing = snapshot.groups.get(group)
            if existing is None or existing.spec == spec:
                continue
            try:
                await self.engine.change_group(name, group, spec)
            except GroupKindError as error:
                raise EngineStartError(
                    f"plugins.queue.queues.{name}.groups.{group}.kind: read {spec.kind}; allowed: "
                    f"{existing.spec.kind}, as the group exists. Give the group another name, or "
                    "delete it first"
                ) from error
        for group, held in snapshot.groups.items():
            if group not in queue.spec.groups:
                self._logger.info(
                    "group %s of queue %s is not in the policy file; %d messages wait for it",
                    group,
                    name,
                    held.waiting,
                )

    def close_requests(self) -> None:
        """Answer waiting requests now; called before the protocols stop."""
        for queue in self._queues.values():
            queue.close()

    async def close(self) -> None:
        """Store what was accepted and close the engine; may be called again."""
        self.close_requests()
        for queue in self._queues.values():
            await queue.buffer.close()
        await asyncio.gather(*self._closing)
        await self.engine.close()

    async def maintain(self) -> None:
        """Do what time asks for, and take note of what others have done.

        Raises:
            StorageError: some of it is left for the next call.
        """
        try:
            await self.engine.maintain()
            for name in list(self._wanted):
                await self._place_as_wanted(name)
        finally:
            self._follow()
            for name in self.engine.queues():
                if name in self._queues:  # it is in the engine first
                    self._queues[name].buffer.look_for_room()

    async def _place_as_wanted(self, name: str) -> None:
        """Give a queue the key and number of physical queues of the file once it is empty."""
        if name not in self._queues or self.engine.outline(name).messages:
            return
        wanted = self._wanted[name]
        try:
            await self._change(name, _placed_as(self.engine.snapshot(name).spec, wanted))
        except KeyOrderError:
            if self.engine.outline(name).messages:  # one has just come
                return
        else:
            self._logger.info(
                "queue %s: it is empty: physical_queues is %d, key is %s from now on",
                name,
                wanted.physical_queues,
                wanted.key,
            )
        del self._wanted[name]

    async def _change(self, name: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings; see `change`."""
        queue = self.queue(name)
        if spec == _placed_as(spec, queue.spec):
            snapshot = await self.engine.change_queue(name, spec)
            self._follow()
            return snapshot
        async with queue.buffer.held():
            snapshot = await self.engine.change_queue(name, spec)
            self._follow()
        return snapshot

    def _follow(self) -> list[asyncio.Task[None]]:
        """Serve the queues that the engine has, as it has them.

        Another program may have created, changed or deleted them, or a request whose client has
        left before it was answered.

        Returns:
            What ends when the messages under way to queues that are gone are stored or refused.
            Their node may be away: other queues need not wait for it.
        """
        held = {name: self.engine.outline(name) for name in self.engine.queues()}
        gone = [
            queue
            for name, queue in self._queues.items()
            if name not in held or not is_same_queue(held[name].incarnation, queue.incarnation)
        ]
        closings = []
        for queue in gone:
            del self._queues[queue.name]
            queue.is_gone(UnknownQueueError(f"queue {queue.name} was deleted"))
            closing = asyncio.create_task(queue.buffer.close(), name=f"close {queue.name}")
            closings.append(closing)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        has_changed = bool(gone)
        for name, outline in held.items():
            known = self._queues.get(name)
            if known is None:
                self._queues[name] = self._make(name, outline.spec)
                self._queues[name].incarnation = outline.incarnation
            elif known.spec != outline.spec:
                known.set_up(outline.spec)
            else:
                continue
            has_changed = True
        if has_changed:
            self.on_change()
        return closings

    def names(self) -> Sequence[str]:
        """Return the names of all queues, sorted; also those that the policy file is to have.

        Another program may have deleted one in the engine since it was last looked at.
        """
        return sorted(self._queues)

    def queue(self, name: str) -> LogicalQueue:
        """Return a queue.

        Raises:
            UnknownQueueError: there is none of this name.
        """
        queue = self._queues.get(name)
        if queue is None:
            known = ", ".join(self.names()) or "none, there are no queues"
            raise UnknownQueueError(f"queue: read {name}; allowed: {known}")
        return queue

    async def create(self, name: str, spec: QueueSpec) -> QueueSnapshot:
        """Create a queue; one with the same settings is kept.

        A queue without groups gets a lease group of the name `default`.

        Raises:
            ExistsError: it exists with other settings.
            SettingError: a name or a setting that is not allowed.
            StorageError: nothing has changed.
        """
        _check_name("queue", name)
        spec = spec if spec.groups else replace(spec, groups={DEFAULT_GROUP: GroupSpec()})
        self._check(name, spec)
        snapshot = await self.engine.create_queue(name, spec)
        self._follow()
        return snapshot

    async def change(self, name: str, spec: QueueSpec) -> QueueSnapshot:
        """Give a queue other settings; missing groups are created, others are left as they are.

        Raises:
            UnknownQueueError: there is none of this name.
            SettingError: a setting that is not allowed.
            KeyOrderError: the messages of a key would be in two physical queues.
            StorageError: nothing has changed.
        """
        self.queue(name)
        groups = {group: held.spec for group, held in self.engine.outline(name).groups.items()}
        self._check(name, replace(spec, groups={**spec.groups, **groups}))
        snapshot = await self._change(name, spec)
        self._wanted.pop(name, None)
        return snapshot

    async def bring(self, name: str, config: LogicalQueueConfig) -> None:
        """Create a queue, or give it and its groups the settings of the policy file.

        Groups that the file does not have stay.

        Raises:
            PenstockError: a setting cannot change while the queue holds messages, or the engine
                cannot store it.
        """
        spec = queue_spec(config)
        if name not in self.engine.queues():
            await self.create(name, spec)
            return
        groups = self.engine.snapshot(name).groups
        await self.change(name, replace(spec, tags=self.engine.snapshot(name).spec.tags))
        for group, wanted in spec.groups.items():
            if group in groups and groups[group].spec != wanted:
                await self.change_group(name, group, wanted)

    async def delete(self, name: str) -> None:
        """Delete a queue with its messages and groups; requests that wait for it fail.

        Raises:
            UnknownQueueError: there is none of this name.
            InUseError: it is the dead letter queue of groups of other queues.
            StorageError: the queue is still there.
        """
        self.queue(name)
        users = [
            f"{other}/{group}"
            for other in sorted(self.engine.queues())
            if other != name
            for group, held in self.engine.outline(other).groups.items()
            if held.spec.dead_letter_queue == name
        ]
        if users:
            raise InUseError(
                f"queue: read {name}, the dead_letter_queue of {', '.join(users)}; allowed: a "
                "queue that is that of no group. Give these groups another one first"
            )
        await self.engine.delete_queue(name)
        await asyncio.shield(asyncio.gather(*self._follow()))

    async def create_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Create a group; one with the same settings is kept; see `Engine.create_group`.

        Raises:
            SettingError: a name or a setting that is not allowed.
        """
        _check_name("group", group)
        self._check_group(queue, group, spec)
        return await self.engine.create_group(queue, group, spec)

    async def change_group(self, queue: str, group: str, spec: GroupSpec) -> GroupSnapshot:
        """Give a group other settings; see `Engine.change_group`.

        Raises:
            SettingError: a setting that is not allowed.
        """
        self._check_group(queue, group, spec)
        return await self.engine.change_group(queue, group, spec)

    async def delete_group(self, queue: str, group: str) -> None:
        """Delete a group; requests that wait for it fail; see `Engine.delete_group`."""
        held = self.queue(queue)
        await self.engine.delete_group(queue, group)
        held.group_is_gone(group, UnknownGroupError(f"group {group} of {queue} was deleted"))
        held.buffer.has_room_again()

    async def settle(
        self, queue: str, group: str, action: Action, handles: Sequence[str], seconds: float = 0.0
    ) -> Mapping[int, str]:
        """Settle receives; see `Engine.settle`."""
        held = self.queue(queue)
        failed = await self.engine.settle(queue, group, action, handles, seconds)
        if action in ("ack", "dead"):
            held.buffer.has_room_again()
        return failed

    async def commit(
        self, queue: str, group: str, position: Position, reader: str = ""
    ) -> Position:
        """Move an offsets group up to a position; see `Engine.commit`."""
        held = self.queue(queue)
        position = await self.engine.commit(queue, group, position, reader)
        held.buffer.has_room_again()
        return position

    async def seek(self, queue: str, group: str, start: Start) -> Position:
        """Move a group to another place; see `Engine.seek`."""
        held = self.queue(queue)
        position = await self.engine.seek(queue, group, start)
        held.buffer.has_room_again()
        return position

    async def purge(self, queue: str) -> int:
        """Remove all messages; see `Engine.purge`."""
        held = self.queue(queue)
        removed = await self.engine.purge(queue)
        held.buffer.has_room_again()
        return removed

    async def redrive(self, queue: str, target: str | None, max_messages: int | None) -> int:
        """Move dead letters back; see `Engine.redrive`."""
        held = self.queue(queue)
        moved = await self.engine.redrive(queue, target, max_messages)
        held.buffer.has_room_again()
        return moved

    async def plan(
        self,
        starts: Mapping[str, PlanStart],
        max_messages: int | None,
        max_bytes: int | None,
        wait_seconds: float = 0.0,
    ) -> dict[str, Plan]:
        """Return the end of the next range of each queue for a reader; see `Engine.plan`.

        Args:
            starts: the reader's places, by queue.
            max_messages: the most messages of all queues; None for all. Queues share it in
                proportion to what waits in each.
            max_bytes: the most stored bytes; at least one message of each queue fits.
            wait_seconds: how long to wait for messages where nothing is behind the starts.
        """
        answer_by = self._clock() + wait_seconds
        seen = dict.fromkeys(starts, -1)
        while True:
            plans = await self._plan_at_once(starts, max_messages, max_bytes)
            left = answer_by - self._clock()
            held = {name: self.queue(name) for name in starts}
            is_closing = any(queue.is_closing for queue in held.values())
            if (
                left <= 0
                or is_closing
                or any(map(_holds_messages, starts.values(), plans.values()))
            ):
                return plans
            with ExitStack() as waits:
                arrivals = {
                    name: waits.enter_context(queue.arrival(seen[name], left))
                    for name, queue in held.items()
                }
                # `close` cancels the futures, which ends the wait and not the request.
                await asyncio.wait(arrivals.values(), return_when=asyncio.FIRST_COMPLETED)
                for name, arrival in arrivals.items():
                    if arrival.done() and not arrival.cancelled():
                        seen[name] = arrival.result()

    async def _plan_at_once(
        self, starts: Mapping[str, PlanStart], max_messages: int | None, max_bytes: int | None
    ) -> dict[str, Plan]:
        engine = self.engine
        ends: dict[str, tuple[Mapping[int, int], Mapping[int, int]]] = {}
        for name in starts:
            earliest = await engine.locate(name, "earliest")
            ends[name] = (earliest.offsets, (await engine.locate(name, "latest")).offsets)
        waiting = [_waiting(start, *ends[name]) for name, start in starts.items()]
        total = sum(waiting)
        limits: Sequence[int | None] = [None] * len(starts)
        if max_messages is not None:
            limits = shares_of(max_messages, waiting)
        plans = {}
        for (name, start), limit, weight in zip(starts.items(), limits, waiting, strict=True):
            most_bytes = max_bytes
            if max_bytes is not None and total:
                most_bytes = max(1, max_bytes * weight // total)
            until = start.until
            if limit == 0:  # nothing of this queue; what the start means is still checked
                limit, until = None, start.position.offsets  # noqa: PLW2901
            end = await engine.plan(name, start.position, limit, most_bytes, until)
            plans[name] = Plan(end, *ends[name])
        return plans

    def figures(self, queue: str) -> dict[str, Any]:
        """Return a queue's snapshot, counters of its requests and of what came in, as JSON has it.

        Raises:
            UnknownQueueError: there is no such queue.
        """
        return self.queue(queue).figures()

    def _make(self, name: str, spec: QueueSpec) -> LogicalQueue:
        config = self._config
        buffer = AppendBuffer(
            name,
            spec,
            self.engine,
            self._budget,
            commit_wait_seconds=config.commit_wait_seconds,
            commit_max_messages=config.commit_max_messages,
            slowdown_detection_time=config.slowdown_detection_time(),
            logger=self._logger,
            stored=self.stored,
        )
        return LogicalQueue(name, spec, self.engine, buffer, self._clock)

    def _check(self, name: str, spec: QueueSpec) -> None:
        """Check settings by the rules of the policy file.

        Raises:
            SettingError: names each wrong one.
        """
        settings = asdict(spec)
        del settings["tags"]
        _fit(LogicalQueueConfig, settings, f"queue {name}")
        for group, settings_ in spec.groups.items():
            self._check_dead_letters(name, group, settings_)

    def _check_group(self, queue: str, group: str, spec: GroupSpec) -> None:
        held = self.queue(queue)
        where = f"group {group} of queue {queue}"
        _fit(GroupConfig, asdict(spec), where)
        if spec.order == "key" and held.spec.key is None:
            raise SettingError(
                f"{where}: order: read key; allowed: any, or give the queue a key first"
            )
        self._check_dead_letters(queue, group, spec)

    def _check_dead_letters(self, queue: str, group: str, spec: GroupSpec) -> None:
        others = [name for name in self.names() if name != queue]
        if spec.dead_letter_queue is not None and spec.dead_letter_queue not in others:
            known = ", ".join(others) or "none, there are no others"
            raise SettingError(
                f"group {group} of queue {queue}: dead_letter_queue: read "
                f"{spec.dead_letter_queue}; allowed: another queue that exists: {known}"
            )


def queue_spec(config: LogicalQueueConfig) -> QueueSpec:
    """Return the settings of a queue of the policy file."""
    groups = {name: group_spec(group) for name, group in config.groups.items()}
    settings = {key: getattr(config, key) for key in _SPEC_KEYS}
    return QueueSpec(**settings, groups=groups)


def group_spec(config: GroupConfig) -> GroupSpec:
    """Return the settings of a group of the policy file."""
    return GroupSpec(**{key: getattr(config, key) for key in _GROUP_KEYS})


def _check_name(what: str, name: str) -> None:
    if not NAME_FORM.fullmatch(name):
        raise SettingError(f"{what}: read {name[:80]!r}; allowed: {NAME_ALLOWED}")


def _fit(cls: type, settings: Mapping[str, Any], where: str) -> None:
    """Check settings as the policy file's are checked.

    Raises:
        SettingError: names each wrong one.
    """
    try:
        fit(cls, json.loads(json.dumps(settings)))  # lists, as a file has them
    except MisfitError as error:
        told = [
            f"{'.'.join(misfit.place) or 'settings'}: read {misfit.read}; allowed: {misfit.allowed}"
            for misfit in error.misfits
        ]
        raise SettingError(f"{where}: {'; '.join(told)}") from error


def _waiting(start: PlanStart, earliest: Mapping[int, int], latest: Mapping[int, int]) -> int:
    """Return how many offsets a reader has before it, in all physical queues."""
    until = latest if start.until is None else start.until
    return sum(
        max(0, until.get(number, 0) - max(start.position.offsets.get(number, 0), first))
        for number, first in earliest.items()
    )


def _holds_messages(start: PlanStart, plan: Plan) -> bool:
    """Say whether a planned range may hold messages."""
    return _waiting(PlanStart(start.position, plan.end.offsets), plan.earliest, plan.latest) > 0


def _placed_as(spec: QueueSpec, other: QueueSpec) -> QueueSpec:
    """Return settings with what says in which physical queue the messages of a key are."""
    return replace(spec, physical_queues=other.physical_queues, key=other.key)
