from __future__ import annotations

from collections import deque

import pytest

from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.large_messages import LargeMessages


def held(*names: str) -> tuple[LargeMessages, dict[str, Delivery]]:
    """Return what holds messages that are named by topic and number, such as ``a1``."""
    made = LargeMessages()
    by_name: dict[str, Delivery] = {}
    for number, name in enumerate(names):
        one = by_name[name] = Delivery(Message(name[0], b"", is_large=True), 1)
        one.sequence = number
        one.is_waiting = True
        made.await_mark(one)
        chain = made.chains.get(name[0])
        if chain is None:
            made.put_first(one, deque((one,)))
        else:
            chain.append(one)
    made.check_invariants()
    return made, by_name


def names(found: dict[str, Delivery], deliveries: object) -> list[str]:
    """Return the names of deliveries."""
    return [name for each in list(deliveries) for name in found if found[name] is each]  # type: ignore[call-overload]


def test_all_that_waits_comes_in_order_of_arrival() -> None:
    """Across topics, and the oldest of each topic are the firsts."""
    made, found = held("a1", "b1", "a2", "c1", "b2")
    assert names(found, made.waiting()) == ["a1", "b1", "a2", "c1", "b2"]
    assert names(found, made.firsts) == ["a1", "b1", "c1"]


def test_every_sojourn_begins_with_the_first_refusal_there_is() -> None:
    """Those that come later begin theirs at the next, and nobody's begins twice."""
    made, found = held("a1", "b1", "a2")
    assert made.mark(found["a1"], 5.0) == [found["b1"].message, found["a2"].message]
    late = Delivery(Message("c", b"", is_large=True), 1)
    late.is_waiting = True
    made.await_mark(late)
    assert made.mark(found["a1"], 7.0) == [late.message]
    assert [found[name].withheld_since for name in found] == [5.0] * 3
    assert late.withheld_since == 7.0


def test_one_that_became_large_later_has_a_sojourn_as_well() -> None:
    """Its subscriber has come by a listener with another threshold_s: nobody had noted it."""
    made, found = held("a1")
    made.mark(found["a1"], 1.0)
    found["a1"].withheld_since = None
    assert made.mark(found["a1"], 2.0) == []
    assert found["a1"].withheld_since == 2.0


def test_absence_is_no_sojourn() -> None:
    """ΔS is the time for which the gate has held it, not that in which nobody was there."""
    made, found = held("a1", "b1")
    made.mark(found["a1"], 10.0)
    made.away_since = 12.0
    made.count_absence(100.0)
    assert [found[name].withheld_since for name in found] == [98.0, 98.0]
    made.count_absence(200.0)
    assert found["a1"].withheld_since == 98.0


def test_released_leaves_what_was_behind_it_to_be_placed() -> None:
    """And no reference to it: its payload would stay as long as the subscriber."""
    made, found = held("a1", "a2", "b1")
    found["a1"].is_waiting = False
    assert names(found, made.release(found["a1"])) == ["a2"]
    assert names(found, made.firsts) == ["b1"]
    assert made.mark(found["b1"], 1.0) == [found["a2"].message]
    assert found["a1"].withheld_since is None


@pytest.mark.parametrize(
    ("wanted", "n_messages", "taken", "rest", "left"),
    [
        ("a1 b2", 9, ["a1", "b2"], [["a2"]], ["b1"]),
        ("a2 b2", 1, ["a2"], [], ["a1", "b1", "b2"]),
        ("a1 a2 b1 b2", 3, ["a1", "b1", "a2"], [[], ["b2"]], []),
        ("", 9, [], [], ["a1", "b1", "a2", "b2"]),
    ],
)
def test_some_are_taken_from_anywhere_the_oldest_first(
    wanted: str, n_messages: int, taken: list[str], rest: list[list[str]], left: list[str]
) -> None:
    """A chain whose first is gone is handed back; others are as they were without those taken."""
    made, found = held("a1", "b1", "a2", "b2")
    gone, rests = made.take_where(
        lambda d: d in [found[name] for name in wanted.split()], n_messages
    )
    assert names(found, gone) == taken
    assert [names(found, chain) for chain in rests] == rest
    assert names(found, made.waiting()) == left
    made.check_invariants()
    found["b2"].withheld_since = 0.0  # taken or not, it stands for the one that was refused
    assert len(made.mark(found["b2"], 1.0)) == len({*found} - {*taken, "b2"})


def test_what_is_taken_out_again_and_again_costs_what_is_looked_at() -> None:
    """Thousands behind one large message are moved in slices, and not sorted for each slice."""
    made, found = held(*(f"a{n}" for n in range(2_000)))
    looked_at = 0

    def is_wanted(delivery: Delivery) -> bool:
        nonlocal looked_at
        looked_at += 1
        return delivery is not found["a0"]

    for _ in range(100):
        taken, _ = made.take_where(is_wanted, 10)
        assert len(taken) == 10
    assert looked_at <= 100 * 11 + 100
