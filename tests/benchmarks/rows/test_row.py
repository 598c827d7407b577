from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from benchmarks.__main__ import ROWS
from benchmarks.peers import PEERS, Options, RunningPeer, running
from benchmarks.rows import latency
from benchmarks.rows.row import Measurement, Row, Scale

TINY: Final = Scale(
    seconds=0.02,
    warm_up_messages=100,
    latency_seconds=0.5,
    steady_seconds=0.05,
    clients=20,
    idle_connections=100,
    filters=500,
    queued_messages=200,
    stalled_subscribers=3,
    large_messages=4,
    large_bytes=100_000,
    readers=3,
    late_readers=3,
    late_messages=5,
    congested_seconds=0.3,
    day_seconds=1.0,
)

BROKERS: Final = ("penstock", "penstock-stock", "mosquitto")
INFLIGHT_MESSAGES: Final = 1000


Start = Callable[[str, Row], RunningPeer]


@pytest.fixture(scope="module")
def started() -> Iterator[Start]:
    """Starts a broker for a row, once: it answers the rows that follow, too."""
    with ExitStack() as stack:

        @cache
        def start(name: str, options: Options) -> RunningPeer:
            return stack.enter_context(running(PEERS[name], options))

        yield lambda name, row: start(
            name, replace(row.options, inflight_messages=INFLIGHT_MESSAGES)
        )


CASES: Final = [
    pytest.param(row, name, id=f"{row.name}-{name}")
    for row in ROWS.values()
    for name in BROKERS
    # With aMQTT's plugins as well, where another path through the broker is measured.
    if name != "penstock-stock" or row.group in {"qos0", "qos1", "qos2"}
]


@pytest.mark.parametrize(("row", "name"), CASES)
def test_each_row_measures(
    row: Row, name: str, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row runs to its end on a real broker, tells all of its figures and loses nothing."""
    monkeypatch.setattr(latency, "FAIRNESS_ROUNDS", 1)  # each floods both processors
    check(row, name, row.measure(started(name, row), TINY))


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.has_stores], ids=lambda row: row.name
)
@pytest.mark.parametrize("name", [peer.name for peer in PEERS.values() if peer.is_store])
def test_each_row_that_tells_payload_stores_apart_measures_them(
    row: Row, name: str, started: Start
) -> None:
    """With each store everything arrives, and there are targets for one that has a limit."""
    check(row, name, row.measure(started(name, row), TINY))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name) for row in ROWS.values() if row.has_ceiling]
)
def test_each_ceiling_is_measured(row: Row, started: Start) -> None:
    """The load's own limit can be had wherever a row says so."""
    check(row, "ceiling", row.measure(started("ceiling", row), TINY))


def check(row: Row, name: str, measurement: Measurement) -> None:
    """Assert what holds of any answer."""
    # Memory may not grow at all where little is sent to a process that has some to spare.
    assert measurement.value > 0 or row.group == "memory"
    assert measurement.lost == 0
    if row.options.has_metrics and name == "penstock":
        assert measurement.details["scrapes"] > 0
    assert {figure.name for figure in row.figures} <= measurement.details.keys()
