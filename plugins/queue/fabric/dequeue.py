"""D-Ctrl of the fabric: in which order physical queues are tried (paper 001, 3.3.1.1).

A controller prefers the physical queues whose master is on its own machine: what it receives there
crosses no network, and controllers of other machines do not contend for it. Those of other machines
come when there is nothing on its own, and first in one round of `ROUNDS_FOR_OTHERS`, so that the
messages of a machine whose controller is gone are not left waiting by busy ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

ROUNDS_FOR_OTHERS: Final = 10
"""Rounds of which one begins with other machines: a tenth of what a busy machine can do is enough
to empty those of a machine that is gone, where ten share it."""


class LocalFirst(Generic[T]):
    """Gives the physical queues of each round of tries.

    Args:
        is_local: says whether the master of a physical queue is on this machine at present.
    """

    def __init__(self, is_local: Callable[[T], bool]) -> None:
        self._is_local = is_local
        self._rounds = 0
        self._rounds_for_others = 0

    def round(self, targets: Sequence[T], away: Collection[T] = ()) -> list[T]:
        """Return the physical queues to try, in their order.

        Local ones come first, in turn; then those of other machines, in turn; then those that are
        away, which a caller may leave out as long as the others have messages.

        Args:
            targets: that may have messages, always in the same order.
            away: whose master does not answer.
        """
        if not targets:
            return []
        is_for_others = self._rounds % ROUNDS_FOR_OTHERS == ROUNDS_FOR_OTHERS - 1
        # Each kind of round has turns of its own, so that no target is passed over in all of one.
        turn = self._rounds_for_others if is_for_others else self._rounds - self._rounds_for_others
        self._rounds += 1
        self._rounds_for_others += is_for_others
        first = turn % len(targets)
        in_turn = [*targets[first:], *targets[:first]]

        def rank(target: T) -> int:
            if target in away:
                return 2
            return int(self._is_local(target) is is_for_others)

        return sorted(in_turn, key=rank)
