"""Deduplication in a cluster, where identifiers and messages are on different servers.

Theory of operation. All identifiers of a queue are in one slot, which is not that of a physical
queue. So a message with an identifier is stored in two steps. First it claims its identifier: the
answer names the physical queue that the identifier's message belongs to, and a word for this claim.
A repeat within the window gets the same answer, whichever physical queue it was meant for. Then the
message is stored there with the claim as its identifier, at most once. What dies between the steps
has stored nothing; its repeat does.

Messages wait for the claims of those before them where that keeps an order: in a queue with keys or
with one physical queue. Elsewhere there is none, and who has no identifier does not wait for the
server of the identifiers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.engines.redis.functions import Functions
from penstock.plugins.queue.engines.redis.messages import is_repeat
from penstock.plugins.queue.engines.redis.mirror import Part, Queue

ARGUMENTS: Final = 5
"""That each message has; the fourth is its identifier."""


class _Pending(NamedTuple):
    """Messages that wait for their claims, or for those of messages before them.

    Attributes:
        part: that they are meant for.
        args: of the messages.
        places: of those with an identifier.
        claim: the call; None where there are no identifiers.
        stored: gets what the function `append` answers.
    """

    part: Part
    args: list[bytes]
    places: list[int]
    claim: asyncio.Future[Any] | None
    stored: asyncio.Future[Any]


class Claiming:
    """Stores messages in two steps where that is needed.

    Args:
        functions: of the servers.
        submit: stores messages of one physical queue.
    """

    def __init__(
        self,
        functions: Functions,
        submit: Callable[[Queue, Part, Sequence[bytes]], asyncio.Future[Any]],
    ) -> None:
        self._functions = functions
        self._submit = submit
        self._pending: dict[str, deque[_Pending]] = {}
        self._n_claims = 0

    def append(self, queue: Queue, part: Part, args: list[bytes]) -> asyncio.Future[Any]:
        """Store messages by their arguments; the future has what `append` answers."""
        places = [at for at, one in enumerate(args[3::ARGUMENTS]) if one]
        pending = self._pending.get(queue.incarnation)
        has_order = queue.spec.key is not None or len(queue.physical) == 1
        if not places and not (pending and has_order):
            return self._submit(queue, part, args)
        if pending is None:
            pending = self._pending[queue.incarnation] = deque()
        stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        claim = self._claim(queue, part, args, places) if places else None
        pending.append(_Pending(part, args, places, claim, stored))
        if claim is not None:
            claim.add_done_callback(lambda _: self._go_on(queue))
        return stored

    def _claim(
        self, queue: Queue, part: Part, args: Sequence[bytes], places: Sequence[int]
    ) -> asyncio.Future[Any]:
        self._n_claims += 1
        words: list[Any] = []
        for at in places:
            head, _, _, identifier, _ = args[at * ARGUMENTS : (at + 1) * ARGUMENTS]
            words += [identifier, "1" if is_repeat(head) else "0"]
        return self._functions.call(
            "claim_ids",
            [self._functions.ids_key(queue.incarnation)],
            self._functions.given(),
            repr(queue.spec.deduplication_seconds),
            part.number,
            f"{self._functions.program}.{self._n_claims}",
            *words,
        )

    def _go_on(self, queue: Queue) -> None:
        """Store what has its claims, as far as nothing before it waits."""
        pending = self._pending.get(queue.incarnation)
        while pending and (pending[0].claim is None or pending[0].claim.done()):
            one = pending.popleft()
            error = None if one.claim is None else one.claim.exception()
            if error is not None:
                one.stored.set_exception(error)
                continue
            try:
                self._store(queue, one)
            except Exception as problem:  # noqa: BLE001 (its caller is told)
                one.stored.set_exception(problem)
        if not pending:
            self._pending.pop(queue.incarnation, None)

    def _store(self, queue: Queue, one: _Pending) -> None:
        """Store messages where their identifiers belong."""
        n_messages = len(one.args) // ARGUMENTS
        numbers = [one.part.number] * n_messages
        args = list(one.args)
        claims = one.claim.result() if one.claim is not None else ()
        for at, claim in zip(one.places, claims, strict=True):
            number, word = claim.split(b" ", 1)
            if int(number) in queue.physical:
                numbers[at] = int(number)
            args[at * ARGUMENTS + 3] = word
        places: dict[int, list[int]] = {}
        for at, number in enumerate(numbers):
            places.setdefault(number, []).append(at)
        calls: dict[int, asyncio.Future[Any]] = {}
        for number, some in places.items():
            own = [word for at in some for word in args[at * ARGUMENTS : (at + 1) * ARGUMENTS]]
            calls[number] = self._submit(queue, queue.physical[number], own)
        done = partial(_complete, one, places, calls)
        for call in calls.values():
            call.add_done_callback(done)


def _complete(
    one: _Pending,
    places: dict[int, list[int]],
    calls: dict[int, asyncio.Future[Any]],
    _call: asyncio.Future[Any],
) -> None:
    """Answer when all parts are stored. What belongs to another physical queue is a duplicate."""
    if one.stored.done() or not all(call.done() for call in calls.values()):
        return
    offsets: list[Any] = [-1] * (len(one.args) // ARGUMENTS)
    duplicates: list[int] = []
    for number, call in calls.items():
        error = call.exception()
        if error is not None:
            one.stored.set_exception(error)
            return
        _, some, doubles, _, _ = call.result()
        if number != one.part.number:
            duplicates += places[number]
            continue
        for at, offset in zip(places[number], some, strict=True):
            offsets[at] = offset
        duplicates += [places[number][at] for at in doubles]
    one.stored.set_result([b"", offsets, sorted(duplicates), 0, 0])
