from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.loads.wire import WireError
from benchmarks.paired import Bursts, Interval, interval_of, measure_start, processor_seconds
from benchmarks.peers import PEERS, RunningPeer
from benchmarks.rows.rates import Run


class Connects:
    """A load that connects to the broker so many times for each message, and loses some."""

    def __init__(self, broker: RunningPeer, *, times: dict[str, int], lost: int) -> None:
        self._port = broker.port
        self._times = times[broker.name]
        self._lost = lost

    def run(self, messages: int) -> Run:
        """Connect, and wait for the broker to see it."""
        for _ in range(messages * self._times):
            wire.open_client(self._port, "a").close()
        return Run(messages, messages - self._lost, self._lost, 1.0, 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def bursts(times: dict[str, int], lost: int = 0) -> Bursts:
    """Return some of a load for mosquitto, which starts quickly."""
    return Bursts(lambda broker: Connects(broker, times=times, lost=lost), 5, turn_messages=10)


MOSQUITTO = PEERS["mosquitto"]
OTHER = replace(MOSQUITTO, name="other")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_broker_with_more_to_do_takes_more(*, is_reversed: bool) -> None:
    """The first one over the other, whichever is started first."""
    allowed = os.sched_getaffinity(0)
    for times, sign in (({"mosquitto": 8, "other": 1}, 1), ({"mosquitto": 1, "other": 8}, -1)):
        found = measure_start(MOSQUITTO, OTHER, bursts(times), 3, is_reversed=is_reversed)
        assert found * sign > 0.4
    assert os.sched_getaffinity(0) == allowed


def test_lost_messages_are_no_measurement() -> None:
    """Who does less is not compared."""
    with pytest.raises(BenchmarkError, match="lost 2 messages"):
        measure_start(
            MOSQUITTO, OTHER, bursts({"mosquitto": 1, "other": 1}, 1), 1, is_reversed=False
        )


def test_broker_that_breaks_off_is_named() -> None:
    """With what it did."""

    def fail(_broker: RunningPeer) -> Connects:
        raise WireError("it closed the connection")

    with pytest.raises(BenchmarkError, match="mosquitto, other: it closed the connection"):
        measure_start(MOSQUITTO, OTHER, Bursts(fail, 1), 1, is_reversed=False)


def test_processor_time_is_what_the_kernel_counts() -> None:
    """That of this process, which the system says too."""
    assert processor_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of many samples with the median 0.02, a few outliers among them, some 95 % do."""
    generator = random.Random(3)  # noqa: S311 - no secret
    n_hits = 0
    for _ in range(60):
        figures = [0.02 + generator.gauss(0, 0.03) for _ in range(15)]
        found = interval_of([*figures, -0.3, 0.3])
        assert found.low <= found.median <= found.high
        n_hits += found.low <= 0.02 <= found.high
    assert n_hits >= 52


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(-0.01, 0.01, 0.029), "Met"),
        (Interval(0.031, 0.04, 0.05), "Missed"),
        (Interval(0.01, 0.02, 0.04), "Not resolved"),
    ],
)
def test_verdict_is_on_the_whole_interval(interval: Interval, verdict: str) -> None:
    """A target within it is neither met nor missed."""
    assert interval.verdict(0.03) == verdict
