from __future__ import annotations

from collections import deque

import pytest

from penstock.broker.message import Message
from penstock.broker.outbox.delivery import NO_QUEUE, Delivery, by_sequence, take_ready


def test_deliveries_are_sorted_by_their_arrival() -> None:
    """The number that their outbox gave them, whatever their messages are."""
    first, second = Delivery(Message("z", b""), 0), Delivery(Message("a", b""), 2)
    first.sequence, second.sequence = 1, 2
    assert sorted([second, first], key=by_sequence) == [first, second]


@pytest.mark.parametrize("put", ["append", "appendleft", "extend", "extendleft"])
def test_the_queue_of_those_who_have_none_takes_nothing(put: str) -> None:
    """It is shared by all clients: what went into it would be lost, and in silence."""
    with pytest.raises(RuntimeError, match="takes nothing"):
        getattr(NO_QUEUE, put)(["lost"])
    assert not NO_QUEUE


def ready(*names: str, qos: int = 1, first_sequence: int = 1) -> deque[Delivery]:
    """Return a ready place with messages of these names."""
    made = deque(Delivery(Message(name, b""), qos) for name in names)
    for sequence, delivery in enumerate(made, first_sequence):
        delivery.sequence = sequence
    return made


def names(deliveries: object) -> list[str]:
    """Return the topics of deliveries."""
    return [delivery.message.topic for delivery in deliveries]  # type: ignore[attr-defined]


def test_what_is_taken_is_told_with_what_stands_before_it() -> None:
    """A large message that waits for one of these waits for that instead."""
    place = ready("a", "b", "c", "b", "d")
    a, first_b, c, second_b, _ = place
    taken = take_ready(place, lambda delivery: delivery.message.topic == "b", 9)
    assert taken == {first_b: a, second_b: c}
    assert names(place) == ["a", "c", "d"]
    assert take_ready(place, lambda delivery: delivery is a, 9) == {a: None}


def test_no_more_are_taken_than_asked_for() -> None:
    """The oldest go; the others stay where they are."""
    place = ready("b", "a", "b")
    assert names(take_ready(place, lambda delivery: delivery.message.topic == "b", 1)) == ["b"]
    assert names(place) == ["a", "b"]
