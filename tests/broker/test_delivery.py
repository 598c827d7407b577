from __future__ import annotations

import pytest

from broker.delivery import NO_QUEUE, Delivery, by_sequence
from broker.message import Message


def test_a_message_expires_at_its_time() -> None:
    """[MQTT-3.3.2-5]: from the second on that its interval ends; without one never."""
    lasting, short = Delivery(Message("t", b""), 1), Delivery(Message("t", b"", expires_at=5.0), 1)
    assert [short.is_expired(4.9), short.is_expired(5.0)] == [False, True]
    assert not lasting.is_expired(1e9)


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
