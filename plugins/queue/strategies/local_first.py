"""Local physical queues are tried before those of other machines (paper 001, 3.3.1.1).

A controller prefers the physical queues whose master is on its own machine: what it receives there
crosses no network, and controllers of other machines do not contend for it. Those of other machines
come when there is nothing on its own, and first in one round of `ROUNDS_FOR_OTHERS`, so that the
messages of a machine whose controller is gone are not left waiting by busy ones. The paper states
the preference alone; both limits of it are ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

ROUNDS_FOR_OTHERS: Final = 10
"""One of so many rounds begins with other machines. If ten machines share it, a tenth of their work
is enough to empty the physical queues of a machine that is gone."""


class LocalFirst:
    """Gives the physical queues of each round of tries.

    A local one at which the last try found nothing has no preference until one finds something: a
    controller that tries blindly would else try empty local ones alone.
    """

    def __init__(self, is_local: Callable[[int], bool]) -> None:
        self._is_local = is_local
        self._rounds = 0
        self._missed: set[int] = set()
        # The last one that was tried, of those that are preferred and of the rest. Each kind has
        # turns of its own: rounds that begin with others would else begin with the same each time.
        self._tried = {True: -1, False: -1}

    def round(self, targets: Sequence[int]) -> list[int]:
        """Return the physical queues to try, in their order: each kind in turn."""
        kinds = self.kinds(targets)
        return [number for kind in kinds for number in self._in_turn(kind)]

    def kinds(self, targets: Sequence[int]) -> tuple[list[int], list[int]]:
        """Begin a round; return what is tried first and what after that, both ascending."""
        preferred = [number for number in targets if self._is_preferred(number)]
        rest = [number for number in targets if not self._is_preferred(number)]
        self._rounds += 1
        return (preferred, rest) if self._rounds % ROUNDS_FOR_OTHERS else (rest, preferred)

    def _is_preferred(self, number: int) -> bool:
        return number not in self._missed and self._is_local(number)

    def _in_turn(self, kind: Sequence[int]) -> Sequence[int]:
        if not kind:
            return kind
        first = bisect_right(kind, self._tried[self._is_preferred(kind[0])])
        return [*kind[first:], *kind[:first]]

    def trying(self, number: int) -> None:
        """Take note that a physical queue is tried: the turn of its kind is that of the next."""
        self._tried[self._is_preferred(number)] = number

    def tried(self, number: int, found: int) -> None:
        """Take note of how many messages a try has found."""
        if found:
            self._missed.discard(number)
        else:
            self._missed.add(number)
