"""Metrics of streaming queries for Prometheus, from Spark's own reports.

A program of the user's may use it, too: ``spark.streams.addListener(QueryMetrics("HOST:PORT"))``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.plugins.web.bind import split_bind
from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.progress_totals import (
    EXPIRED,
    MESSAGES,
    lag_of,
    late_rows,
    observed_counts,
)

_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 300.0)


class QueryMetrics(StreamingQueryListener):
    """A listener that serves the figures of all queries of a session.

    Raises:
        OptionError: `bind` cannot be used.
    """

    def __init__(self, bind: str) -> None:
        registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Any:
            return Counter(f"penstock_spark_{name}", about, ("query", *labels), registry=registry)

        self._rows = counter("rows", "Messages read.")
        self._expired = counter("expired", "Messages dropped after their lifetime.")
        self._quarantined = counter("quarantined", "Messages for the quarantine.", "reason")
        self._late = counter("late_rows", "Rows that came after their window was complete.")
        self._failures = counter("failures", "Ends of a query by an error.")
        self._lag = Gauge(
            "penstock_spark_lag_messages",
            "Messages that wait behind the newest micro-batch.",
            ("query", "queue", "physical_queue"),
            registry=registry,
        )
        self._running = Gauge(
            "penstock_spark_running", "1 while the query runs.", ("query",), registry=registry
        )
        self._seconds = Histogram(
            "penstock_spark_batch_seconds",
            "Duration of micro-batches.",
            ("query",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._names: dict[str, str] = {}
        try:
            host, port = split_bind(bind)
        except ValueError as error:
            raise OptionError(f"--metrics: read {bind!r}; allowed: {error}") from error
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OptionError(
                f"--metrics: read {bind!r} ({reason}); allowed: a free HOST:PORT"
            ) from error
        self.port: int = self._server.server_address[1]

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def add(self, report: Mapping[str, Any]) -> None:
        """Add Spark's report of one micro-batch, as JSON values."""
        query = report["name"] or report["id"]
        self._rows.labels(query).inc(report["numInputRows"])
        self._late.labels(query).inc(late_rows(report))
        self._seconds.labels(query).observe(report["durationMs"]["triggerExecution"] / 1_000)
        for name, count in observed_counts(report).items():
            if name == EXPIRED:
                self._expired.labels(query).inc(count)
            elif name != MESSAGES:
                self._quarantined.labels(query, name).inc(count)
        for name, messages in lag_of(report).items():
            self._lag.labels(query, *name.split("/")).set(messages)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Count a query as running."""
        query = self._names[str(event.id)] = event.name or str(event.id)
        self._running.labels(query).set(1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Add a report of a query."""
        self.add(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the figures stay as they are."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Count a query as ended."""
        query = self._names.get(str(event.id), str(event.id))
        self._running.labels(query).set(0)
        self._failures.labels(query).inc(int(event.exception is not None))
