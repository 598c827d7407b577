"""The enqueue controller: in which physical queue a message is stored (papers 000 and 001)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from zlib import crc32

from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion

T = TypeVar("T")


class EnqueueController(Generic[T]):
    """Distributes messages over the physical queues of one logical queue.

    Round robin, or by key: the messages of a key are in one physical queue, the same after a
    restart, and those without a key go round robin. Slow physical queues may be left out of it
    (paper 001, chapter 3); messages of a key never go elsewhere.

    Args:
        physical_queues: how many there are, at least 1; they are numbered from 0.
        key_of: returns the key of a message, None for none; None for a queue without keys.
        exclusion: knows which of them are slow; None to leave none out.
    """

    def __init__(
        self,
        physical_queues: int,
        key_of: Callable[[T], str | None] | None = None,
        exclusion: SlowdownExclusion[int] | None = None,
    ) -> None:
        self._n = physical_queues
        self._all = range(physical_queues)
        self._key_of = key_of
        self._exclusion = exclusion
        self._turn = 0

    def deal(self, messages: Sequence[T], now: float = 0.0) -> dict[int, Sequence[T]]:
        """Return the messages by the number of their physical queue, in order within each.

        While none is left out, a message's place depends on all messages before it, however they
        were grouped into calls. Of one call, one message at most is the trial of a slow one.
        """
        usable, trial = (
            (self._all, None) if self._exclusion is None else self._exclusion.usable(now)
        )
        if self._key_of is not None:
            return self._deal_by_key(messages, self._key_of, usable, trial)
        dealt: dict[int, Sequence[T]] = {}
        if trial is not None and trial not in usable and messages:
            dealt[trial], messages = messages[:1], messages[1:]
        n, turn = len(usable), self._turn % len(usable)
        for first in range(min(n, len(messages))):
            dealt[usable[(turn + first) % n]] = messages[first::n]
        self._turn = (turn + len(messages)) % n
        return dealt

    def _deal_by_key(
        self,
        messages: Sequence[T],
        key_of: Callable[[T], str | None],
        usable: Sequence[int],
        trial: int | None,
    ) -> dict[int, Sequence[T]]:
        dealt: dict[int, list[T]] = {}
        for message in messages:
            key = key_of(message)
            if key is not None:
                number = physical_queue_of(key, self._n)
            elif trial is not None:
                number, trial = trial, None
            else:
                turn = self._turn % len(usable)
                number = usable[turn]
                self._turn = (turn + 1) % len(usable)
            dealt.setdefault(number, []).append(message)
        return dict(dealt)


def physical_queue_of(key: str, physical_queues: int) -> int:
    """Return the physical queue of a key: a hash that is the same in every program."""
    return crc32(key.encode(errors="surrogatepass")) % physical_queues
