from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.queue.client import OutgoingMessage, QueueClient, error_of
from penstock.plugins.queue.client import Position as QueuePlace
from penstock.spark_bridge.errors import (
    GroupTakenError,
    OptionError,
    QueueChangedError,
    QueueUnavailableError,
)
from penstock.spark_bridge.offsets import Position, QueuePosition, Range
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.queue_reader import QueueReader
from tests.helpers.certificates import Authority
from tests.helpers.clock import Clock
from tests.helpers.effort import examples
from tests.helpers.gateway import gateway_of, held, running_gateway
from tests.spark_bridge.memory_queue import ANSWER_MESSAGES, MemoryQueue

URL = "http://127.0.0.1:9"
OPTIONS = SourceOptions(url=URL, queues=("telemetry",), retry_seconds=10)
LIFE = MemoryQueue().incarnation
LENIENT = SourceOptions(url=URL, queues=("telemetry",), fail_on_data_loss=False)


def at(incarnation: str = LIFE, **following: int) -> Position:
    """Return a position in the queue; ``at(q0=5)`` stands at offset 5 of physical queue 0."""
    offsets = {int(name[1:]): offset for name, offset in following.items()}
    return Position({"telemetry": QueuePosition(offsets, incarnation)})


def reader(queue: MemoryQueue, options: SourceOptions = OPTIONS) -> tuple[QueueReader, Clock]:
    """Return a reader of a queue in this process, and its clock."""
    clock = Clock(0.0)
    return QueueReader(options, queue, sleep=clock.sleep, clock=clock), clock


def part(start: int, end: int, physical_queue: int = 0, incarnation: str = LIFE) -> Range:
    """Return a range of the queue."""
    return Range("telemetry", physical_queue, start, end, incarnation)


def read(queue: MemoryQueue, wanted: Range, options: SourceOptions = OPTIONS) -> list[bytes]:
    """Return the payloads of a range in the order read."""
    batches = reader(queue, options)[0].read(wanted)
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


# -- read --------------------------------------------------------------------------------------


def test_a_range_is_read_whole_and_in_order() -> None:
    """No message of a range is left out, none comes twice; each answer is a record batch."""
    queue = MemoryQueue()
    payloads = [str(number).encode() for number in range(5_000)]
    queue.put(1, *payloads)
    assert read(queue, part(10, 4_990, 1)) == payloads[10:4_990]
    assert queue.requests == ["read"] * 5
    (first, *_) = reader(queue)[0].read(part(10, 4_990, 1))
    assert first.num_rows == ANSWER_MESSAGES


def test_a_server_that_restarts_is_waited_for() -> None:
    """A broker's restart does not end the query."""
    queue = MemoryQueue()
    queue.put(0, b"a")
    queue.failures = [error_of(0, "connection refused"), error_of(503, "starting")]
    assert read(queue, part(0, 1)) == [b"a"]


def test_a_server_that_stays_away_is_named_after_its_patience() -> None:
    """The query fails with the address, not with a traceback of sockets."""
    queue = MemoryQueue()
    queue.failures = [error_of(0, "no answer from http://127.0.0.1:9: refused")] * 1_000
    patient, clock = reader(queue)
    with pytest.raises(QueueUnavailableError, match=r"cannot be reached: no answer from http://12"):
        patient.located("earliest")
    assert 5 < clock.now <= 10


def test_a_certificate_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    """Nor is a server waited for that speaks no TLS."""
    own, other = Authority(tmp_path, "own"), Authority(tmp_path, "other")
    certificate, key = own.issue()
    queue = {"path": str(tmp_path / "q.db"), "http": "127.0.0.1:0", "queues": {"telemetry": {}}}
    policy = tmp_path / "policy.yaml"
    for more, told in (
        ({"http_tls": {"certificate": certificate, "key": key}}, "certificate verify failed"),
        ({}, r"(?i)wrong.version.number|record.layer.failure"),
    ):
        policy.write_text(yaml.safe_dump({"plugins": {"queue": queue | more}}))
        with gateway_of(policy) as client:
            url = client.url.replace("http://", "https://")
            clock = Clock(0.0)
            options = replace(OPTIONS, url=url, ca_file=other.cafile)
            patient = QueueReader(options, sleep=clock.sleep, clock=clock)
            with pytest.raises(QueueUnavailableError, match=told):
                patient.join()
            assert clock() == 0


def test_an_unknown_queue_is_not_waited_for() -> None:
    """Asking again does not help where the name is wrong."""
    options = SourceOptions(url="http://h:1", queues=("telemetri",))
    patient, clock = reader(MemoryQueue(), options)
    with pytest.raises(QueueUnavailableError, match="no queue 'telemetri' at http://h:1"):
        patient.located("earliest")
    assert clock.now == 0


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_told_at_once(status: int) -> None:
    """What the server says reaches the user; asking again does not help."""
    queue = MemoryQueue()
    queue.failures = [error_of(status, "Authorization: read another token")]
    patient, clock = reader(queue)
    told = f"'telemetry' at {URL} refuses: {status}: Authorization: read another token"
    with pytest.raises(QueueUnavailableError, match=told):
        patient.plan(at(q0=0, q1=0))
    assert clock.now == 0


def test_messages_that_vanish_inside_a_range_fail_the_query() -> None:
    """A range that shrank is data loss, never a shorter batch."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    queue.gone = {3, 4}
    with pytest.raises(QueueChangedError, match="2 of the messages 0 to 9 of physical queue 0"):
        read(queue, part(0, 10))
    with pytest.raises(QueueChangedError, match="offset of physical queue 0: read 12"):
        read(queue, part(5, 12))  # the queue is shorter than when the range was planned
    queue.earliest[0] = 5
    with pytest.raises(QueueChangedError, match=r"set failOnDataLoss to false"):
        read(queue, part(0, 10))


def test_a_loss_that_is_allowed_is_logged_and_the_rest_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """failOnDataLoss=false reads on and says what is missing."""
    queue = MemoryQueue()
    queue.put(0, *[str(number).encode() for number in range(10)])
    queue.earliest[0] = 4
    with caplog.at_level(logging.WARNING):
        assert read(queue, part(0, 10), LENIENT) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert "4 of the messages 0 to 9 of physical queue 0 are gone" in caplog.text


def test_a_range_that_is_gone_as_a_whole_is_logged_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch that was committed by someone else does not stop a lenient query."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    queue.earliest[0] = 10
    with caplog.at_level(logging.WARNING):
        assert read(queue, part(0, 10), LENIENT) == []
    assert "10 of the messages 0 to 9" in caplog.text


def test_a_range_of_a_queue_created_again_fails_the_query() -> None:
    """What has the same offsets in the new queue is never read for the old one's."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 10)
    wanted = part(0, 10, incarnation="94bb0a51")
    with pytest.raises(QueueChangedError, match="created again"):
        read(queue, wanted)
    assert read(queue, wanted, LENIENT) == []


def test_messages_that_left_for_newer_ones_of_their_key_are_no_loss() -> None:
    """A queue with keeps_last has gaps."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b", b"c")
    queue.gone = {1}
    with pytest.raises(QueueChangedError, match="1 of the messages 0 to 2"):
        read(queue, part(0, 3))
    queue.keeps_last = True
    assert read(queue, part(0, 3)) == [b"a", b"c"]


def test_messages_that_match_no_topic_filter_are_no_loss() -> None:
    """Nor does the reader stop at an answer without any."""
    queue = MemoryQueue()
    queue.put(0, *[b"x"] * 3 * ANSWER_MESSAGES)
    options = SourceOptions(url=URL, queues=("telemetry",), topic_filters=("alarms/#",))
    assert read(queue, part(0, 3 * ANSWER_MESSAGES), options) == []
    assert queue.requests == ["read"] * 3


# -- plan --------------------------------------------------------------------------------------


def test_a_plan_is_one_request() -> None:
    """An idle query asks once for each wait of the server."""
    queue = MemoryQueue()
    queue.put(0, b"a")
    plan = reader(queue)[0].plan(at(q0=0, q1=0), wait_seconds=1)
    assert plan.end == plan.latest == at(q0=1, q1=0)
    assert queue.requests == ["plan"]


@pytest.mark.parametrize(
    ("start", "earliest", "told"),
    [
        (at(q0=3, q1=0), 0, "ends at offset 2, the checkpoint stands at 3"),
        (at(q0=0, q1=0), 1, "offsets 0 to 0 of physical queue 0 left the queue"),
        (at(q0=0, q1=0, q5=0), 0, "physical queue 5 is gone"),
        (at("94bb0a51", q0=0, q1=0), 0, "deleted and created again"),
    ],
)
def test_a_plan_from_a_place_that_the_queue_lost_fails_the_query(
    start: Position, earliest: int, told: str
) -> None:
    """Each kind of loss by its name, with what to do; or it is logged, and the rest planned."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    queue.earliest[0] = earliest
    with pytest.raises(QueueChangedError, match=rf"queue 'telemetry': .*{told}.*empty checkpoint"):
        reader(queue)[0].plan(start)
    assert reader(queue, LENIENT)[0].plan(start).end == at(q0=2, q1=0)


def test_a_refusal_of_a_plan_is_told() -> None:
    """Where no position explains it."""
    queue = MemoryQueue()
    queue.failures = [error_of(400, "wait_seconds: read 99; allowed: 0 to 60 seconds")]
    with pytest.raises(QueueUnavailableError, match="refuses: 400: wait_seconds: read 99"):
        reader(queue)[0].plan(at(q0=0, q1=0), wait_seconds=99)


def test_ranges_ask_nothing_where_the_positions_say_all() -> None:
    """Nor do they depend on anything but the positions."""
    queue = MemoryQueue()
    assert reader(queue)[0].ranges(at(q0=1, q1=2), at(q0=4, q1=2)) == [part(1, 4)]
    assert queue.requests == []


def test_ranges_begin_at_the_first_message_of_what_was_added() -> None:
    """A physical queue, or a queue that was created again where that is allowed."""
    queue = MemoryQueue(physical_queues=3)
    for number in range(3):
        queue.put(number, *[b"x"] * 10)
    queue.earliest[2] = 4
    assert reader(queue)[0].ranges(at(q0=1, q1=2), at(q0=1, q1=2, q2=8)) == [part(4, 8, 2)]
    lenient, _ = reader(queue, LENIENT)
    assert lenient.ranges(at("94bb0a51", q0=9), at(q0=3)) == [part(0, 3)]
    assert lenient.ranges(at(q0=1), at("94bb0a51", q0=9)) == []


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), limit=st.none() | st.integers(1, 7))
def test_every_message_is_read_once_whatever_crashes(
    data: st.DataObject, limit: int | None
) -> None:
    """Exactly once: batches that are repeated after a crash are the same, and miss nothing."""
    queue = MemoryQueue()
    start = reader(queue)[0].join()
    found: list[tuple[int, bytes]] = []
    stored = 0
    for step in range(data.draw(st.integers(1, 8))):
        if step == 3:
            queue.payloads[2], queue.earliest[2] = [], 0
        for number in queue.payloads:
            for _ in range(data.draw(st.integers(0, 5))):
                queue.put(number, str(stored).encode())
                stored += 1
        end = reader(queue)[0].plan(start, max_messages=limit).end
        ranges = reader(queue)[0].ranges(start, end)
        if data.draw(st.booleans()):  # killed, and begun again when more has come
            queue.put(0, str(stored).encode())
            stored += 1
            assert reader(queue)[0].ranges(start, end) == ranges
        for one in ranges:
            found += [(one.physical_queue, payload) for payload in read(queue, one)]
        if data.draw(st.booleans()):
            reader(queue)[0].commit(end)
        start = end
    end = reader(queue)[0].plan(start).end
    for one in reader(queue)[0].ranges(start, end):
        found += [(one.physical_queue, payload) for payload in read(queue, one)]
    assert sorted(int(payload) for _, payload in found) == list(range(stored))


# -- commit and groups ------------------------------------------------------------------------


def test_commit_deletes_below_the_position() -> None:
    """What the checkpoint holds leaves the queue, with one request; settings are asked for once."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    patient.join()
    queue.requests.clear()
    for _ in range(2):
        patient.commit(at(q0=1, q1=0))
    assert queue.earliest == {0: 1, 1: 0}
    assert queue.requests == ["queue", "commit", "commit"]


@pytest.mark.parametrize(("retention", "most", "left"), [(60, None, 0), (60, 10, 1), (None, 10, 1)])
def test_reading_deletes_nothing_that_a_retention_keeps(
    retention: float | None, most: int | None, left: int
) -> None:
    """But where publishers would be refused for it."""
    queue = MemoryQueue()
    queue.retention_seconds, queue.max_bytes = retention, most
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    patient.join()
    patient.commit(at(q0=1, q1=0))
    assert queue.earliest == {0: left, 1: 0}


def test_a_group_of_another_query_is_refused_with_what_to_write() -> None:
    """When it is joined, when it is claimed and when it is committed; nothing leaves the queue."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    mine, _ = reader(queue)
    other, _ = reader(queue)
    start = mine.join().named("mine")
    mine.check_group("mine")
    mine.claim(start)
    other.join()
    told = r"'group': read 'spark', .* \(begun as mine\); allowed: .*option\('group', NAME\)"
    attempts: list[Callable[[], None]] = [
        lambda: other.check_group("other"),
        lambda: other.claim(start.named("other")),
        lambda: other.commit(at(q0=2, q1=0)),
    ]
    for attempt in attempts:
        with pytest.raises(GroupTakenError, match=told):
            attempt()
    assert queue.earliest == {0: 0, 1: 0}
    mine.commit(start.named("mine"))


def test_commit_creates_a_group_again_that_is_gone() -> None:
    """A group that has expired is no end of the query."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    reader(queue)[0].commit(at(q0=1, q1=0))
    assert queue.groups == {"spark": "offsets"}
    assert queue.committed == {"spark": {0: 1, 1: 0}}


def test_commit_in_a_queue_created_again_is_told() -> None:
    """Nothing of the new queue is committed that the query has not read."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    position = at("94bb0a51", q0=1, q1=0)
    with pytest.raises(QueueChangedError, match="created again"):
        reader(queue)[0].commit(position)
    reader(queue, LENIENT)[0].commit(position)
    assert queue.earliest == {0: 0, 1: 0}


def test_commit_leaves_what_the_position_does_not_know() -> None:
    """Unread messages are not deleted; the next plan tells the loss."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    lenient, _ = reader(queue, LENIENT)
    lenient.join()
    lenient.commit(at(q0=5, q1=0, q7=3))
    assert queue.earliest == {0: 0, 1: 0}


def test_a_query_joins_its_group_where_the_group_stands() -> None:
    """A query without checkpoint begins behind what its group has committed."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b")
    patient, _ = reader(queue)
    assert patient.join() == at(q0=0, q1=0)
    patient.commit(at(q0=1, q1=0))
    assert reader(queue)[0].join() == at(q0=1, q1=0)


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


# -- places -----------------------------------------------------------------------------------


def test_a_place_of_offsets_is_checked_against_the_queue() -> None:
    """The place has an offset of each physical queue, which the queue holds."""
    queue = MemoryQueue()
    queue.put(0, b"a", b"b", b"c")
    queue.put(1, b"d")
    queue.earliest[0] = 1
    patient, _ = reader(queue)
    assert patient.located({"telemetry": {0: -2, 1: -1}}) == at(q0=1, q1=1)
    assert patient.located({"telemetry": {0: 2, 1: 0}}) == at(q0=2, q1=0)
    for offsets, told in (
        ({0: 0, 1: 0}, "read offset 0 of physical queue 0; allowed: 1 to 3"),
        ({0: 4, 1: 0}, "read offset 4 of physical queue 0; allowed: 1 to 3"),
        ({0: 1}, "read offsets of physical queues 0; allowed: of 0, 1"),
    ):
        with pytest.raises(OptionError, match=told):
            patient.located({"telemetry": offsets})


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """Token and certificates are looked for before anything is asked."""
    missing = str(tmp_path / "token")
    options = SourceOptions(url="http://h", queues=("q",), token_file=missing)
    with pytest.raises(OptionError, match=r"option 'tokenFile': .*No such file"):
        QueueReader(options)
    (tmp_path / "token").write_text("a\nb\n")
    with pytest.raises(OptionError, match="read 2 lines; allowed: one line"):
        QueueReader(options)
    options = SourceOptions(url="https://h", queues=("q",), ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(OptionError, match=r"option 'caFile': read .*ca\.pem"):
        QueueReader(options)


def test_a_reader_travels_to_executors() -> None:
    """Spark pickles it with the function that a task runs."""
    assert pickle.loads(pickle.dumps(QueueReader(OPTIONS))).options == OPTIONS  # noqa: S301 - made in this line


def test_an_executor_reads_the_token_on_its_own_machine(tmp_path: Path) -> None:
    """What travels names the file alone, so a token that was replaced is that of the next task."""
    file = tmp_path / "token"
    file.write_text("old-secret\n")
    sent = pickle.dumps(QueueReader(replace(OPTIONS, token_file=str(file))))
    assert b"old-secret" not in sent
    file.unlink()
    with pytest.raises(OptionError, match=r"option 'tokenFile': .*No such file"):
        pickle.loads(sent)  # noqa: S301 - made above


# -- with a gateway ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueClient]:
    """Return a client of a gateway whose queues each test makes for itself."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as client:
        yield client


def of_gateway(client: QueueClient, queues: str, **options: str) -> QueueReader:
    """Return a reader of queues of a gateway."""
    given = {"url": client.url, "queue": queues, "retrySeconds": "0"}
    return QueueReader(read_options(given | options))


def test_several_queues_are_read_by_one_query(served: QueueClient) -> None:
    """Their messages share a limit; a row says which queue it is of."""
    for name, count in (("a", 20), ("b", 10)):
        served.put_queue(name, {"physical_queues": 2, "groups": {"spark": {"kind": "offsets"}}})
        served.enqueue(name, [("t", f"{name}{n}".encode()) for n in range(count)])
    queues = of_gateway(served, "a,b", columns="queue,payload")
    start = queues.join()
    end = queues.plan(start, max_messages=6).end
    ranges = queues.ranges(start, end)
    sizes = {name: sum(r.end - r.start for r in ranges if r.queue == name) for name in "ab"}
    assert sizes == {"a": 4, "b": 2}
    rest = queues.plan(end).end
    found = [
        (row["queue"], row["payload"])
        for one in (*ranges, *queues.ranges(end, rest))
        for batch in queues.read(one)
        for row in batch.to_pylist()
    ]
    expected = [
        (name, f"{name}{n}".encode())
        for name, count in (("a", 20), ("b", 10))
        for n in range(count)
    ]
    assert sorted(found) == sorted(expected)
    queues.commit(rest)
    assert held(served, "a") == held(served, "b") == 0


def test_columns_and_filters_are_the_servers_work(served: QueueClient) -> None:
    """Properties become columns; what matches no filter does not come."""
    served.put_queue("typed", {"physical_queues": 1, "key": "topic"})
    properties = {"content_type": "text/plain", "user_property": [["site", "north"]]}
    served.enqueue(
        "typed", [OutgoingMessage("a/1", b"x" * 20, properties), OutgoingMessage("b/1", b"y")]
    )
    columns = "key,size_class,content_type,user_properties"
    queues = of_gateway(served, "typed", columns=columns, topicFilter="a/+", largeAboveBytes="19")
    (one,) = queues.ranges(queues.located("earliest"), queues.located("latest"))
    (batch,) = queues.read(one, queues.read_settings("typed"))
    assert batch.to_pylist() == [
        {
            "key": "a/1",
            "size_class": "large",
            "content_type": "text/plain",
            "user_properties": [("site", ["north"])],
        }
    ]


def test_what_is_wrong_is_named(served: QueueClient) -> None:
    """A queue that is not there, an offset, and a checkpoint of a queue that was deleted."""
    with pytest.raises(QueueUnavailableError, match=r"no queue 'alarms' at .*allowed: .*telemetry"):
        of_gateway(served, "alarms").join()
    served.put_queue("again", {"groups": {"spark": {"kind": "offsets"}}})
    start = of_gateway(served, "again").join()
    served.delete_queue("again")
    served.put_queue("again", {"groups": {"spark": {"kind": "offsets"}}})
    with pytest.raises(QueueChangedError, match="queue 'again': the queue was deleted and created"):
        of_gateway(served, "again").plan(start)
    served.enqueue("again", [("t", b"x")] * 8)
    start = of_gateway(served, "again").join()
    end = of_gateway(served, "again").plan(start).end.queues["again"]
    served.commit("again", "spark", QueuePlace(end.incarnation, end.following))
    with pytest.raises(QueueChangedError, match="left the queue before this query read them"):
        of_gateway(served, "again").plan(start)


def test_a_gateway_that_goes_away_in_a_range_and_returns_is_waited_for(tmp_path: Path) -> None:
    """The reader asks again; what it had read does not come again."""
    with running_gateway(tmp_path) as client:
        for _ in range(8):
            client.enqueue("telemetry", [("t", bytes(1_000_000))] * 2)
        address = client.url.removeprefix("http://")
        given = {"url": client.url, "queue": "telemetry", "columns": "offset,payload"}
        patient = QueueReader(read_options(given))
        one = patient.ranges(patient.join(), patient.located("latest"))[0]
        batches = patient.read(one)
        first = next(batches)
    with running_gateway(tmp_path, bind=address):
        offsets = [offset for b in (first, *batches) for offset in b.column("offset").to_pylist()]
    assert first.num_rows < one.end
    assert offsets == list(range(one.end))
