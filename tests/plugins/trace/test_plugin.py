"""The plugin `trace` on the real broker, with a real collector and real clients."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.plugins.trace.config import TraceConfig
from penstock.plugins.trace.plugin import TracePlugin
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.spans import PARENT, Collector, running_collector, texts, traceparent
from tests.helpers.wire import connected


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Run a collector."""
    with running_collector() as found:
        yield found


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
    spans = collector.traces()
    assert set(spans) == {1, 3}
    receive, deliver = spans[1]["receive"], spans[1]["deliver"]
    assert receive.parent_span_id.hex() == PARENT
    assert deliver.parent_span_id == receive.span_id
    assert deliver.start_time_unix_nano == receive.start_time_unix_nano
    assert deliver.end_time_unix_nano >= deliver.start_time_unix_nano
    assert texts(receive)["messaging.client.id"] == "sensor"
    assert texts(receive)["messaging.destination.name"] == "t/1"
    assert texts(deliver)["messaging.client.id"] == "reader"


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
    receive, store = (collector.traces()[5][name] for name in ("receive", "store"))
    assert store.parent_span_id == receive.span_id
    assert texts(store)["messaging.destination.name"] == "work"


async def test_a_collector_that_is_away_holds_up_no_message(tmp_path: Path) -> None:
    """Spans are dropped."""
    trace = {"trace": {"otlp": "http://127.0.0.1:9/v1/traces"}}
    with running_broker(anonymous_policy(trace), tmp_path) as broker:
        async with await connected(broker.port, "c") as client:
            await client.subscribe("#")
            pairs = {"user_property": [("traceparent", traceparent(1))]}
            await client.send(Publish("t", b"x", properties=pairs))
            assert (await client.take(Publish)).payload == b"x"


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and by `penstock check`."""
    monkeypatch.setitem(sys.modules, "penstock.plugins.trace.spans", None)
    context = PluginContext(logging.getLogger("test"), "policy.yaml", float)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-mqtt\[otel\]'"):
        TracePlugin(TraceConfig(), context)
