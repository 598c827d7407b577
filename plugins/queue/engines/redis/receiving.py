"""Receives: what is leased, given back and settled.

Theory of operation. A receive does not wait for a node of a cluster that is away while others are
there: it is given up. Whether the node has leased anything is known at its answer, which is waited
for in any case. What it has leased then goes back, and that receive is not counted: nobody has seen
the messages. The same is done for a receiver that has left.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from logging import Logger
from typing import Any, Final

from penstock.plugins.queue.engines.contract import (
    Action,
    StorageError,
)
from penstock.plugins.queue.engines.expiry import count_down
from penstock.plugins.queue.engines.receipts import Receive
from penstock.plugins.queue.engines.receiving import RETRY_SECONDS
from penstock.plugins.queue.engines.redis.burying import Burying
from penstock.plugins.queue.engines.redis.catalogue import Catalogue
from penstock.plugins.queue.engines.redis.functions import (
    Functions,
    plain,
    told_now,
)
from penstock.plugins.queue.engines.redis.messages import (
    read_row,
)
from penstock.plugins.queue.engines.redis.mirror import Group, Part, Queue
from penstock.plugins.queue.wire.frames import ReceivedMessage

_HOLD_SECONDS: Final = 60.0
"""For which a message stays with its receiver while it is moved to a dead letter queue."""


class Receiving:
    """Leases and settles messages.

    Args:
        functions: of the server.
        catalogue: of queues and groups.
        burying: keeps dead letters.
        logger: gets faults.
    """

    def __init__(
        self, functions: Functions, catalogue: Catalogue, burying: Burying, logger: Logger
    ) -> None:
        self._functions = functions
        self._catalogue = catalogue
        self._burying = burying
        self._logger = logger
        self._under_way: dict[asyncio.Future[None], tuple[Queue, Part]] = {}

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
        receivers = found.lease_group(group)
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

    async def _room(self, group: Group, wanted: int) -> int:
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
        queue: Queue,
        group: Group,
        part: Part,
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
                buried = await self._bury_unseen(queue, group, part, told, int(nonce), dead)
                has_more = buried or has_more
            except StorageError as error:
                self._logger.error(  # noqa: TRY400 (the trace tells nothing more)
                    "queue %s, group %s: %s; its dead letters stay", queue.name, group.name, error
                )
            except BaseException:
                self.give_back(queue.name, group.name, received)
                raise
        return received, bool(has_more)

    async def _answered_or_away(self, queue: Queue, part: Part, call: asyncio.Future[Any]) -> None:
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

    def _undo(self, queue: Queue, group: Group, part: Part, call: asyncio.Future[Any]) -> None:
        """Give back what a lease gets whose receiver is gone, however late its answer is."""

        def undo(call: asyncio.Future[Any]) -> None:
            if not call.cancelled() and call.exception() is None:
                received = self._received(group, part, call.result())
                for settled in self._give_back(queue.name, group.name, received):
                    # Answers that come before this one's still tell of the lease.
                    settled.add_done_callback(lambda _: group.arrived())

        self._functions.keep(call)
        call.add_done_callback(undo)

    def _received(self, group: Group, part: Part, answer: Sequence[Any]) -> list[ReceivedMessage]:
        """Return received messages with their handles; note who has them."""
        told, nonce, _, n_filtered, n_expired, flat, _ = answer
        group.count("filtered", n_filtered)
        group.count("expired", n_expired)
        now = told_now(told) if flat else 0.0
        place = group.place(part.number)
        received: list[ReceivedMessage] = []
        assert group.receipts is not None  # noqa: S101 (the catalogue gives each group its own)
        for at in range(0, len(flat), 4):
            row = read_row(int(flat[at]), flat[at + 2], flat[at + 3])
            count = int(flat[at + 1])
            receive = Receive(part.number, count, int(nonce), group.epoch)
            (handle,) = group.receipts.handles(receive, range(row.offset, row.offset + 1))
            properties = row.properties
            if row.expires_at:
                properties = count_down(properties, row.expires_at, now)
            place.held[row.offset] = int(nonce)
            received.append(
                ReceivedMessage(
                    handle,
                    count,
                    part.number,
                    row.offset,
                    row.topic,
                    row.payload,
                    row.qos,
                    row.publisher,
                    row.enqueued_at,
                    properties,
                )
            )
        return received

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Make messages visible whose receiver has left."""
        self._give_back(queue, group, deliveries)

    def _give_back(
        self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]
    ) -> list[asyncio.Future[Any]]:
        """The same; return the calls that do it."""
        calls: list[asyncio.Future[Any]] = []
        if not deliveries:
            return calls  # to tell of arrivals where there are none has those who wait look again
        found = self._catalogue.queues.get(queue)
        receivers = None if found is None else found.groups.get(group)
        if found is None or receivers is None or receivers.spec.kind != "lease":
            return calls
        receives, _ = self._read_handles(receivers, [one.receipt_handle for one in deliveries])
        for number, triples in receives.items():
            part = found.physical.get(number)
            if part is None:
                continue
            place = receivers.place(number)
            for _, offset, _, nonce in triples:
                if place.held.get(offset) == nonce:
                    del place.held[offset]
                    place.leased = max(0, place.leased - 1)
            try:
                calls.append(self._settle_part(found, receivers, part, "undo", 0.0, triples))
            except StorageError:  # it is closed; the leases end by time
                return calls
        receivers.arrived()
        return calls

    @staticmethod
    def _read_handles(
        group: Group, handles: Sequence[str]
    ) -> tuple[dict[int, list[tuple[int, int, int, int]]], list[int]]:
        """Return index, offset, receive count and nonce of handles by number of physical queue.

        Those of another epoch have a nonce that no receive has.
        """
        assert group.receipts is not None  # noqa: S101 (the catalogue gives each group its own)
        receives, unknown = group.receipts.read(handles)
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for one in receives:
            receive = one.receive
            nonce = receive.nonce if receive.epoch == group.epoch else -2
            triples = found.setdefault(receive.number, [])
            for index, offset in zip(one.indexes, one.offsets, strict=True):
                triples.append((index, offset, receive.receive_count, nonce))
        return found, unknown

    def _settle_part(
        self,
        queue: Queue,
        group: Group,
        part: Part,
        action: str,
        seconds: float,
        triples: Iterable[tuple[int, int, int, int]],
    ) -> asyncio.Future[Any]:
        flat = [number for triple in triples for number in triple[1:]]
        return self._functions.submit(
            queue, part, "settle", group.id, group.epoch, action, repr(seconds), *flat
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
        receivers = found.lease_group(group)
        receivers.used_at = now = self._functions.now()
        receivers.expire(now)
        receives, unknown = self._read_handles(receivers, receipt_handles)
        failed = dict.fromkeys(unknown, "unknown")
        for number in [number for number in receives if number not in found.physical]:
            failed.update((one[0], "unknown") for one in receives.pop(number))
        if action == "dead":
            await self._declare_dead(found, receivers, receives, failed)
            return failed
        was_full = receivers.n_leased >= receivers.spec.max_leased_messages
        calls = {
            number: self._settle_part(
                found, receivers, found.physical[number], action, seconds, triples
            )
            for number, triples in receives.items()
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
        group: Group,
        number: int,
        triples: Sequence[tuple[int, int, int, int]],
        answer: Sequence[Any],
        failed: dict[int, str],
    ) -> int:
        """Note which handles are stale; return how many are not."""
        stale = set(answer[1])
        held = group.place(number).held
        for at, (index, offset, _, _) in enumerate(triples):
            if at in stale:
                failed[index] = "stale"
            else:
                held.pop(offset, None)
        return len(triples) - len(stale)

    async def _declare_dead(
        self,
        queue: Queue,
        group: Group,
        receives: Mapping[int, list[tuple[int, int, int, int]]],
        failed: dict[int, str],
    ) -> None:
        target = self._burying.target(group)
        n_settled = 0
        for number, triples in receives.items():
            part = queue.physical[number]
            if target is not None:
                call = self._settle_part(queue, group, part, "show", _HOLD_SECONDS, triples)
                answer = await plain(call, queue)
                await self._burying.store(queue, group, part, target, answer[0], answer[2], "dead")
            call = self._settle_part(queue, group, part, "dead", 0.0, triples)
            answer = await plain(call, queue)
            n_settled += self._note_settled(group, number, triples, answer, failed)
        group.count("dead", n_settled)
        if n_settled:
            group.arrived()

    async def _bury_unseen(
        self,
        queue: Queue,
        group: Group,
        part: Part,
        told: bytes,
        nonce: int,
        flat: Sequence[bytes],
    ) -> bool:
        """Move messages that were received too often; the group holds them meanwhile.

        Returns:
            Whether any has left the group.
        """
        target = self._burying.target(group)
        if target is not None:
            await self._burying.store(queue, group, part, target, told, flat, "max_receives")
        triples = [
            (at // 4, int(flat[at]), int(flat[at + 1]), nonce) for at in range(0, len(flat), 4)
        ]
        call = self._settle_part(queue, group, part, "dead", 0.0, triples)
        answer = await plain(call, queue)
        n_settled = len(triples) - len(answer[1])
        group.count("dead", n_settled)
        return n_settled > 0


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
