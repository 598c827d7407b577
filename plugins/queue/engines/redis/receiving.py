"""Receiving leases messages on the server, gives them back and settles them.

Theory of operation. A receive does not wait for a node of a cluster that is away while others are
there: it is given up. Whether the node has leased anything is known at its answer, which is waited
for in any case. What it has leased then goes back, and that receive is not counted: nobody has seen
the messages. What a receiver has leased that has left goes back, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.engines.contract import Action, StorageError
from penstock.plugins.queue.engines.receipts import Receive
from penstock.plugins.queue.engines.receiving import RETRY_SECONDS
from penstock.plugins.queue.engines.redis.cached_state import RedisGroup, RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.catalogue import Catalogue
from penstock.plugins.queue.engines.redis.dead_letters import DeadLetters
from penstock.plugins.queue.engines.redis.functions import Functions, plain, told_now
from penstock.plugins.queue.engines.redis.messages import read_row
from penstock.plugins.queue.engines.segments import count_down
from penstock.plugins.queue.wire.frames import ReceivedMessage

_HOLD_SECONDS: Final = 60.0
"""How long a message stays leased while it is moved to a dead letter queue."""


class _Run(NamedTuple):
    """Messages of one physical queue that were received together, as often each.

    Attributes:
        receive_count: the receive count of the messages with this receive.
        nonce: the nonce of the receive; -2, which no receive has, where it was of another epoch.
    """

    receive_count: int
    nonce: int
    indexes: Sequence[int]
    offsets: Sequence[int]


class Receiving:
    """Leases and settles messages."""

    def __init__(
        self, functions: Functions, catalogue: Catalogue, dead_letters: DeadLetters
    ) -> None:
        self._functions = functions
        self._catalogue = catalogue
        self._dead_letters = dead_letters
        self._logger = functions.logger
        self._under_way: dict[asyncio.Future[None], tuple[RedisQueue, RedisPart]] = {}

    async def lease(
        self,
        queue: str,
        group: str,
        physical_queue: int,
        max_messages: int,
        max_bytes: int,
        visibility_timeout: float | None = None,
    ) -> list[ReceivedMessage]:
        """Receive messages of one physical queue."""
        found = self._catalogue.find(queue)
        receivers = found.group(group, "lease")
        part = found.part(physical_queue)
        receivers.used_at = now = self._functions.now()
        receivers.expire(now)
        if physical_queue in self._functions.away(found):
            return []
        seconds = receivers.spec.visibility_timeout
        if visibility_timeout is not None:
            seconds = visibility_timeout
        received: list[ReceivedMessage] = []
        n_bytes = 0
        try:
            while len(received) < max_messages and (n_bytes < max_bytes or not received):
                most = await self._room(receivers, max_messages - len(received))
                if most <= 0:
                    break
                some, has_more = await self._lease_once(
                    found, receivers, part, most, max_bytes - n_bytes, seconds
                )
                received += some
                n_bytes += sum(len(one.payload) for one in some)
                if not has_more:
                    break
        except BaseException:  # the receiver has left
            self.give_back(queue, group, received)
            raise
        receivers.received += len(received)
        return received

    async def _room(self, group: RedisGroup, wanted: int) -> int:
        """Return how many messages a receive may lease; note that it is under way."""
        while True:
            room = group.spec.max_leased_messages - group.n_leased - group.under_way
            most = min(wanted, room)
            if most == wanted or not group.under_way:
                group.under_way += max(0, most)
                return most
            # What the others leave is known when they have their answers.
            await group.answered.wait()

    async def _lease_once(
        self,
        queue: RedisQueue,
        group: RedisGroup,
        part: RedisPart,
        most: int,
        max_bytes: int,
        seconds: float,
    ) -> tuple[list[ReceivedMessage], bool]:
        """Receive messages; return them, and whether there may be more at once."""
        spec = group.spec
        group.answered.clear()
        try:
            call = self._functions.submit(
                queue,
                part,
                "lease",
                group.id,
                most,
                max_bytes,
                repr(seconds),
                spec.max_receives or 0,
                "" if spec.topics is None else json.dumps(spec.topics, ensure_ascii=False),
                repr(RETRY_SECONDS),
            )
        except BaseException:
            group.under_way -= most
            group.answered.set()
            raise

        def done(_call: asyncio.Future[Any]) -> None:
            group.under_way -= most
            group.answered.set()

        call.add_done_callback(done)
        try:
            await self._answered_or_away(queue, part, call)
        except asyncio.CancelledError:
            self._undo(queue, group, part, call)
            raise
        if not call.done():
            call.remove_done_callback(done)
            done(call)  # other receives need not wait for it
            self._undo(queue, group, part, call)
            return [], False
        answer = await plain(call, queue)
        told, nonce, has_more, _, _, _, dead = answer
        received = self._received(group, part, answer)
        if dead:
            try:
                # The next messages of their keys are visible then.
                buried = await self._bury_unseen(queue, group, part, told, nonce, dead)
                has_more = buried or has_more
            except StorageError as error:
                self._logger.error(  # noqa: TRY400 (the trace tells nothing more)
                    "queue %s, group %s: %s; its dead letters stay", queue.name, group.name, error
                )
            except BaseException:
                self.give_back(queue.name, group.name, received)
                raise
        return received, bool(has_more)

    async def _answered_or_away(
        self, queue: RedisQueue, part: RedisPart, call: asyncio.Future[Any]
    ) -> None:
        """Wait for the answer of a lease, or until its node is away."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call.add_done_callback(lambda _: _complete(waiter))
        self._under_way[waiter] = queue, part
        try:
            await waiter
        finally:
            del self._under_way[waiter]

    def give_up_away(self) -> None:
        """Have receives end with nothing that wait for a node which is away, if others are not."""
        for waiter, (queue, part) in self._under_way.items():
            if part.number in self._functions.away(queue):
                _complete(waiter)

    def _undo(
        self, queue: RedisQueue, group: RedisGroup, part: RedisPart, call: asyncio.Future[Any]
    ) -> None:
        """Give back what a lease gets whose receiver is gone, however late its answer is."""

        def undo(call: asyncio.Future[Any]) -> None:
            if not call.cancelled() and call.exception() is None:
                received = self._received(group, part, call.result())
                for settled in self._give_back(queue.name, group.name, received):
                    # Answers that come before this one's still tell of the lease.
                    settled.add_done_callback(lambda _: group.arrived())

        self._functions.routes.keep(call)
        call.add_done_callback(undo)

    def _received(
        self, group: RedisGroup, part: RedisPart, answer: Sequence[Any]
    ) -> list[ReceivedMessage]:
        """Return received messages with their handles; note who has them."""
        told, nonce, _, n_filtered, n_expired, flat, _ = answer
        group.count("filtered", n_filtered)
        group.count("expired", n_expired)
        now = told_now(told) if flat else 0.0
        place = group.place(part.number)
        received: list[ReceivedMessage] = []
        offsets, counts = flat[::4], flat[1::4]
        handles = self._handles(group, part.number, nonce, offsets, counts)
        place.held.update(zip(offsets, repeat(nonce)))
        columns = zip(handles, counts, offsets, flat[2::4], flat[3::4], strict=True)
        for handle, count, offset, info, body in columns:
            _, topic, payload, qos, publisher, wall, properties, _, expires_at = read_row(
                offset, info, body
            )
            if expires_at:
                properties = count_down(properties, expires_at, now)
            received.append(
                ReceivedMessage(
                    handle,
                    count,
                    part.number,
                    offset,
                    topic,
                    payload,
                    qos,
                    publisher,
                    wall,
                    properties,
                )
            )
        return received

    @staticmethod
    def _handles(
        group: RedisGroup, number: int, nonce: int, offsets: Sequence[int], counts: Sequence[int]
    ) -> list[str]:
        """Return the handles of messages that were received together.

        Those of consecutive messages that were received as often are made at once.
        """
        assert group.receipts is not None  # noqa: S101 (the catalogue gives each group its own)
        handles: list[str] = []
        first, n = 0, len(offsets)
        while first < n:
            start, count, past = offsets[first], counts[first], first + 1
            while past < n and offsets[past] == start + past - first and counts[past] == count:
                past += 1
            receive = Receive(number, count, nonce, group.epoch)
            handles += group.receipts.handles(receive, range(start, start + past - first))
            first = past
        return handles

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible whose receiver has left."""
        self._give_back(queue, group, deliveries)

    def _give_back(
        self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]
    ) -> list[asyncio.Future[Any]]:
        """Give messages back; return the calls that do it."""
        calls: list[asyncio.Future[Any]] = []
        if not deliveries:
            return calls  # to tell of arrivals where there are none has those who wait look again
        found = self._catalogue.queues.get(queue)
        receivers = None if found is None else found.groups.get(group)
        if found is None or receivers is None or receivers.spec.kind != "lease":
            return calls
        receives, _ = self._read_handles(receivers, [one.receipt_handle for one in deliveries])
        for number, runs in receives.items():
            part = found.physical.get(number)
            if part is None:
                continue
            place = receivers.place(number)
            for run in runs:
                for offset in run.offsets:
                    if place.held.get(offset) == run.nonce:
                        del place.held[offset]
                        place.leased = max(0, place.leased - 1)
            calls.append(self._settle_part(found, receivers, part, "undo", 0.0, runs))
        receivers.arrived()
        return calls

    @staticmethod
    def _read_handles(
        group: RedisGroup, handles: Sequence[str]
    ) -> tuple[dict[int, list[_Run]], list[int]]:
        """Return what handles name, by physical queue, and the indexes of those not made here."""
        assert group.receipts is not None  # noqa: S101 (the catalogue gives each group its own)
        receives, unknown = group.receipts.read(handles)
        found: dict[int, list[_Run]] = {}
        for one in receives:
            receive = one.receive
            nonce = receive.nonce if receive.epoch == group.epoch else -2
            run = _Run(receive.receive_count, nonce, one.indexes, one.offsets)
            found.setdefault(receive.number, []).append(run)
        return found, unknown

    def _settle_part(
        self,
        queue: RedisQueue,
        group: RedisGroup,
        part: RedisPart,
        action: str,
        seconds: float,
        runs: Iterable[_Run],
    ) -> asyncio.Future[Any]:
        words: list[int] = []
        for run in runs:
            words += (run.receive_count, run.nonce, len(run.offsets), *run.offsets)
        return self._functions.submit(
            queue, part, "settle", group.id, group.epoch, action, repr(seconds), *words
        )

    async def settle(
        self,
        queue: str,
        group: str,
        action: Action,
        receipt_handles: Sequence[str],
        seconds: float = 0.0,
    ) -> Mapping[int, str]:
        """Settle receives."""
        found = self._catalogue.find(queue)
        receivers = found.group(group, "lease")
        receivers.used_at = now = self._functions.now()
        receivers.expire(now)
        receives, unknown = self._read_handles(receivers, receipt_handles)
        failed = dict.fromkeys(unknown, "unknown")
        for number in [number for number in receives if number not in found.physical]:
            for run in receives.pop(number):
                failed.update(dict.fromkeys(run.indexes, "unknown"))
        if action == "dead":
            await self._declare_dead(found, receivers, receives, failed)
            return failed
        was_full = receivers.n_leased >= receivers.spec.max_leased_messages
        calls = {
            number: self._settle_part(
                found, receivers, found.physical[number], action, seconds, runs
            )
            for number, runs in receives.items()
        }
        n_settled = 0
        for number, call in calls.items():
            answer = await plain(call, found)
            n_settled += self._note_settled(receivers, number, receives[number], answer, failed)
        if action in ("ack", "nack"):
            receivers.count(action, n_settled)
        if n_settled and (action != "ack" or was_full or receivers.spec.order == "key"):
            receivers.arrived()
        return failed

    @staticmethod
    def _note_settled(
        group: RedisGroup,
        number: int,
        runs: Iterable[_Run],
        answer: Sequence[Any],
        failed: dict[int, str],
    ) -> int:
        """Note which handles are stale; return how many are not."""
        stale = set(answer[1])
        held = group.place(number).held
        at = 0
        for run in runs:
            for index, offset in zip(run.indexes, run.offsets, strict=True):
                if at in stale:
                    failed[index] = "stale"
                else:
                    held.pop(offset, None)
                at += 1
        return at - len(stale)

    async def _declare_dead(
        self,
        queue: RedisQueue,
        group: RedisGroup,
        receives: Mapping[int, list[_Run]],
        failed: dict[int, str],
    ) -> None:
        target = self._dead_letters.target(group)
        n_settled = 0
        for number, runs in receives.items():
            part = queue.physical[number]
            if target is not None:
                call = self._settle_part(queue, group, part, "show", _HOLD_SECONDS, runs)
                answer = await plain(call, queue)
                await self._dead_letters.store(
                    queue, group, part, target, answer[0], answer[2], "dead"
                )
            call = self._settle_part(queue, group, part, "dead", 0.0, runs)
            answer = await plain(call, queue)
            n_settled += self._note_settled(group, number, runs, answer, failed)
        group.count("dead", n_settled)
        if n_settled:
            group.arrived()

    async def _bury_unseen(
        self,
        queue: RedisQueue,
        group: RedisGroup,
        part: RedisPart,
        told: Sequence[Any],
        nonce: int,
        flat: Sequence[Any],
    ) -> bool:
        """Move messages that were received too often; the group holds them meanwhile.

        Returns:
            Whether any has left the group.
        """
        target = self._dead_letters.target(group)
        if target is not None:
            await self._dead_letters.store(queue, group, part, target, told, flat, "max_receives")
        runs = [_Run(flat[at + 1], nonce, (), [flat[at]]) for at in range(0, len(flat), 4)]
        call = self._settle_part(queue, group, part, "dead", 0.0, runs)
        answer = await plain(call, queue)
        n_settled = len(runs) - len(answer[1])
        group.count("dead", n_settled)
        return n_settled > 0


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
