from __future__ import annotations

from penstock.plugins.queue.engines.redelivery_index import RedeliveryIndex


class Counted(int):
    """An offset that counts how often one is compared.

    Attributes:
        comparisons: of all offsets.
    """

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) > int(other)


def drain(visible: RedeliveryIndex) -> list[int]:
    """Take all candidates as one call does."""
    taken: list[int] = []
    last: dict[str, int] = {}
    while (offset := visible.candidate(last)) >= 0:
        visible.took(offset)
        taken.append(offset)
        if offset in visible.keys:
            last[visible.keys[offset]] = offset
    return taken


def test_a_long_lane_costs_each_message_the_same() -> None:
    """Not as much as there are messages before it."""
    visible = RedeliveryIndex()
    n = 2_000
    for offset in range(n):
        visible.enter_lane(Counted(offset), "a")
        visible.show(Counted(offset), 0)
    Counted.comparisons = 0
    assert drain(visible) == list(range(n))
    assert Counted.comparisons < 50 * n
