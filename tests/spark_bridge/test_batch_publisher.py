"""What tasks and a driver do, without Spark, with a real broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.plugins.queue.batch_client import BatchClient, Published
from penstock.plugins.queue.client import NoAnswerError, QueueError
from penstock.spark_bridge.batch_publisher import BatchPublisher, Stage
from penstock.spark_bridge.errors import PublishError, RowError
from penstock.spark_bridge.sink_options import SinkOptions
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker

NAMES = ("topic", "payload")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that takes payloads of 1,000 bytes, one for all tests of the file."""
    queue = {"http": "127.0.0.1:0", "publishing": {}}
    policy = anonymous_policy({"queue": queue}, limits={"payload_bytes": 1_000})
    with running_broker(policy, tmp_path_factory.mktemp("broker")) as running:
        yield running


@contextlib.contextmanager
def publisher(broker: BrokerProcess, writer: str, **options: Any) -> Iterator[BatchPublisher]:
    """Make a publisher, as a task or the driver does."""
    made = BatchPublisher(SinkOptions(url=broker.queue_url, **options), writer)
    yield made
    made.close()


def rows(*payloads: str) -> list[tuple[str, str]]:
    """Return rows of one topic."""
    return [("a", payload) for payload in payloads]


def test_the_attempt_that_the_driver_names_is_published_once(broker: BrokerProcess) -> None:
    """Two attempts of a task, two partitions, uploads of one row, and a repeated batch."""
    with (
        PahoClient(broker.port) as device,
        publisher(broker, "w1", rows_per_request=1) as task,
        publisher(broker, "w1") as driver,
    ):
        device.connect()
        device.subscribe("#", 2)
        task.stage(0, NAMES, rows("lost", "attempt"))
        first = task.stage(0, NAMES, rows("0", "1"))
        second = task.stage(1, NAMES, rows("2"))
        empty = task.stage(2, NAMES, rows())
        assert empty.n_rows == 0
        found = driver.publish("attempts", 5, [second, empty, first])
        assert found == Published(True, False, 3, 3, {}, "")
        with publisher(broker, "w2") as again:
            one = again.stage(0, NAMES, rows("0", "1", "2"))
            found = again.publish("attempts", 5, [one])
            assert found is not None
            assert found.is_repeat
            one = again.stage(0, NAMES, rows("end"))
            again.publish("attempts", 6, [one])
        assert device.payloads(4) == [b"0", b"1", b"2", b"end"]
        assert driver.publish("attempts", 7, [empty]) is None


@pytest.mark.parametrize(
    ("topic", "payload", "told"),
    [
        (None, "x", "partition 3, row 2: topic: read null"),
        ("a/#", "x", "partition 3, row 2: topic: malformed packet"),
        ("$SYS/a", "x", "partition 3, row 2: topics that begin with $SYS"),
        ("a", "x" * 1_001, "partition 3, row 2: payload of 1001 bytes; allowed: at most 1000"),
        ("a", "x" * 4_000_000, "partition 3, row 2: "),
    ],
)
def test_a_row_that_cannot_be_published_is_named(
    broker: BrokerProcess, topic: Any, payload: str, told: str
) -> None:
    """By its partition and its place there, whichever upload it is in."""
    given = [("a", "0"), ("a", "1"), (topic, payload)]
    for rows_per_request in (2, 5):
        options = {"rows_per_request": rows_per_request, "bytes_per_request": 100_000}
        with publisher(broker, "bad", **options) as task:
            with pytest.raises(RowError) as raised:
                task.stage(3, NAMES, given)
            assert raised.value.text.startswith(told)
            task.give_up()


def test_a_stage_that_is_gone_fails_the_batch(broker: BrokerProcess) -> None:
    """It has expired, or was given up."""
    with publisher(broker, "gone") as task:
        one = task.stage(0, NAMES, rows("x"))
        task.give_up()
        with pytest.raises(PublishError, match=rf"409: stage {one.name}: read nothing"):
            task.publish("gone", 0, [one])


class Scripted(BatchClient):
    """A client whose server answers as the test says.

    Attributes:
        answers: of the next requests; errors are raised.
    """

    def __init__(self, *answers: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.answers = list(answers)

    def _next(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stage(self, *_: Any) -> int:
        """Answer an upload."""
        return int(self._next())

    def publish(self, *_: Any, **__: Any) -> Published:
        """Answer a commit."""
        found: Published = self._next()
        return found


def patient(client: Scripted) -> BatchPublisher:
    """Return a publisher whose clock goes on by 10 s with each look at it."""
    now = [0.0]

    def clock() -> float:
        now[0] += 10.0
        return now[0]

    options = SinkOptions(url="http://h", retry_seconds=30)
    return BatchPublisher(options, "w", client, sleep=lambda _: None, clock=clock)


def test_a_full_stage_and_a_server_that_is_away_are_asked_again() -> None:
    """Within ``retrySeconds``; then the task fails, and Spark tries it again."""
    full = QueueError(429, "stage: read 1 more beside 2; allowed: 2")
    client = Scripted(full, NoAnswerError(0, "no answer"), 1)
    assert patient(client).stage(0, NAMES, rows("x")).n_rows == 1
    with pytest.raises(PublishError, match="429: stage: read 1 more"):
        patient(Scripted(*[full] * 9)).stage(0, NAMES, rows("x"))


def test_a_commit_waits_as_long_as_rows_are_published() -> None:
    """Without progress for ``retrySeconds`` it fails and tells what the next row waits for."""
    steps = [Published(False, False, 9, n, {}, "") for n in range(9)]
    client = Scripted(*steps, Published(True, False, 9, 9, {"expired": 1}, ""))
    found = patient(client).publish("q", 0, [Stage(0, "a", 9)])
    assert found is not None
    assert found.is_finished
    client = Scripted(*[Published(False, False, 9, 4, {}, "no room to retain")] * 9)
    with pytest.raises(PublishError, match=r"4 of 9 rows are published, .* for 30 s"):
        patient(client).publish("q", 0, [Stage(0, "a", 9)])
