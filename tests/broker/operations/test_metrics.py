from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.broker.config.limits import Limits
from penstock.broker.counters import Histogram, Metric
from penstock.broker.reports.totals import SLICE
from tests.broker.operations.test_operations import LARGE, STAYS, holding, operations_on
from tests.broker.serving import operations_of, port_of, serving, until
from tests.helpers.virtual import VirtualBroker
from tests.helpers.wire import connected

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
SPILL = {"store": "spill"}


def values(metrics: Any) -> dict[str, Any]:
    """Return each sample's value by the metric's name and the values of its labels."""
    return {
        " ".join([metric.name, *labels.values()]): value
        for metric in metrics
        for labels, value in metric.samples
    }


async def test_metrics_tell_where_all_messages_are() -> None:
    """The ledger balances in them; what waits has an age, and each reason a number."""
    broker, _, operations = holding()
    broker.connect("p2").publish("t/9", b"x")
    broker.advance(30)
    operations.drop_held("s")
    broker.connect("p3").publish("t/1", LARGE, qos=1)
    found = values(await operations.metrics())
    parts = ("delivered_total", "expired_total", "moved_total", "inflight", "withheld", "queued")
    n_found = sum(found[f"messages_{name}"] for name in parts)
    assert found["messages_matched_total"] == n_found + found["messages_dropped_total operator"]
    assert found["messages_dropped_total operator"] == 4
    assert (found["messages_withheld"], found["withheld_sessions"]) == (1, 1)
    assert found["queued_bytes"] == len(LARGE)
    broker.advance(5)
    assert values(await operations.metrics())["oldest_message_age_seconds"] >= 5


async def test_sessions_above_half_of_their_limit_are_counted() -> None:
    """They are the ones that lose messages next."""
    broker = VirtualBroker(Limits(queued_messages=4))
    for name in ("s", "t"):
        broker.connect(name, clean_start=False, properties=STAYS).subscribe(name, 1)
    for name in ("s", "t"):
        broker.session(name).client.close(0, broker.now)  # type: ignore[union-attr,arg-type]
    publisher = broker.connect("p")
    for number in range(3):
        publisher.publish("s", b"x", qos=1, packet_id=number + 1)
    publisher.publish("t", b"x", qos=1, packet_id=9)
    found = values(await operations_on(broker).metrics())
    assert found["crowded_sessions"] == 1
    assert found["session_queue_limit_messages"] == 4


async def test_rtts_of_all_clients_are_one_histogram() -> None:
    """Of this moment, of clients that are connected; all slices are read."""
    broker = VirtualBroker()
    for number in range(2 * SLICE):
        client = broker.connect(f"c{number}")
        client.subscribe("t")
        broker.session(f"c{number}").link.rtt_latest = 0.2 if number else 3.0
    client.lose()
    found = values(await operations_on(broker).metrics())
    rtt = found["client_rtt_seconds"]
    assert isinstance(rtt, Histogram)
    buckets = rtt.buckets()
    assert (buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (0, 2 * SLICE - 2, 2 * SLICE - 1)
    assert found["listener_clients default"] == found["clients_connected"] == 2 * SLICE - 1


async def test_metrics_have_names_by_the_conventions() -> None:
    """Each once, with a sentence; counters end in _total, and no metric's name is another's."""
    _, _, operations = holding()
    metrics = await operations.metrics()
    names = [metric.name for metric in metrics]
    families = [name.removesuffix("_total") for name in names]
    assert len(set(families)) == len(families)
    for metric in metrics:
        assert metric.help
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert not {"client_id", "topic", "client"} & {
            label for sample in metric.samples for label in sample.labels
        }


async def test_a_broker_on_the_network_measures_its_loop_and_its_commits(tmp_path: Path) -> None:
    """The lag only where something shows it; a commit when a durable session changes."""
    async with serving(persistence={"path": str(tmp_path / "s.db")}) as server:
        operations = operations_of(server)
        found = values(await operations.metrics())
        assert "event_loop_lag_seconds" not in found
        operations.watch()
        operations.start()
        client = await connected(port_of(server), "s", clean_start=False, properties=STAYS)
        await client.subscribe("t", 1)

        found = values(await operations.metrics())
        assert sum(found["persistence_commit_seconds"].counts) > 0  # SUBACK came after it
        lag = found["event_loop_lag_seconds"]
        await until(lambda: sum(lag.counts))
        client.close()
        found = values(await operations.metrics())
        assert found["memory_process_bytes"] > 0
        assert found["memory_process_limit_bytes"] > found["memory_process_bytes"]
        assert found["persistence_failing"] == 0
        (info,) = [one for one in await operations.metrics() if one.name == "build_info"]
        assert info.samples[0].labels["version"]


async def test_plugins_bring_their_metrics_and_one_that_fails_takes_no_others() -> None:
    """The queue's depth and lag by group, its dead letters."""
    queues = {
        "work": {"topics": ["work/#"], "groups": {"g": {"dead_letter_queue": "dead"}}},
        "dead": {},
    }
    plugin = {"engine": "memory", "http": None, "queues": queues}
    async with (
        serving(plugins={"queue": plugin}) as server,
        await connected(port_of(server), "p") as publisher,
    ):
        await publisher.publish("work/1", b"x")
        operations = operations_of(server)
        found = values(await operations.metrics())
        assert found["queue_depth_messages work"] == 1
        assert found["queue_lag_messages work g"] == 1
        assert found["queue_dead_letter_messages dead"] == 0
        assert found["sink_stored_total work"] == 1
        server._plugins.by_name["queue"].figures = _fail  # type: ignore[method-assign]
        found = values(await operations.metrics())
        assert "queue_depth_messages work" not in found
        assert "messages_matched_total" in found
        assert server.core.counters.extension_errors == {"queue": 1}


def _fail() -> list[Metric]:
    raise RuntimeError("no figures")


async def test_uplinks_tell_their_age_by_lane() -> None:
    """How long the oldest message waits for a cloud that is away, and why it is away."""
    uplinks = {"cloud": {"upstream": {"address": "127.0.0.1:9"}, "up": [{"filter": "#"}]}}
    plugins = {"uplink": {"site": "berlin", "uplinks": uplinks}}
    async with (
        serving(plugins=plugins) as server,
        await connected(port_of(server), "p") as publisher,
    ):
        await publisher.publish("alarm", b"x")
        operations = operations_of(server)
        await until(lambda: operations.uplinks()[0].lanes[0].why)
        (uplink,) = operations.uplinks()
        assert (uplink.name, uplink.is_connected) == ("cloud", False)
        small = uplink.lanes[0]
        assert (small.waiting, small.waiting_bytes) == (1, 1)
        assert small.oldest_seconds is not None
        found = values(await operations.metrics())
        assert found["uplink_connected cloud "] == 0
        assert found["uplink_waiting_messages cloud "] == 1
        assert found["uplink_oldest_message_age_seconds cloud "] >= 0


async def test_every_metric_is_documented() -> None:
    """Who sees a number on a board can look up what it counts."""
    text = DOCUMENTATION.read_text()
    queues = {"work": {"topics": ["work/#"]}}
    plugins = {"queue": {"engine": "memory", "http": None, "queues": queues}, "memory": SPILL}
    async with serving(plugins=plugins) as server:
        operations = operations_of(server)
        operations.watch()
        names = [metric.name for metric in await operations.metrics()]
    assert "queue_depth_messages" in names
    assert "payload_store_memory_bytes" in names
    assert [name for name in names if f"`{name}`" not in text] == []
