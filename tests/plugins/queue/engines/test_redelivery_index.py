from __future__ import annotations

from penstock.plugins.queue.engines.redelivery_index import Visible


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


def drain(visible: Visible) -> list[int]:
    """Take all candidates as one call does."""
    taken: list[int] = []
    last: dict[str, int] = {}
    while (offset := visible.candidate(last)) >= 0:
        visible.took(offset)
        taken.append(offset)
        if offset in visible.keys:
            last[visible.keys[offset]] = offset
    return taken


def test_the_oldest_is_first() -> None:
    """In whatever order they became visible; a message is a candidate once."""
    visible = Visible()
    for offset in (5, 3, 9, 3):
        visible.show(offset, 1)
    visible.forget(5)
    assert 3 in visible
    assert visible.candidates(5) == [3, 3, 5, 9]
    assert drain(visible) == [3, 9]
    assert 3 not in visible


def test_a_lane_is_taken_in_order_by_one_call() -> None:
    """Between the messages of others."""
    visible = Visible()
    assert visible.enter_lane(1, "a") == -1
    assert visible.enter_lane(3, "a") == 1
    assert visible.enter_lane(2, "b") == -1
    for offset in (3, 2, 1):
        visible.show(offset, 0)
    assert drain(visible) == [1, 2, 3]


def test_a_lane_whose_first_is_taken_waits() -> None:
    """Its next message is a candidate when the first is settled, and not before."""
    visible = Visible()
    visible.enter_lane(1, "a")
    visible.enter_lane(2, "a")
    visible.block(2, -1)
    assert visible.candidate({}) == -1
    assert visible.forget(1)
    assert drain(visible) == [2]
    assert visible.hide(2) is None


def test_a_message_returns_before_those_behind_it() -> None:
    """Though these became visible earlier."""
    visible = Visible()
    for offset in (1, 2, 3):
        visible.enter_lane(offset, "a")
    visible.show(3, 0)
    visible.show(2, 0)
    assert visible.candidate({}) == -1
    visible.show(1, 0)
    assert drain(visible) == [1, 2, 3]


def test_what_leaves_from_the_middle_of_a_lane_holds_nothing_up() -> None:
    """A late acknowledgement, or retention."""
    visible = Visible()
    for offset in (1, 2, 3):
        visible.enter_lane(offset, "a")
        visible.block(offset, 0)
    assert not visible.forget(2)
    assert visible.forget(1)
    assert drain(visible) == [3]
    assert visible.forget(3)
    assert not visible.forget(3)
    assert visible.keys == {}


def test_a_long_lane_costs_each_message_the_same() -> None:
    """Not as much as there are messages before it."""
    visible = Visible()
    n = 2_000
    for offset in range(n):
        visible.enter_lane(Counted(offset), "a")
        visible.show(Counted(offset), 0)
    Counted.comparisons = 0
    assert drain(visible) == list(range(n))
    assert Counted.comparisons < 50 * n


def test_a_message_enters_its_lane_at_its_place() -> None:
    """Also one that could not become a dead letter, and comes back behind later ones."""
    visible = Visible()
    assert [visible.enter_lane(offset, "a") for offset in (5, 9, 7, 3)] == [-1, 5, 5, -1]
    for offset in (9, 5, 7, 3):
        visible.show(offset, 0)
    assert visible.forget(3)
    assert drain(visible) == [5, 7, 9]


def test_a_message_in_the_middle_of_a_lane_leaves_it() -> None:
    """The others keep their order, however many have left before."""
    visible = Visible()
    for offset in range(200):
        visible.enter_lane(offset, "a")
        visible.show(offset, 0)
    assert not visible.forget(150)
    assert all(visible.forget(offset) for offset in range(140))
    assert not visible.forget(160)
    assert drain(visible) == [*range(140, 150), *range(151, 160), *range(161, 200)]
