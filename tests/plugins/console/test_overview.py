from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.counters import Histogram, Metric, Sample
from penstock.plugins.console.overview import _MESSAGES, _RATES, Overview, percentile
from tests.broker.operations.test_operations import operations_on
from tests.helpers.virtual import VirtualBroker


@pytest.mark.parametrize(
    ("counts", "ratio", "expected"),
    [
        ((0, 0, 0), 0.5, None),
        ((4, 0, 0), 0.5, 0.5),
        ((1, 1, 0), 0.5, 1.0),
        ((1, 1, 0), 0.75, 1.5),
        ((1, 0, 9), 0.99, 2.0),
    ],
)
def test_a_percentile_lies_within_its_bucket(
    counts: tuple[int, ...], ratio: float, expected: float | None
) -> None:
    """Linear between the bounds; above the last one, that is all that is known."""
    assert percentile((1.0, 2.0), counts, ratio) == expected


class Source:
    """Metrics that a test changes, and a clock that it moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.n_asked = 0
        self.received = 0
        self.latency = Histogram((0.1, 1.0, 10.0))

    def clock(self) -> float:
        """Return the time."""
        return self.now

    async def metrics(self) -> list[Metric]:
        """Return the metrics of now, after others had a turn."""
        self.n_asked += 1
        await asyncio.sleep(0)
        labels = {"size": "large", "until": "acknowledged", "path": "congested"}
        return [
            Metric("received_messages_total", "counter", "", [Sample({}, self.received)]),
            Metric("withholding_latency_seconds", "histogram", "", [Sample(labels, self.latency)]),
            Metric("clients_connected", "gauge", "", [Sample({}, 3)]),
            Metric("clients_connected_maximum", "gauge", "", [Sample({}, 4)]),
            Metric(
                "withholding_decisions_total",
                "counter",
                "",
                [
                    Sample({"outcome": "held", "cause": "congested"}, 5),
                    Sample({"outcome": "released", "cause": "congested"}, 4),
                ],
            ),
            Metric(
                "messages_dropped_total",
                "counter",
                "",
                [Sample({"reason": "queue_full", "queue": "a"}, 2), Sample({"reason": "qos0"}, 1)],
            ),
        ]


def overview_of(source: Source) -> tuple[Overview, list[Exception]]:
    """Return an overview of the source, and its faults."""
    faults: list[Exception] = []

    async def more() -> dict[str, Any]:
        return {"problems": {}}

    return Overview(source.metrics, source.clock, more, faults.append), faults


async def test_rates_and_percentiles_are_those_between_two_readings() -> None:
    """The first look has none of the past; what the program does not have is null."""
    source = Source()
    overview, _ = overview_of(source)
    source.latency.observe(5.0)
    first = await overview.answer(with_history=True)
    assert first["rates"]["received_messages"] is None
    assert first["clients"] == {"connected": 3, "sessions": None, "maximum": 4}
    assert first["held"] == {"congested": 5}
    assert first["dropped"] == {"queue_full": 2, "qos0": 1}
    assert first["persistence"] is None
    await overview.close()
    source.now += 2.0
    source.received += 10
    source.latency.observe(0.05)
    second = await overview.answer(with_history=True)
    await overview.close()
    assert second["rates"]["received_messages"] == 5.0
    rows = {(row["size"], row["congested"]): row for row in second["latency"]}
    assert rows["large", True]["messages"] == 1
    assert rows["large", True]["p99_seconds"] == pytest.approx(0.099)
    assert rows["small", False]["p50_seconds"] is None
    assert second["history"]["received_messages"] == [None, 5.0]
    assert second["history"]["p99_large_seconds"] == [None, pytest.approx(0.099)]
    assert len(second["history"]["at"]) == 2


async def test_what_is_shown_is_among_the_metrics_of_a_broker() -> None:
    """A metric that has another name would be shown as unknown, for ever."""
    operations = operations_on(VirtualBroker())
    names = {metric.name for metric in await operations.metrics()}
    assert names >= {*_RATES.values(), *_MESSAGES.values()}


async def test_those_who_look_first_begin_one_task() -> None:
    """Two pages that are opened together."""
    overview, _ = overview_of(Source())
    await asyncio.gather(*(overview.answer(with_history=False) for _ in range(3)))
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert names.count("console overview") == 1
    await overview.close()


async def test_many_who_look_cause_one_reading() -> None:
    """A page open in ten browsers costs what one does."""
    source = Source()
    overview, faults = overview_of(source)
    for _ in range(10):
        await overview.answer(with_history=False)
    assert source.n_asked == 1
    await overview.close()
    assert not faults
