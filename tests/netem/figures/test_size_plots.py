"""Plots by size: there where a run has many, with what never came."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from penstock.netem.figures.measures import Measures
from penstock.netem.figures.records import MemoryRow, Tables
from penstock.netem.figures.size_plots import correlate, draw_memory_by_latency, draw_sizes
from penstock.netem.runs.run_file import RunInfo
from penstock.netem.runs.scenario import Stream
from tests.helpers.netem_runs import INFO, SCENARIO, delivery, expected, message

SIZES = {"100B": 100, "1KB": 1000, "100KB": 100_000, "1MB": 1_000_000}


def many_sizes(*, is_lost: bool = False) -> tuple[RunInfo, Measures]:
    """Return a run of four sizes at QoS 0 and 1: 100 ms each, 1 MB a second."""
    traffic = {
        f"q{qos}-{name}": Stream(f"q{qos}/{name}", size, 1.0, qos=qos)
        for qos in (1, 0)
        for name, size in SIZES.items()
    }
    scenario = dataclasses.replace(SCENARIO, traffic=traffic)
    tables = Tables()
    for broker in scenario.brokers:
        for stream, plan in traffic.items():
            tables.expected.append(expected(broker=broker, stream=stream, qos=plan.qos))
            for number in range(5):
                row = message(number, float(number), broker=broker)
                tables.messages.append(
                    row._replace(
                        stream=stream,
                        topic=plan.topic,
                        payload_bytes=plan.payload_bytes,
                        qos=plan.qos,
                    )
                )
                latency = 1.0 if plan.payload_bytes == 1_000_000 else 0.1
                if not (is_lost and plan.qos == 0):
                    at = number + latency
                    tables.deliveries.append(delivery(number, at, broker=broker, stream=stream))
        tables.memory.extend(
            MemoryRow(broker, 1, at, rss) for at, rss in ((-1.0, 10**7), (1.0, 3 * 10**7))
        )
    return dataclasses.replace(INFO, scenario=scenario), Measures(scenario, tables)


def test_a_run_of_many_sizes_has_both_plots(tmp_path: Path) -> None:
    """Titles name the largest size and the memory of both."""
    info, measures = many_sizes()
    sizes = draw_sizes(info, measures, tmp_path)
    memory = draw_memory_by_latency(info, measures, tmp_path)
    assert sizes is not None
    assert memory is not None
    assert sizes.title == "1 MB at QoS 0: p50 of 1.0 s with adaptive, 1.0 s with mosquitto"
    assert memory.title == "Late messages and memory: 20.0 MB with adaptive, 20.0 MB with mosquitto"
    for plot in (sizes, memory):
        assert (tmp_path / plot.name).stat().st_size > 10_000


def test_a_size_of_which_nothing_came_is_drawn_as_that(tmp_path: Path) -> None:
    """It has no quantile, and the plot is there all the same."""
    info, measures = many_sizes(is_lost=True)
    sizes = draw_sizes(info, measures, tmp_path)
    assert sizes is not None
    assert sizes.title == "1 MB at QoS 0: p50 of ∞ with adaptive, ∞ with mosquitto"


def test_memory_that_goes_with_latency_is_correlated() -> None:
    """By ranks: any growth that is larger where latency is; the other way round it is -1."""
    latencies = [0.5, 1.0, 4.0, 2.0, 8.0]
    messages = [message(number, 20.0 * number, stream="large") for number in range(5)]
    tables = Tables(
        messages=messages,
        deliveries=[
            delivery(number, 20.0 * number + latency, stream="large")
            for number, latency in enumerate(latencies)
        ],
        expected=[expected(stream="large")],
        memory=[MemoryRow("adaptive", 1, -1.0, 0)],
    )
    for row, latency in zip(messages, latencies, strict=True):
        for at in (row.due_s, row.due_s + 9):
            tables.memory.append(MemoryRow("adaptive", 1, at, int(latency**3 * 1000)))
    measures = Measures(SCENARIO, tables)
    assert correlate(measures, "adaptive", 1, 1_000_000) == pytest.approx(1)
    tables.memory[:] = [row._replace(rss_bytes=-row.rss_bytes) for row in tables.memory]
    assert correlate(measures, "adaptive", 1, 1_000_000) == pytest.approx(-1)
    tables.memory[:] = [row._replace(rss_bytes=7) for row in tables.memory]
    assert math.isnan(correlate(measures, "adaptive", 1, 1_000_000))
    assert math.isnan(correlate(measures, "adaptive", 1, 100))


def test_two_sizes_are_too_few(tmp_path: Path) -> None:
    """There is nothing to compare by size."""
    measures = Measures(SCENARIO, Tables(expected=[expected(), expected(stream="large")]))
    assert draw_sizes(INFO, measures, tmp_path) is None
    assert draw_memory_by_latency(INFO, measures, tmp_path) is None
