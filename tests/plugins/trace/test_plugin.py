"""The plugin `trace` on the real broker, with a real collector and real clients."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.plugins.trace.config import TraceConfig
from penstock.plugins.trace.plugin import TracePlugin
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.wire import connected

PARENT = "00f067aa0ba902b7"


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

    def spans(self) -> dict[int, dict[str, Span]]:
        """Return the spans by their names, by the number of their trace."""
        found: dict[int, dict[str, Span]] = {}
        for body in self._requests:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found.setdefault(int.from_bytes(span.trace_id), {})[span.name] = span
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
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


def attributes(span: Span) -> dict[str, Any]:
    """Return the texts among the attributes of a span."""
    return {one.key: one.value.string_value for one in span.attributes if one.value.string_value}


async def test_a_message_has_spans_from_publish_to_delivery(
    collector: Collector, tmp_path: Path
) -> None:
    """Below the publisher's; of sampled traces alone, and what is no context passes without one."""
    trace = {"trace": {"otlp": collector.url}}
    values = [traceparent(1), traceparent(2, "00"), "nonsense", traceparent(3)]
    with running_broker(anonymous_policy(trace), tmp_path) as broker:
        async with (
            await connected(broker.port, "reader") as reader,
            await connected(broker.port, "sensor") as sensor,
        ):
            await reader.subscribe("#")
            for value in values:
                pairs = {"user_property": [("a", "b"), ("traceparent", value)]}
                await sensor.send(Publish("t/1", b"text", properties=pairs))
                packet = await reader.take(Publish)
                assert packet.properties["user_property"] == pairs["user_property"]
        assert broker.stop() == 0  # it sends what is left
    spans = collector.spans()
    assert set(spans) == {1, 3}
    receive, deliver = spans[1]["receive"], spans[1]["deliver"]
    assert receive.parent_span_id.hex() == PARENT
    assert deliver.parent_span_id == receive.span_id
    assert deliver.start_time_unix_nano == receive.start_time_unix_nano
    assert deliver.end_time_unix_nano >= deliver.start_time_unix_nano
    assert attributes(receive)["messaging.client.id"] == "sensor"
    assert attributes(receive)["messaging.destination.name"] == "t/1"
    assert attributes(deliver)["messaging.client.id"] == "reader"


async def test_a_queue_has_a_span_until_the_message_is_stored(
    collector: Collector, tmp_path: Path
) -> None:
    """Beside those of subscribers; in the order of the policy file or not."""
    queue = {"engine": "memory", "queues": {"work": {"topics": ["t/#"]}}}
    plugins = {"trace": {"otlp": collector.url}, "queue": queue}
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        async with await connected(broker.port, "sensor") as sensor:
            pairs = {"user_property": [("traceparent", traceparent(5))]}
            await sensor.send(Publish("t/1", b"text", qos=1, packet_id=1, properties=pairs))
            await sensor.take(PubAck)
        assert broker.stop() == 0
    receive, store = (collector.spans()[5][name] for name in ("receive", "store"))
    assert store.parent_span_id == receive.span_id
    assert attributes(store)["messaging.destination.name"] == "work"


async def test_a_collector_that_is_away_holds_up_no_message(tmp_path: Path) -> None:
    """Spans are dropped."""
    trace = {"trace": {"otlp": "http://127.0.0.1:9/v1/traces"}}
    with running_broker(anonymous_policy(trace), tmp_path) as broker:
        async with await connected(broker.port, "c") as client:
            await client.subscribe("#")
            pairs = {"user_property": [("traceparent", traceparent(1))]}
            await client.send(Publish("t", b"x", properties=pairs))
            assert (await client.take(Publish)).payload == b"x"


def test_a_proxy_has_no_spans() -> None:
    """It routes nothing."""
    context = PluginContext(logging.getLogger("test"), "proxy.yaml", float, is_proxy=True)
    with pytest.raises(ConfigError, match=r"plugins.trace: read in a proxy's file; allowed: in"):
        TracePlugin(TraceConfig(), context)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and by `penstock check`."""
    monkeypatch.setitem(sys.modules, "penstock.plugins.trace.spans", None)
    context = PluginContext(logging.getLogger("test"), "policy.yaml", float)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-mqtt\[otel\]'"):
        TracePlugin(TraceConfig(), context)
