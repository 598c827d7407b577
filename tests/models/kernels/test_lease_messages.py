from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.models.kernels.lease_messages import LeasedMessages, Messages, VisibleMessages
from penstock.models.kernels.lease_setting import Order

BOTH = pytest.mark.parametrize("make", [VisibleMessages, LeasedMessages])
Make = Callable[[Order], Messages]


@BOTH
@pytest.mark.parametrize("order", ["any", "arrived"])
def test_a_message_is_invisible_until_it_comes_back(make: Make, order: Order) -> None:
    """By its deadline or by being given back, the oldest first; a deleted one never does."""
    queue = make(order)
    for message in range(3):
        queue.add(message, 0.0)
    assert [queue.take(0.0, 10.0 + n) for n in range(4)] == [0, 1, 2, -1]
    queue.give_back(1)
    assert queue.take(5.0, 20.0) == 1
    queue.settle(2)
    queue.expire(0, 10.0)
    assert queue.take(10.0, 30.0) == 0
    queue.settle(0)
    queue.settle(1)
    assert queue.take(99.0, 100.0) == -1


@BOTH
def test_a_message_that_is_visible_again_can_be_deleted(make: Make) -> None:
    """A late acknowledgement counts as long as nobody has received the message again."""
    queue = make("arrived")
    queue.add(0, 0.0)
    assert queue.take(0.0, 1.0) == 0
    queue.expire(0, 1.0)
    queue.settle(0)
    assert queue.take(2.0, 3.0) == -1


@BOTH
def test_in_a_strict_order_a_message_waits_until_the_one_before_it_is_deleted(make: Make) -> None:
    """The queue's order of keys, with one key."""
    queue = make("settled")
    queue.add(0, 0.0)
    queue.add(1, 0.0)
    assert [queue.take(0.0, 10.0), queue.take(0.0, 10.0)] == [0, -1]
    queue.add(2, 1.0)
    assert queue.take(1.0, 10.0) == -1
    queue.expire(0, 10.0)
    assert queue.take(10.0, 20.0) == 0
    queue.settle(0)
    assert queue.take(11.0, 20.0) == 1
