from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from penstock.broker.counters import Histogram, Metric, Sample
from penstock.plugins.console.exposition import (
    SAMPLES_AT_ONCE,
    by_worker,
    distinct,
    families_as_json,
    family,
    metric_as_json,
    metric_of_json,
    name_problems,
    of_process,
    summed,
    write,
)


def histogram(*values: float) -> Histogram:
    """Return a histogram of some seconds."""
    found = Histogram((0.1, 1.0))
    for value in values:
        found.observe(value)
    return found


METRICS = [
    Metric("build_info", "gauge", "The version.", [Sample({"version": '1"\\\n'}, 1)]),
    Metric("messages_total", "counter", "All.", [Sample({}, 7)]),
    Metric("lag_seconds", "histogram", "Lag.", [Sample({"lane": "a"}, histogram(0.05, 3.0))]),
    Metric("rtt_seconds", "gaugehistogram", "RTT.", [Sample({}, histogram(0.5))]),
    Metric("nothing_total", "counter", "None.", []),
]

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.mark.parametrize(
    ("accept", "read"),
    [("", read_text), ("text/plain", read_text), (OPENMETRICS, read_openmetrics)],
)
async def test_each_format_can_be_read(accept: str, read: object) -> None:
    """By the parsers of prometheus_client, with names, labels and values as they are."""
    body, content_type = await write(map(family, METRICS), accept)
    assert content_type.startswith("application/openmetrics" if "open" in accept else "text/plain")
    samples = {
        (sample.name, tuple(sample.labels.items())): sample.value
        for found in read(body.decode())  # type: ignore[operator]
        for sample in found.samples
    }
    assert samples["penstock_messages_total", ()] == 7
    assert samples["penstock_build_info", (("version", '1"\\\n'),)] == 1
    assert samples["penstock_lag_seconds_bucket", (("lane", "a"), ("le", "0.1"))] == 1
    assert samples["penstock_lag_seconds_bucket", (("lane", "a"), ("le", "+Inf"))] == 2
    assert samples["penstock_lag_seconds_sum", (("lane", "a"),)] == pytest.approx(3.05)
    assert samples["penstock_rtt_seconds_count", ()] == 1


async def test_many_samples_are_written_in_turns_with_others() -> None:
    """The event loop serves MQTT, too."""
    n_turns = 0

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    samples = [Sample({"queue": str(n)}, n) for n in range(SAMPLES_AT_ONCE)]
    many = [Metric(f"m{n}", "gauge", "Some.", samples) for n in range(20)]
    body, _ = await write(map(family, many), "")
    counting.cancel()
    assert n_turns >= 20
    assert body.count(b"\npenstock_m") == 20 * SAMPLES_AT_ONCE


def test_two_metrics_with_one_name_are_told() -> None:
    """Both are named; a scrape has the first."""
    metrics = [
        Metric("queue_messages", "gauge", "Messages of a queue.", []),
        Metric("lag_seconds", "histogram", "Lag.", []),
        Metric("queue_messages", "gauge", "Of another plugin.", []),
        Metric("lag_seconds_count", "gauge", "Looks.", []),
    ]
    assert name_problems(metrics) == [
        "metric queue_messages beside queue_messages (Messages of a queue.)",
        "metric lag_seconds_count beside lag_seconds (Lag.)",
    ]
    assert distinct(metrics) == metrics[:2]
    assert name_problems(METRICS) == []


def test_metrics_of_several_processes_are_summed() -> None:
    """Or the greatest counts, or each has its own; histograms of one label are one."""
    one, other = (
        [
            Metric("messages_total", "counter", "All.", [Sample({"lane": lane}, 7)]),
            Metric("oldest_seconds", "gauge", "Oldest.", [Sample({}, oldest)], "max"),
            Metric("up_seconds", "gauge", "Up.", [Sample({}, oldest)], "each"),
            Metric("lag_seconds", "histogram", "Lag.", [Sample({}, histogram(0.05, oldest))]),
        ]
        for lane, oldest in (("a", 3.0), ("b", 2.0))
    )
    sent = [metric_of_json(json.loads(json.dumps(metric_as_json(metric)))) for metric in other]
    found = {metric.name: metric for metric in summed({"w1": one, "w2": sent, "w3": one})}
    assert found["messages_total"].samples == [({"lane": "a"}, 14), ({"lane": "b"}, 7)]
    assert found["oldest_seconds"].samples == [({}, 3.0)]
    own = [({"worker": "w1"}, 3.0), ({"worker": "w2"}, 2.0), ({"worker": "w3"}, 3.0)]
    assert found["up_seconds"].samples == own
    ((_, lag),) = found["lag_seconds"].samples
    assert isinstance(lag, Histogram)
    assert lag.counts == [3, 0, 3]
    assert lag.total == pytest.approx(8.15)


async def test_figures_of_processes_say_whose_they_are() -> None:
    """As `prometheus_client` has them."""
    families = json.loads(json.dumps(families_as_json(await of_process())))
    body, _ = await write(by_worker({"w1": families, "w2": families}), "")
    assert b'process_open_fds{worker="w1"}' in body
    assert b'process_open_fds{worker="w2"}' in body
