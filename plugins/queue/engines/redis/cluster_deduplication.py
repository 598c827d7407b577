"""Deduplication in a cluster, where an identifier and its message are on different servers.

Theory of operation. The identifiers of a queue are spread over the slots of its first physical
queues, each by its CRC-32: no node has them all, and that of an identifier need not be the one of
its message. So a message with an identifier is stored in two steps. First it claims its identifier:
the answer names the physical queue that the identifier's message belongs to, and a word for this
claim. A repeat within the window gets the same answer, whichever physical queue it was meant for.
Then the message is stored there with the claim as its identifier, at most once. What dies between
the steps has stored nothing; its repeat does.

The messages of one call wait for all their claims, and keep their order. Where some claims fail,
the others are stored. A call waits for those before it that have one of its identifiers, so that
the first message of an identifier is the one that is stored. In a queue with keys or with one
physical queue it waits for all before it to the same physical queue, as these have an order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from redis.exceptions import OutOfMemoryError, ResponseError

from penstock.plugins.queue.engines.contract import Sent
from penstock.plugins.queue.engines.redis.cached_state import RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.functions import Functions, refusal
from penstock.plugins.queue.engines.redis.messages import as_repeat, is_repeat

ARGUMENTS: Final = 5
"""The number of arguments of each message; the second is its key, the fourth its identifier."""

Send: TypeAlias = Callable[
    [RedisQueue, RedisPart, Sequence[bytes], Sent | None], asyncio.Future[Any]
]


class Claimed(NamedTuple):
    """What became of the messages of one call.

    Attributes:
        offsets: of each message; -1 where it is not stored, or not known.
        duplicates: places of messages that were stored before.
        errors: why a message is not stored, by its place.
    """

    offsets: Sequence[Any]
    duplicates: Sequence[int]
    errors: dict[int, BaseException]


class _Pending(NamedTuple):
    """Messages that wait for their claims, or for those of messages before them.

    Attributes:
        claims: calls, each with the places of its messages; none where no message needs one.
        moved: ends when what has its claims was sent on.
        sent: is told what physical queues get.
    """

    part: RedisPart
    args: list[bytes]
    claims: list[tuple[list[int], asyncio.Future[Any]]]
    moved: asyncio.Future[None]
    sent: Sent | None
    stored: asyncio.Future[Claimed]


class ClusterDeduplication:
    """Stores messages in two steps where that is needed."""

    def __init__(self, functions: Functions, send: Send) -> None:
        self._functions = functions
        self._send = send
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        """The `moved` of the newest messages that others must wait for, by what they share."""
        self._n_claims = 0

    def append(
        self, queue: RedisQueue, part: RedisPart, args: list[bytes], sent: Sent | None
    ) -> asyncio.Future[Any]:
        """Store messages by their arguments.

        The future has what became of them, or what the function `append` answers. It fails where
        none is stored.
        """
        claims = self._claim(queue, part, args)
        shared: list[Hashable] = [
            (queue, args[at * ARGUMENTS + 3]) for some, _ in claims for at in some
        ]
        if has_order(queue):
            shared.append(part)
        before = {self._last[one] for one in shared if one in self._last}
        if not claims and not before:
            return self._send(queue, part, args, sent)
        loop = asyncio.get_running_loop()
        pending = _Pending(part, args, claims, loop.create_future(), sent, loop.create_future())
        self._last.update(dict.fromkeys(shared, pending.moved))
        waits = {*before, *(claim for _, claim in claims)}

        def ended(wait: asyncio.Future[Any]) -> None:
            waits.discard(wait)
            if not waits:
                self._go_on(queue, pending, shared)

        for wait in waits:
            wait.add_done_callback(ended)
        return pending.stored

    def _claim(
        self, queue: RedisQueue, part: RedisPart, args: Sequence[bytes]
    ) -> list[tuple[list[int], asyncio.Future[Any]]]:
        """Claim the identifiers of messages, those of each slot by one call."""
        places: dict[str, list[int]] = {}
        for at, identifier in enumerate(args[3::ARGUMENTS]):
            if identifier:
                places.setdefault(self._functions.ids_key(queue, identifier), []).append(at)
        claims: list[tuple[list[int], asyncio.Future[Any]]] = []
        for key, some in places.items():
            self._n_claims += 1
            words: list[Any] = []
            for at in some:
                head, _, _, identifier, _ = args[at * ARGUMENTS : (at + 1) * ARGUMENTS]
                words += [identifier, "1" if is_repeat(head) else "0"]
            claim = self._claimed(
                key,
                self._functions.given(),
                repr(queue.spec.deduplication_seconds),
                part.number,
                f"{self._functions.program}.{self._n_claims}",
                *words,
            )
            claims.append((some, asyncio.ensure_future(claim)))
        return claims

    def _claimed(self, key: str, *args: Any) -> Coroutine[Any, Any, Any]:
        """Call the function now; return what waits for its answer.

        A node whose memory is full has room for claims, as their messages may go to other nodes.
        """
        call = self._functions.call("claim_ids", [key], *args)

        async def answer() -> Any:
            try:
                return await call
            except OutOfMemoryError:
                return await self._functions.call("claim_ids_full", [key], *args)

        return answer()

    def _go_on(self, queue: RedisQueue, pending: _Pending, shared: Sequence[Hashable]) -> None:
        """Store what has its claims, and let go on who waits for that."""
        try:
            self._store(queue, pending)
        except Exception as problem:  # noqa: BLE001 (its caller is told)
            pending.stored.set_exception(problem)
        for one in shared:
            if self._last.get(one) is pending.moved:
                del self._last[one]
        pending.moved.set_result(None)

    def _store(self, queue: RedisQueue, one: _Pending) -> None:
        """Store messages where their identifiers belong."""
        n_messages = len(one.args) // ARGUMENTS
        numbers = [one.part.number] * n_messages
        args = list(one.args)
        errors: dict[int, BaseException] = {}
        for some, claim in one.claims:
            error = _error_of(claim, queue)
            if error is not None:
                errors.update(dict.fromkeys(some, error))
                continue
            for at, answer in zip(some, claim.result(), strict=True):
                number, word = answer.split(b" ", 1)
                numbers[at] = self._functions.part_of(queue, int(number)).number
                args[at * ARGUMENTS + 3] = word
                # A claim is one message's: also of one that is new, its repeat may have come first.
                args[at * ARGUMENTS] = as_repeat(args[at * ARGUMENTS])
        if errors and has_order(queue):
            _refuse_later(args[1::ARGUMENTS], errors)
        places: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            if at not in errors:
                places.setdefault(number, []).append(at)
        calls: dict[int, asyncio.Future[Any]] = {}
        for number, some in places.items():
            own = [word for at in some for word in args[at * ARGUMENTS : (at + 1) * ARGUMENTS]]
            calls[number] = self._send(queue, queue.physical[number], own, one.sent)
        done = partial(_complete, queue, one, errors, places, calls)
        for call in calls.values():
            call.add_done_callback(done)
        if not calls:
            done(None)


def has_order(queue: RedisQueue) -> bool:
    """Say whether messages of a queue have an order that waiting for claims must keep."""
    return queue.spec.key is not None or len(queue.physical) == 1


def _refuse_later(keys: Sequence[bytes], errors: dict[int, BaseException]) -> None:
    """Refuse with a message those behind it that have its key: their repeats keep the order."""
    refused: dict[bytes, BaseException] = {}
    for at, key in enumerate(keys):
        if at in errors:
            refused.setdefault(key, errors[at])
        elif key in refused:
            errors[at] = refused[key]


def _error_of(call: asyncio.Future[Any], queue: RedisQueue) -> BaseException | None:
    """Return what a call that has ended has failed with."""
    error = call.exception()
    return refusal(error, queue) if isinstance(error, ResponseError) else error


def _complete(
    queue: RedisQueue,
    one: _Pending,
    errors: dict[int, BaseException],
    places: dict[int, list[int]],
    calls: dict[int, asyncio.Future[Any]],
    _call: asyncio.Future[Any] | None,
) -> None:
    """Answer when all parts have ended. What belongs to another physical queue is a duplicate."""
    if one.stored.done() or not all(call.done() for call in calls.values()):
        return
    offsets: list[Any] = [-1] * (len(one.args) // ARGUMENTS)
    duplicates: list[int] = []
    for number, call in calls.items():
        error = _error_of(call, queue)
        if error is not None:
            errors.update(dict.fromkeys(places[number], error))
            continue
        _, some, doubles, _, _ = call.result()
        if number != one.part.number:
            duplicates += places[number]
            continue
        for at, offset in zip(places[number], some, strict=True):
            offsets[at] = offset
        duplicates += [places[number][at] for at in doubles]
    if errors and len(errors) == len(offsets):
        one.stored.set_exception(errors[min(errors)])
    else:
        one.stored.set_result(Claimed(offsets, sorted(duplicates), errors))
