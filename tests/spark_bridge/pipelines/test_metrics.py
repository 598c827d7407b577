from __future__ import annotations

import socket
import urllib.request
from contextlib import closing
from typing import Any

import pytest

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.pipelines.metrics import QueryMetrics


def report(**more: Any) -> dict[str, Any]:
    """Return a report of a micro-batch as Spark gives it."""
    source = {"endOffset": {"q": {"next": {"0": 5}}}, "latestOffset": {"q": {"next": {"0": 7}}}}
    return {
        "id": "some id",
        "name": "windows",
        "numInputRows": 5,
        "durationMs": {"triggerExecution": 400},
        "sources": [source],
        "stateOperators": [{"numRowsDroppedByWatermark": 2}],
        "observedMetrics": {"penstock": {"messages": 5, "expired": 1, "malformed": 3}},
        **more,
    }


def test_reports_add_up_to_what_prometheus_reads() -> None:
    """Rows, lag by physical queue, time of batches, and what was not used."""
    with closing(QueryMetrics("127.0.0.1:0")) as metrics:
        metrics.add(report())
        metrics.add(report(name=None))
        metrics.add(report())
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    for line in (
        'penstock_spark_rows_total{query="windows"} 10.0',
        'penstock_spark_rows_total{query="some id"} 5.0',
        'penstock_spark_expired_total{query="windows"} 2.0',
        'penstock_spark_quarantined_total{query="windows",reason="malformed"} 6.0',
        'penstock_spark_late_rows_total{query="windows"} 4.0',
        'penstock_spark_lag_messages{physical_queue="0",query="windows",queue="q"} 2.0',
        'penstock_spark_batch_seconds_count{query="windows"} 2.0',
        'penstock_spark_batch_seconds_bucket{le="0.5",query="windows"} 2.0',
        'penstock_spark_batch_seconds_bucket{le="0.25",query="windows"} 0.0',
    ):
        assert line in lines


@pytest.mark.parametrize("bind", ["9464", "127.0.0.1:99999", "a b:1"])
def test_an_address_that_is_none_is_told(bind: str) -> None:
    """What was read and what is allowed."""
    with pytest.raises(OptionError, match=r"--metrics: read .*; allowed: HOST:PORT"):
        QueryMetrics(bind)


def test_an_address_that_is_taken_is_told() -> None:
    """Before any query runs."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        pytest.raises(OptionError, match="allowed: a free HOST:PORT"),
    ):
        QueryMetrics(f"127.0.0.1:{taken.getsockname()[1]}")
