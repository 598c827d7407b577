"""Dead letters are stored in their queue before they leave their group, and moved back.

Theory of operation. A letter is stored in one physical queue, then it leaves the other. It has a
deduplication identifier of its own, so it is stored once, however often a program dies in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.plugins.queue.engines.contract import StorageError, UnknownQueueError
from penstock.plugins.queue.engines.dead_letters import dead_properties, origin_of
from penstock.plugins.queue.engines.reading import RANGE_BYTES
from penstock.plugins.queue.engines.redis.cached_state import RedisGroup, RedisPart, RedisQueue
from penstock.plugins.queue.engines.redis.catalogue import Catalogue
from penstock.plugins.queue.engines.redis.functions import Functions, plain, told_now
from penstock.plugins.queue.engines.redis.messages import Row, read_row, rows_of, written_row
from penstock.plugins.queue.engines.redis.storing import Storing

_LETTERS: Final = 500
"""How many dead letters are moved at a time."""


class DeadLetters:
    """Moves dead letters."""

    def __init__(self, functions: Functions, catalogue: Catalogue, storing: Storing) -> None:
        self._functions = functions
        self._catalogue = catalogue
        self._storing = storing

    def target(self, group: RedisGroup) -> RedisQueue | None:
        """Return where dead letters of a group go; None where they are dropped.

        Raises:
            StorageError: the queue does not exist.
        """
        name = group.spec.dead_letter_queue
        if name is None:
            return None
        target = self._catalogue.queues.get(name)
        if target is None:
            raise StorageError(f"dead letter queue {name}: it does not exist")
        return target

    async def store(
        self,
        queue: RedisQueue,
        group: RedisGroup,
        part: RedisPart,
        target: RedisQueue,
        told: Sequence[Any],
        flat: Sequence[bytes],
        reason: str,
    ) -> None:
        """Store dead letters, once each, however often this is repeated."""
        now = told_now(told)
        args: dict[int, list[bytes]] = {}
        for at in range(0, len(flat), 4):
            row = read_row(int(flat[at]), flat[at + 2], flat[at + 3])
            properties = dead_properties(
                row.properties,
                queue=queue.name,
                physical_queue=part.number,
                group=group.name,
                reason=reason,
                receives=int(flat[at + 1]),
            )
            letter = row._replace(properties=properties)
            identifier = f"dead {queue.incarnation} {part.number} {row.offset} {group.id}"
            number = target.place_of(part.number, row.topic, row.publisher, properties)
            args.setdefault(number, []).extend(
                written_row(letter, now - row.clock, target.key_of, identifier=_own(identifier))
            )
        for number, some in args.items():
            await plain(self._storing.submit(target, target.physical[number], some), target)

    async def redrive(self, queue: str, target: str | None, max_messages: int | None) -> int:
        """Move dead letters back."""
        source = self._catalogue.find(queue)
        to = None if target is None else self._catalogue.find(target)
        n_moved = 0
        for part in list(source.physical.values()):
            start, end = part.earliest, part.next
            while start < end:
                left = _LETTERS if max_messages is None else max_messages - n_moved
                if left <= 0:
                    return n_moved
                answer = await self._functions.ask(
                    source, part, "range", start, end, min(left, _LETTERS), RANGE_BYTES, "1"
                )
                start = answer[1]
                rows = list(rows_of(answer[2]))
                n_moved += await self._move_letters(source, part, told_now(answer[0]), rows, to)
        return n_moved

    async def _move_letters(
        self,
        source: RedisQueue,
        part: RedisPart,
        now: float,
        rows: Sequence[Row],
        target: RedisQueue | None,
    ) -> int:
        args: dict[tuple[str, int], list[bytes]] = {}
        offsets: list[int] = []
        unknown: UnknownQueueError | None = None
        for row in rows:
            origin, number, properties = origin_of(row.properties)
            if target is None and origin is None:
                continue
            try:
                to = target if target is not None else self._catalogue.find(origin or "")
            except UnknownQueueError as error:
                unknown = error
                break
            from_number = part.number if number is None else number
            number = to.place_of(from_number, row.topic, row.publisher, properties)
            letter = row._replace(properties=properties)
            identifier = _own(f"redrive {source.incarnation} {part.number} {row.offset}")
            into = args.setdefault((to.name, number), [])
            into += written_row(letter, now - row.clock, to.key_of, identifier=identifier)
            offsets.append(row.offset)
        for (name, number), some in args.items():
            into_queue = self._catalogue.find(name)
            await plain(
                self._storing.submit(into_queue, into_queue.physical[number], some), into_queue
            )
        n_moved = 0
        if offsets:
            answer = await self._functions.ask(source, part, "remove", *offsets)
            n_moved = int(answer[1])
        if unknown is not None:
            raise unknown
        return n_moved


def _own(identifier: str) -> bytes:
    """Return a deduplication identifier that no publisher's is."""
    return b"\0penstock " + identifier.encode()
