from __future__ import annotations

from penstock.plugins.queue.physical_queue import PhysicalQueue, ReadMessage


def read_message(offset: int, payload: bytes = b"x") -> ReadMessage:
    """Return a message as read ahead."""
    return ReadMessage(offset, "t", payload, 0, "", 0.0, "", 0, 100)


def test_reads_ahead_only_while_it_has_less_than_asked_for() -> None:
    """A page is read when the messages at hand do not suffice and more are stored."""
    queue = PhysicalQueue(0, 30.0)
    assert queue.must_read(1, 3)
    queue.feed([read_message(0), read_message(1)], 2)
    assert not queue.must_read(2, 3)
    assert queue.must_read(3, 3)
    queue.feed([read_message(2)], 3)
    assert not queue.must_read(100, 3)


def test_messages_are_taken_once_in_order() -> None:
    """Each message is given to one receiver, the oldest first."""
    queue = PhysicalQueue(0, 30.0)
    queue.feed(map(read_message, range(3)), 3)
    assert [message.offset for message in queue.take_ready(2, 100)] == [0, 1]
    assert [message.offset for message in queue.take_ready(2, 100)] == [2]
    assert queue.take_ready(2, 100) == []


def test_answer_holds_one_message_however_long_and_then_no_more_than_fits() -> None:
    """max_bytes bounds an answer, and a message that is longer still comes out, alone."""
    queue = PhysicalQueue(0, 30.0)
    queue.feed([read_message(0, bytes(50)), *(read_message(n, bytes(4)) for n in (1, 2, 3))], 4)
    assert [message.offset for message in queue.take_ready(9, 10)] == [0]
    assert [message.offset for message in queue.take_ready(9, 10)] == [1, 2]
    assert queue.take_ready(9, 0) == []


def test_what_left_the_queue_is_not_given_out() -> None:
    """Below the earliest offset nothing is ready, leased, or fed by a read under way."""
    queue = PhysicalQueue(0, 30.0)
    queue.feed(map(read_message, range(4)), 4)
    queue.lease(queue.take_ready(1, 100)[0], 1, 0.0)
    queue.drop_below(6)
    assert len(queue.leases) == 0
    queue.feed(map(read_message, range(4, 8)), 8)
    assert [message.offset for message in queue.take_ready(9, 100)] == [6, 7]
    assert queue.cursor == 8
    queue.drop_below(12)
    queue.feed(map(read_message, range(8, 10)), 10)
    assert queue.take_ready(9, 100) == []
    assert queue.cursor == 12
