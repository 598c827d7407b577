"""Spans of the messages of sampled traces, and their export; needs the extra `otel`."""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

MOST_OPEN: Final = 10_000
"""So many messages are remembered for the spans of their deliveries. A delivery of one that is
forgotten has a span without a duration."""

_VALUE: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]", re.ASCII)
"""A sampled trace: of version 00, the one that there is."""


class Spans:
    """Makes spans, and sends them from a thread.

    Args:
        otlp: URL of the collector; None for that of the environment.
        sample: the share of the traces that are chosen, 0 to 1.
    """

    def __init__(self, otlp: str | None, sample: float) -> None:
        self._otlp = otlp
        self._bound = round(sample * (1 << 64))
        self._open: OrderedDict[str, tuple[Context, int]] = OrderedDict()
        self._provider: TracerProvider | None = None

    def start(self) -> None:
        """Begin to send spans."""
        named = os.environ.get("OTEL_SERVICE_NAME", "") + os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create({} if named else {"service.name": "penstock"})
        # `context_of` has chosen already.
        self._provider = TracerProvider(ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=self._otlp)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def close(self) -> None:
        """Send what is left; it blocks the calling thread for some seconds at most."""
        if self._provider is not None:
            self._provider.shutdown()

    def receive(self, value: str, client_id: str, topic: str, n_bytes: int) -> None:
        """Make the span of a message that has come.

        Args:
            value: its `traceparent`.
            client_id: of the publisher.
            topic: Topic Name.
            n_bytes: of its payload.
        """
        parent = self.context_of(value)
        if parent is None:
            return
        now = time.time_ns()
        context = self._span("receive", parent, now, client_id, n_bytes, topic)
        self._open[value] = context, now
        self._open.move_to_end(value)
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)

    def leave(
        self, name: str, value: str, n_bytes: int, *, client_id: str = "", to: str = ""
    ) -> None:
        """Make the span of what is done with a message that has come.

        Args:
            name: of the span, such as ``deliver``.
            value: the `traceparent` of the message.
            n_bytes: of its payload.
            client_id: of a subscriber.
            to: a queue.
        """
        parent, since = self._open.get(value) or (self.context_of(value), time.time_ns())
        if parent is not None:
            self._span(name, parent, since, client_id, n_bytes, to)

    def process(
        self,
        place: str,
        values: Iterable[str],
        since: int,
        until: int,
        attributes: Mapping[str, str | int | Sequence[str]],
    ) -> None:
        """Make the span of messages that were processed together, with a link to each one's trace.

        Args:
            place: where they come from.
            values: the `traceparent` of each message.
            since: Unix time in nanoseconds, as `until`.
            until: when all were processed.
            attributes: beside those of every span.
        """
        contexts = [context for value in values if (context := self.context_of(value))]
        links = [Link(get_current_span(context).get_span_context()) for context in contexts]
        given: dict[str, str | int | Sequence[str]] = {
            "messaging.system": "mqtt",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": place,
            **attributes,
        }
        if self._provider is not None:
            tracer = self._provider.get_tracer("penstock")
            name, kind = f"process {place}", SpanKind.CONSUMER
            tracer.start_span(name, None, kind, given, links, since).end(until)

    def context_of(self, value: str) -> Context | None:
        """Return the context that a `traceparent` names; None where no span is to be made."""
        found = _VALUE.fullmatch(value)
        if found is None or int(found[1][16:], 16) >= self._bound:
            return None
        trace_id, span_id = (int(part, 16) for part in found.groups())
        if not trace_id or not span_id:  # W3C Trace Context, 3.2.2
            return None
        flags = TraceFlags(TraceFlags.SAMPLED)
        remote = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
        return set_span_in_context(NonRecordingSpan(remote))

    def _span(
        self, name: str, parent: Context, since: int, client_id: str, n_bytes: int, place: str
    ) -> Context:
        """Make a span from `since`, Unix time in nanoseconds, until now; return its context."""
        attributes: dict[str, str | int] = {
            "messaging.system": "mqtt",
            "messaging.operation.name": name,
            "messaging.message.body.size": n_bytes,
        }
        if client_id:
            attributes["messaging.client.id"] = client_id
        if place:
            attributes["messaging.destination.name"] = place
        if self._provider is None:  # not started
            return parent
        kind = SpanKind.CONSUMER if name == "receive" else SpanKind.PRODUCER
        tracer = self._provider.get_tracer("penstock")
        span = tracer.start_span(name, parent, kind, attributes, start_time=since)
        span.end()
        return set_span_in_context(span)
