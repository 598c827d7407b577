"""E-Ctrl: in which physical queue a message is stored (papers 000 and 001, chapter 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from zlib import crc32

T = TypeVar("T")


class EnqueueController(Generic[T]):
    """Distributes messages over the physical queues of one logical queue.

    Round robin, or by key: the messages of a key are in one physical queue, the same after a
    restart, and those without a key go round robin.

    Args:
        physical_queues: how many there are, at least 1; they are numbered from 0.
        key_of: returns the key of a message, None for none; None for a queue without keys.
    """

    def __init__(
        self, physical_queues: int, key_of: Callable[[T], str | None] | None = None
    ) -> None:
        self._n = physical_queues
        self._key_of = key_of
        self._turn = 0

    def deal(self, messages: Sequence[T]) -> dict[int, Sequence[T]]:
        """Return the messages by the number of their physical queue, in order within each.

        A message's place depends on all messages before it, however they were grouped into calls.
        """
        if self._key_of is not None:
            return self._deal_by_key(messages, self._key_of)
        n = self._n
        dealt = {
            (self._turn + first) % n: messages[first::n] for first in range(min(n, len(messages)))
        }
        self._turn = (self._turn + len(messages)) % n
        return dealt

    def _deal_by_key(
        self, messages: Sequence[T], key_of: Callable[[T], str | None]
    ) -> dict[int, Sequence[T]]:
        dealt: dict[int, list[T]] = {}
        for message in messages:
            key = key_of(message)
            if key is None:
                number = self._turn
                self._turn = (number + 1) % self._n
            else:
                number = physical_queue_of(key, self._n)
            dealt.setdefault(number, []).append(message)
        return dict(dealt)


def physical_queue_of(key: str, physical_queues: int) -> int:
    """Return the physical queue of a key: a hash that is the same in every program."""
    return crc32(key.encode(errors="surrogatepass")) % physical_queues
