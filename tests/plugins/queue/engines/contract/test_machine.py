"""Each engine beside a simple model of one queue: whatever is asked for, both answer the same."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.plugins.queue.engines.contract import GroupSpec
from tests.helpers.effort import examples
from tests.plugins.queue.engines.contract.harness import Running, Storage
from tests.plugins.queue.engines.contract.model import Model, ModelGroup, ModelLease, ModelMessage
from tests.plugins.queue.engines.contract.storages import (
    ClusterStorage,
    MemoryStorage,
    RedisStorage,
    SqliteStorage,
)

T = TypeVar("T")

RETENTION_SECONDS: Final = 200.5
WINDOW_SECONDS: Final = 60.5
VISIBILITY_SECONDS: Final = 30.5
N_PHYSICAL_QUEUES: Final = 2
SPECS: Final = {
    "g": GroupSpec(visibility_timeout=VISIBILITY_SECONDS),
    "h": GroupSpec(visibility_timeout=VISIBILITY_SECONDS, order="key"),
    "r": GroupSpec(kind="offsets"),
}
ANY: Final = st.integers(0, 5)
"""Chooses one of those groups that there are."""
NUMBERS: Final = st.integers(0, N_PHYSICAL_QUEUES - 1)


class Machine(RuleBasedStateMachine):
    """Asks an engine and the model for the same.

    Attributes:
        kind: makes the engine's storage in a folder.
    """

    kind: type[MemoryStorage | SqliteStorage | RedisStorage]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        storage: Storage = self.kind(Path(self.folder.name))
        self.running = Running(storage)
        self.model = Model(
            N_PHYSICAL_QUEUES, RETENTION_SECONDS, WINDOW_SECONDS, self.running.clock()
        )
        self.payloads = (b"%d" % n for n in itertools.count())
        self.old: list[tuple[str, tuple[int, int], str]] = []
        self.run(self.running.open())
        self.run(
            self.running.create(
                groups={},
                key="property:none",
                physical_queues=N_PHYSICAL_QUEUES,
                retention_seconds=RETENTION_SECONDS,
                deduplication_seconds=WINDOW_SECONDS,
            )
        )
        self.create_group(0, is_late=False)

    def teardown(self) -> None:
        """Close the engine."""
        self.run(self.running.close())
        self.loop.close()
        self.folder.cleanup()

    def run(self, awaitable: Coroutine[Any, Any, T]) -> T:
        """Run a call of the engine."""
        return self.loop.run_until_complete(awaitable)

    def chosen(self, which: int, *, is_lease: bool = False) -> tuple[str, ModelGroup]:
        """Return one of the groups that there are."""
        found = [each for each in sorted(self.model.groups.items()) if each[1].is_lease >= is_lease]
        return found[which % len(found)]

    @property
    def has_lease_group(self) -> bool:
        """Whether there is one."""
        return any(group.is_lease for group in self.model.groups.values())

    # -- rules -----------------------------------------------------------------------------------

    @rule(
        number=NUMBERS,
        keys=st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=4),
        delay=st.sampled_from([0.0, 0.0, 0.0, 10.5]),
        dedup=st.sampled_from([b"", b"", b"", b"1", b"2"]),
    )
    def store(self, number: int, keys: list[str | None], delay: float, dedup: bytes) -> None:
        """Store messages; the first has the deduplication identifier."""
        news, offsets, duplicates = [], [], []
        for index, key in enumerate(keys):
            payload = next(self.payloads)
            identifier = b"" if index else dedup
            news.append(self.running.new(payload, key=key, delay=delay, dedup=identifier))
            message = ModelMessage(payload, key, self.model.now, self.model.now + delay)
            offset = self.model.store(number, message, identifier)
            offsets.append(offset)
            if offset is None:
                duplicates.append(index)

        async def append() -> Any:
            return await self.running.append(news, number=number)

        result = self.run(append())
        assert list(result.duplicates) == duplicates
        assert not result.refused
        for index, offset in enumerate(offsets):
            assert offset is None or result.offsets[index] == offset

    @rule(dedup=st.sampled_from([b"1", b"2"]))
    def forget(self, dedup: bytes) -> None:
        """End a deduplication window."""

        async def forget() -> None:
            await self.running.engine.forget("q", [dedup])

        self.run(forget())
        self.model.windows.pop(dedup, None)

    @precondition(lambda self: self.has_lease_group)
    @rule(which=ANY, number=NUMBERS, n_max=st.integers(1, 6))
    def receive(self, which: int, number: int, n_max: int) -> None:
        """Receive messages: the same, in the same order, with the same counts."""
        name, group = self.chosen(which, is_lease=True)
        received = self.run(self.running.receive(n_max, group=name, number=number))
        places = [(each.physical_queue, each.offset) for each in received]
        self.model.check_received(group, number, n_max, places)
        for place, each in zip(places, received, strict=True):
            assert each.payload == self.model.messages[place].payload
            group.counts[place] = group.counts.get(place, 0) + 1
            assert each.receive_count == group.counts[place]
            if place in group.leases:
                self.old.append((name, place, group.leases[place].handle))
            ends_at = self.model.now + VISIBILITY_SECONDS
            group.leases[place] = ModelLease(each.receipt_handle, ends_at)

    @precondition(lambda self: any(each.leases for each in self.model.groups.values()))
    @rule(
        which=ANY,
        action=st.sampled_from(["ack", "ack", "ack", "nack", "extend", "dead"]),
        seconds=st.sampled_from([0.0, 20.5]),
        data=st.data(),
    )
    def settle(self, which: int, action: Any, seconds: float, data: st.DataObject) -> None:
        """Settle some receives."""
        name, group = self.chosen(which, is_lease=True)
        if not group.leases:
            return
        chosen = data.draw(st.sets(st.sampled_from(sorted(group.leases)), min_size=1, max_size=4))
        places = sorted(chosen)
        if action == "extend":
            places = [place for place in places if group.leases[place].ends_at > self.model.now]
        # A message that waits behind a `nack` has no receiver whose handle counts for certain.
        places = [place for place in places if group.leases[place].is_held]
        handles = [group.leases[place].handle for place in places]
        answer = self.run(self.running.engine.settle("q", name, action, handles, seconds))
        assert answer == {}
        for place in places:
            if action in ("ack", "dead"):
                self.old.append((name, place, group.leases[place].handle))
                self.model.settle(group, place)
            elif action == "extend":
                group.leases[place].ends_at = self.model.now + seconds
            else:
                lease = group.leases[place]
                lease.ends_at = self.model.now + seconds
                lease.is_held = False

    @precondition(lambda self: self.old)
    @rule(data=st.data(), action=st.sampled_from(["ack", "nack", "extend", "dead"]))
    def settle_stale(self, data: st.DataObject, action: Any) -> None:
        """Settle by a handle whose message was settled or received again: nothing happens."""
        name, _, handle = data.draw(st.sampled_from(self.old))
        if name in self.model.groups:
            answer = self.run(self.running.engine.settle("q", name, action, [handle], 5.0))
            assert sorted(answer) == [0]

    @precondition(lambda self: self.has_lease_group)
    @rule(which=ANY, number=NUMBERS, n_max=st.integers(1, 4))
    def receive_and_give_back(self, which: int, number: int, n_max: int) -> None:
        """Receive for somebody who has left: it does not count."""
        name, group = self.chosen(which, is_lease=True)
        received = self.run(self.running.receive(n_max, group=name, number=number))
        places = [(each.physical_queue, each.offset) for each in received]
        self.model.check_received(group, number, n_max, places)
        for place in places:
            if place in group.leases:
                self.old.append((name, place, group.leases.pop(place).handle))

        async def give_back() -> None:
            self.running.engine.give_back("q", name, received)

        self.run(give_back())

    @precondition(lambda self: "r" in self.model.groups)
    @rule(number=NUMBERS, share=st.floats(0, 1))
    def commit(self, number: int, share: float) -> None:
        """Commit a part of what is there."""
        group = self.model.groups["r"]
        offset = round(self.model.next[number] * share)
        position = self.running.position(offset, number=number)
        self.run(self.running.engine.commit("q", "r", position))
        self.model.commit(group, number, offset)

    @precondition(lambda self: len(self.model.groups) < len(SPECS))
    @rule(which=ANY, is_late=st.booleans())
    def create_group(self, which: int, *, is_late: bool) -> None:
        """Create a group that is not there."""
        missing = sorted(SPECS.keys() - self.model.groups.keys())
        name = missing[which % len(missing)]
        # When messages leave for which a first group begins too late is the engine's choice.
        is_late = is_late and bool(self.model.groups)
        from_file = SPECS[name]
        spec = GroupSpec(
            kind=from_file.kind,
            order=from_file.order,
            visibility_timeout=VISIBILITY_SECONDS,
            start="latest" if is_late else "earliest",
        )
        self.run(self.running.engine.create_group("q", name, spec))
        self.model.create_group(
            name, is_lease=spec.kind == "lease", is_ordered=spec.order == "key", is_late=is_late
        )

    @precondition(lambda self: self.model.groups)
    @rule(which=ANY, is_meant=st.sampled_from([True, False, False]))
    def delete_group(self, which: int, *, is_meant: bool) -> None:
        """Delete a group now and then, perhaps the last."""
        if is_meant:
            name, _ = self.chosen(which)
            del self.model.groups[name]
            self.run(self.running.engine.delete_group("q", name))
            self.model.cut()

    @precondition(lambda self: self.model.groups)
    @rule(which=ANY, is_late=st.booleans())
    def seek(self, which: int, *, is_late: bool) -> None:
        """Move a group to one end."""
        name, group = self.chosen(which)
        self.old += [(name, place, lease.handle) for place, lease in group.leases.items()]
        self.run(self.running.engine.seek("q", name, "latest" if is_late else "earliest"))
        self.model.seek(group, is_late=is_late)
        group.counts = {}

    @rule(seconds=st.sampled_from([1.0, 11.0, 31.0, 70.0, 150.0]), step=st.sampled_from([0, 1e8]))
    def passes(self, seconds: float, step: float) -> None:
        """Let time pass; wall time may step meanwhile."""
        self.running.passes(seconds)
        self.running.steps(step)
        self.run(self.running.engine.maintain())
        self.model.passes(seconds)

    @rule()
    def purge(self) -> None:
        """Remove everything."""
        n_messages = len(self.model.messages)
        assert self.run(self.running.engine.purge("q")) == n_messages
        self.model.remove(set(self.model.messages))
        for group in self.model.groups.values():
            group.position = dict(self.model.next)

    @rule()
    def compact(self) -> None:
        """Give space back."""
        self.run(self.running.engine.compact())

    @precondition(lambda self: self.kind.is_durable)
    @rule(is_clean=st.booleans())
    def restart(self, *, is_clean: bool) -> None:
        """End the engine and open another one on what it left."""
        self.run(self.running.reopen() if is_clean else self.running.kill())
        self.model.restart()

    # -- invariants ------------------------------------------------------------------------------

    @invariant()
    def both_hold_the_same(self) -> None:
        """Counts, positions, and every message by its offset."""
        snapshot = self.running.snapshot()
        assert snapshot.messages == len(self.model.messages)
        assert snapshot.reserved == 0
        assert snapshot.payload_bytes == sum(
            len(each.payload) for each in self.model.messages.values()
        )
        assert {n: usage.next for n, usage in snapshot.usage.items()} == self.model.next
        for number, usage in snapshot.usage.items():
            expected = self.model.held(number)
            assert usage.messages == len(expected)
            assert usage.earliest <= min(expected, default=usage.next)
            batch = self.run(self.running.batch(usage.earliest, usage.next, number=number))
            assert dict(zip(batch.offset, batch.payload, strict=True)) == expected
        assert sorted(snapshot.groups) == sorted(self.model.groups)
        for name, group in self.model.groups.items():
            found = snapshot.groups[name]
            assert found.waiting == len(group.waiting), name
            assert found.leased == self.model.leased(group), name
            for number, offset in found.position.items():
                below = {at for n, at in group.waiting if n == number and at < offset}
                assert not below, f"{name} waits for {below} below its position {offset}"


class MemoryMachine(Machine):
    """The engine in memory."""

    kind = MemoryStorage


class SqliteMachine(Machine):
    """The engine in SQLite."""

    kind = SqliteStorage


class RedisMachine(Machine):
    """The engine on a Redis server."""

    kind = RedisStorage


class ClusterMachine(Machine):
    """The state machine of the contract, on a cluster."""

    kind = ClusterStorage


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=examples(40), stateful_step_count=30)

TestRedis = RedisMachine.TestCase
TestRedis.settings = settings(max_examples=examples(25), stateful_step_count=30)

TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(max_examples=examples(10), stateful_step_count=30)
