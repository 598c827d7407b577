"""A collector of OpenTelemetry, for what sends it spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PARENT = "00f067aa0ba902b7"
"""The publisher's span, in each trace."""


def traceparent(number: int, flags: str = "01") -> str:
    """Return the context of a publisher's span, in the trace with this number."""
    return f"00-{number:032x}-{PARENT}-{flags}"


class Collector:
    """What has come to a collector of OpenTelemetry.

    Attributes:
        url: that spans are sent to.
    """

    def __init__(self, url: str, requests: list[bytes]) -> None:
        self.url = url
        self._requests = requests

    def spans(self) -> list[Span]:
        """Return the spans in the order in which they came."""
        return [
            span
            for body in self._requests
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def traces(self) -> dict[int, dict[str, Span]]:
        """Return the spans by their names, by the number of their trace."""
        found: dict[int, dict[str, Span]] = {}
        for span in self.spans():
            found.setdefault(int.from_bytes(span.trace_id), {})[span.name] = span
        return found


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Run a collector."""
    requests: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Collector(f"http://127.0.0.1:{server.server_port}/v1/traces", requests)
        finally:
            server.shutdown()
            thread.join()


def texts(span: Span) -> dict[str, str]:
    """Return the texts among the attributes of a span."""
    return {one.key: one.value.string_value for one in span.attributes if one.value.string_value}
