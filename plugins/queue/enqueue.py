"""E-Ctrl: in which physical queue a message is stored (papers 000 and 001, chapter 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class EnqueueController:
    """Distributes messages over the physical queues of one logical queue, round robin.

    Args:
        physical_queues: how many there are, at least 1; they are numbered from 0.
    """

    def __init__(self, physical_queues: int) -> None:
        self._n = physical_queues
        self._turn = 0

    def deal(self, messages: Sequence[T]) -> dict[int, Sequence[T]]:
        """Return the messages by the number of their physical queue, in order within each.

        A message's place depends on all messages before it, however they were grouped into calls.
        """
        n = self._n
        dealt = {
            (self._turn + first) % n: messages[first::n] for first in range(min(n, len(messages)))
        }
        self._turn = (self._turn + len(messages)) % n
        return dealt
