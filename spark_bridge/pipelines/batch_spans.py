"""A span of OpenTelemetry for each micro-batch, with links to the traces of its messages.

Theory of operation. A message has a trace of its own; a file of thousands cannot be a part of all
of them. OpenTelemetry's conventions for messaging have one span for what is processed together,
with a link to the context that each message was created in. Spark collects these contexts while it
reads, a limited number, and tells them in its report of the micro-batch, which it makes after the
commit. So where there is a span, the rows are in the table. It needs the extra `otel`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.spark_bridge.errors import OptionError
from penstock.spark_bridge.pipelines.building import place_of, read_stream
from penstock.spark_bridge.pipelines.running import Query

try:
    from penstock.plugins.trace.spans import Spans
except ImportError as error:
    raise OptionError(
        f"--otlp: {error}; allowed: with the extra otel: pip install 'penstock-mqtt[otel,spark]'"
    ) from error

OBSERVATION: Final = "penstock traces"
"""The name in Spark's progress reports of the contexts of messages."""

_URL: Final = re.compile(r"https?://[^\s/]+")
_COLUMN: Final = "user_properties"
_SAMPLED: Final = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]$"
_LINKS: Final = 128
"""The most links of a span in OpenTelemetry, unless the environment says otherwise."""


def read_traced(spark: SparkSession, texts: dict[str, str]) -> DataFrame:
    """Return the messages of a queue as a stream whose reports tell of sampled traces.

    A micro-batch tells of `_LINKS` at most: of the smallest trace ids by their random half, which
    are those that brokers choose by `sample`.
    """
    messages = read_stream(spark, texts)
    if _COLUMN not in messages.columns:
        return messages
    value = f.col(_COLUMN)["traceparent"][0]
    order = f.when(value.rlike(_SAMPLED), f.substring(value, 20, 16))
    return messages.observe(OBSERVATION, f.min_by(value, order, _LINKS).alias("contexts"))


class BatchSpans:
    """The spans of a run.

    Args:
        otlp: URL that gets them by OTLP over HTTP.

    Raises:
        OptionError: it is none.
    """

    def __init__(self, otlp: str) -> None:
        if not _URL.match(otlp):
            raise OptionError(
                f"--otlp: read {otlp!r}; allowed: a URL such as http://127.0.0.1:4318/v1/traces"
            )
        self._spans = Spans(otlp, 1.0)
        self._spans.start()

    def add(self, query: Query, report: Mapping[str, Any]) -> None:
        """Make the span of a micro-batch from Spark's report, as JSON values."""
        contexts = report.get("observedMetrics", {}).get(OBSERVATION, {}).get("contexts")
        since = round(datetime.fromisoformat(report["timestamp"]).timestamp() * 1_000) * 1_000_000
        until = since + report["durationMs"]["triggerExecution"] * 1_000_000
        attributes = {
            "messaging.batch.message_count": report["numInputRows"],
            "messaging.consumer.group.name": query.source.group,
            "penstock.sinks": [place_of(sink) for sink in query.sinks.values()],
        }
        queues = ", ".join(query.source.queues)
        self._spans.process(queues, contexts or (), since, until, attributes)

    def close(self) -> None:
        """Send what is left; it takes some seconds at most."""
        self._spans.close()
