from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from penstock.plugins.queue.client import error_of
from penstock.spark_bridge.errors import OptionError, QueueChangedError, QueueUnavailableError
from penstock.spark_bridge.offsets import Position, Range
from penstock.spark_bridge.options import SourceOptions
from penstock.spark_bridge.queue_reader import QueueReader
from tests.helpers.clock import Clock
from tests.spark_bridge.memory_queue import MemoryQueue

OPTIONS = SourceOptions(url="http://127.0.0.1:9", queue="telemetry", retry_seconds=10)
LIFE = MemoryQueue().incarnation
LENIENT = SourceOptions(url="http://127.0.0.1:9", queue="telemetry", fail_on_data_loss=False)


def reader(queue: MemoryQueue, options: SourceOptions = OPTIONS) -> tuple[QueueReader, Clock]:
    """Return a reader of a queue in this process, and its clock."""
    clock = Clock(0.0)
    return QueueReader(options, queue, sleep=clock.sleep, clock=clock), clock


def read(queue: MemoryQueue, wanted: Range, options: SourceOptions = OPTIONS) -> list[bytes]:
    """Return the payloads of a range in the order read."""
    batches = reader(queue, options)[0].record_batches(wanted)
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


def test_a_range_is_read_whole_and_in_order() -> None:
    """No message of a range is left out, none comes twice."""
    queue = MemoryQueue()
    payloads = [str(number).encode() for number in range(5_000)]
    queue.put(1, *payloads)
    assert read(queue, Range(1, 10, 4_990, LIFE)) == payloads[10:4_990]


def test_batches_stay_under_the_message_limit() -> None:
    """max_messages_per_request bounds an answer and a record batch."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 1_000)
    options = SourceOptions(url="http://h", queue="telemetry", max_messages_per_request=300)
    sizes = [
        batch.num_rows for batch in reader(queue, options)[0].record_batches(Range(0, 0, 999, LIFE))
    ]
    assert sizes == [100, 300, 300, 299]


def test_requests_shrink_where_messages_are_large() -> None:
    """max_bytes_per_request bounds what a worker holds, whatever the size of the messages."""
    queue = MemoryQueue()
    queue.put(0, *[b"x" * 1_000] * 300)
    options = SourceOptions(url="http://h", queue="telemetry", max_bytes_per_request=8_000)
    assert len(read(queue, Range(0, 0, 300, LIFE), options)) == 300
    assert queue.requested == [100] + [8] * 25


def test_a_message_larger_than_the_limit_still_comes() -> None:
    """The byte limit slows down, it never stops."""
    queue = MemoryQueue()
    queue.put(0, b"x" * 100, b"y" * 100)
    options = SourceOptions(
        url="http://h", queue="telemetry", max_bytes_per_request=10, max_messages_per_request=1
    )
    assert read(queue, Range(0, 0, 2, LIFE), options) == [b"x" * 100, b"y" * 100]


def test_a_server_that_restarts_is_waited_for() -> None:
    """A broker's restart does not end the query."""
    queue = MemoryQueue()
    queue.put(0, b"a")
    queue.failures = [error_of(0, "connection refused"), error_of(503, "starting")]
    assert read(queue, Range(0, 0, 1, LIFE)) == [b"a"]


def test_a_server_that_stays_away_is_named_after_retry_seconds() -> None:
    """The query fails with the address, not with a traceback of sockets."""
    queue = MemoryQueue()
    queue.failures = [error_of(0, "no answer from http://127.0.0.1:9: refused")] * 1_000
    patient, clock = reader(queue)
    with pytest.raises(QueueUnavailableError, match=r"cannot be reached: no answer from http://12"):
        patient.held()
    assert 5 < clock.now <= 10


def test_an_unknown_queue_is_not_waited_for() -> None:
    """Asking again does not help where the name is wrong."""
    options = SourceOptions(url="http://h:1", queue="telemetri")
    patient, clock = reader(MemoryQueue(), options)
    with pytest.raises(QueueUnavailableError, match="no queue 'telemetri' at http://h:1"):
        patient.held()
    assert clock.now == 0


def test_a_refusal_is_told_with_its_status() -> None:
    """What the server says reaches the user."""
    queue = MemoryQueue()
    queue.failures = [error_of(403, "not for you")]
    with pytest.raises(QueueUnavailableError, match="refuses: 403: not for you"):
        reader(queue)[0].held()


def test_messages_that_vanish_inside_a_range_fail_the_query() -> None:
    """A range that shrank is data loss, never a shorter batch."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    with pytest.raises(QueueChangedError, match="2 of the messages 10 to 11 of physical queue 0"):
        # The queue was created anew since the range was planned.
        read(queue, Range(0, 0, 12, LIFE))
    queue.earliest[0] = 4
    with pytest.raises(QueueChangedError, match=r"set fail_on_data_loss to false"):
        read(queue, Range(0, 0, 10, LIFE))


def test_a_loss_that_is_allowed_is_logged_and_the_rest_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """fail_on_data_loss=false reads on and says what is missing."""
    queue = MemoryQueue()
    queue.put(0, *[str(number).encode() for number in range(10)])
    queue.earliest[0] = 4
    with caplog.at_level(logging.WARNING):
        assert read(queue, Range(0, 0, 10, LIFE), LENIENT) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert "4 of the messages 0 to 9 of physical queue 0 are gone" in caplog.text


def test_a_range_that_is_gone_as_a_whole_is_logged_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch that was committed by someone else does not stop a lenient query for ever."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    queue.earliest[0] = 10
    with caplog.at_level(logging.WARNING):
        assert read(queue, Range(0, 0, 10, LIFE), LENIENT) == []
    assert "10 of the messages 0 to 9" in caplog.text


def test_a_position_that_lost_nothing_is_kept() -> None:
    """Reading on needs no decision then."""
    queue = MemoryQueue(physical_queues=1)
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    assert patient.resume(Position("telemetry", {0: 1}, LIFE), patient.held()).following == {0: 1}


def test_a_position_past_the_queue_fails_the_query() -> None:
    """A queue created anew is told, with what to do about it."""
    patient, _ = reader(MemoryQueue(physical_queues=1))
    with pytest.raises(QueueChangedError, match=r"created anew.*empty checkpoint directory"):
        patient.resume(Position("telemetry", {0: 1}, LIFE), patient.held())


def test_commit_deletes_below_the_position() -> None:
    """What the checkpoint holds leaves the queue."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    patient.join()
    patient.commit(Position("telemetry", {0: 1, 1: 0}, LIFE))
    assert queue.earliest == {0: 1, 1: 0}
    # An older checkpoint.
    patient.commit(Position("telemetry", {0: 2, 1: 0}))
    assert queue.earliest == {0: 2, 1: 0}


def test_commit_creates_a_group_again_that_is_gone() -> None:
    """A group that has expired is no end of the query."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    reader(queue)[0].commit(Position("telemetry", {0: 1, 1: 0}, LIFE))
    assert queue.groups == {"spark": "offsets"}
    assert queue.committed == {"spark": {0: 1, 1: 0}}


def test_commit_in_a_queue_created_again_is_told() -> None:
    """Nothing of the new queue is committed that the query has not read."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    position = Position("telemetry", {0: 1, 1: 0}, "94bb0a51")
    with pytest.raises(QueueChangedError, match="deleted and created again"):
        reader(queue)[0].commit(position)
    reader(queue, LENIENT)[0].commit(position)
    assert queue.earliest == {0: 0, 1: 0}


def test_commit_leaves_what_was_created_anew() -> None:
    """A loss that is allowed does not cause another: unread messages are not deleted."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    lenient, _ = reader(queue, LENIENT)
    lenient.join()
    lenient.commit(Position("telemetry", {0: 5, 1: 0, 7: 3}, LIFE))
    assert queue.earliest == {0: 0, 1: 0}


def test_a_query_joins_its_group_where_the_group_stands() -> None:
    """A query without checkpoint begins behind what its group has committed."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    assert patient.join() == Position("telemetry", {0: 0, 1: 0}, LIFE)
    patient.commit(Position("telemetry", {0: 1, 1: 0}, LIFE))
    assert reader(queue)[0].join() == Position("telemetry", {0: 1, 1: 0}, LIFE)


def test_a_group_that_may_not_be_created_is_told_with_what_to_write() -> None:
    """A token with the role read alone works with a group of the policy file."""
    queue = MemoryQueue()
    queue.may_create = False
    with pytest.raises(QueueUnavailableError, match=r"no group 'spark'.*spark: \{kind: offsets\}"):
        reader(queue)[0].join()


def test_a_group_of_the_other_kind_is_refused() -> None:
    """Positions cannot be committed in a lease group."""
    queue = MemoryQueue()
    queue.put_group("telemetry", "spark", {"kind": "lease"})
    with pytest.raises(OptionError, match="'spark', which is of kind lease"):
        reader(queue)[0].join()


def test_waiting_in_a_queue_created_again_returns() -> None:
    """The next look at the queue tells it."""
    queue = MemoryQueue()
    queue.put(0, b"a")
    position = Position("telemetry", {0: 0, 1: 0}, "94bb0a51")
    assert reader(queue)[0].wait_for_messages(position) == position
    here = Position("telemetry", {0: 0, 1: 0}, LIFE)
    assert reader(queue)[0].wait_for_messages(here) == Position("telemetry", {0: 1, 1: 0}, LIFE)


def test_a_range_of_a_queue_created_again_fails_the_query() -> None:
    """What has the same offsets in the new queue is never read for the old one's."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    wanted = Range(0, 0, 10, "94bb0a51")
    with pytest.raises(QueueChangedError, match="created again"):
        read(queue, wanted)
    assert read(queue, wanted, LENIENT) == []


def test_messages_that_left_for_newer_ones_of_their_key_are_no_loss() -> None:
    """A queue with keeps_last has gaps."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b", b"c")
    queue.gone = {1}
    with pytest.raises(QueueChangedError, match="1 of the messages 0 to 2"):
        read(queue, Range(0, 0, 3, LIFE))
    queue.keeps_last = True
    assert read(queue, Range(0, 0, 3, LIFE)) == [b"a", b"c"]


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """Token and certificates are looked for before anything is asked."""
    missing = str(tmp_path / "token")
    options = SourceOptions(url="http://h", queue="q", token_file=missing)
    with pytest.raises(OptionError, match=r"option 'token_file': .*No such file"):
        QueueReader(options)
    (tmp_path / "token").write_text("a\nb\n")
    with pytest.raises(OptionError, match="read 2 lines; allowed: one line"):
        QueueReader(options)
    options = SourceOptions(url="https://h", queue="q", ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(OptionError, match=r"option 'ca_file': read .*ca\.pem"):
        QueueReader(options)


def test_a_reader_travels_to_executors() -> None:
    """Spark pickles it with the function that a task runs."""
    assert pickle.loads(pickle.dumps(QueueReader(OPTIONS))).options == OPTIONS  # noqa: S301 - made in this line
