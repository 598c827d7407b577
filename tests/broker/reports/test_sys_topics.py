from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.counters import Histogram, Metric, Sample
from penstock.broker.extensions import PayloadStore, Plugin, PluginContext
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.outbox.message_counts import DROP_REASONS
from penstock.broker.reports.sys_topics import ROOT, SysTopics
from penstock.broker.reports.totals import SLICE
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker

DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "reference" / "sys-topics.md"


def figures(broker: VirtualBroker, **options: Any) -> dict[str, str]:
    """Return the figures by their topic below $SYS/broker/, all published now."""
    SysTopics(broker.core, "1.2.3", 1000.0, **options).start(broker.now, 10.0)
    broker.advance(0)
    retained = broker.core.retained.by_topic
    return {
        topic.removeprefix(ROOT): message.read_payload().decode()
        for topic, message in retained.items()
        if topic.startswith(ROOT)
    }


class Uplinks(Plugin):
    """A plugin with figures, unless it fails."""

    is_well = True

    def figures(self) -> list[Metric]:
        """Return a state with a lane that has no name, and a counter with reasons."""
        if not self.is_well:
            raise RuntimeError("no figures")
        labels = {"uplink": "cloud", "lane": ""}
        dropped = Sample({**labels, "reason": "a+b"}, 2)
        age = Sample({"uplink": "cloud", "lane": "large"}, 1.5)
        return [
            Metric("connected", "gauge", "", [Sample(labels, 1)]),
            Metric("dropped_total", "counter", "", [dropped]),
            Metric("age_seconds", "gauge", "", [age]),
            Metric("time_seconds", "histogram", "", [Sample({}, Histogram((1.0,)))]),
        ]


def test_figures_of_a_plugin_stand_below_its_name() -> None:
    """Below its labels the name, and below that the reason; a fault takes the others nothing."""
    plugin = Uplinks(None, PluginContext(logging.getLogger("test"), "", lambda: 0.0))
    broker = VirtualBroker()
    found = figures(broker, plugins={"uplink": plugin})
    assert {name: value for name, value in found.items() if "uplink" in name} == {
        "penstock/uplink/cloud/connected": "1",
        "penstock/uplink/cloud/dropped/a-b": "2",
        "penstock/uplink/cloud/large/age_seconds": "1.5",
    }
    plugin.is_well = False
    broker.advance(10)
    assert broker.core.counters.extension_errors == {"uplink": 1}


def test_figures_are_those_of_the_core() -> None:
    """What mosquitto's and aMQTT's dashboards read, by their names."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 1)
    publisher = broker.connect("p")
    publisher.publish("t", b"x", retain=True)
    publisher.publish("t", b"y", qos=1)
    publisher.lose()
    away = broker.connect("away", clean_start=False, properties={"session_expiry_interval": 9})
    away.subscribe("$share/group/u", 1)
    away.lose()
    client.subscribe("$share/group/u", 1)
    broker.advance(60)
    found = figures(broker)
    assert found["version"] == "Penstock 1.2.3"
    assert found["uptime"] == "60 seconds"
    assert (found["clients/connected"], found["clients/maximum"]) == ("1", "2")
    assert (found["shared_subscriptions/count"], found["clients/expired"]) == ("1", "1")
    assert found["publish/messages/dropped"] == "0"
    assert int(found["store/messages/count"]) > 1
    assert found["load/sockets/1min"] == "0.00"
    assert found["messages/publish/received"] == "2"
    assert found["messages/publish/sent"] == "2"
    assert found["subscriptions/count"] == "2"
    broker.advance(10)
    of_all = broker.core.retained.by_topic[f"{ROOT}retained messages/count"]
    assert of_all.read_payload() == b"%d" % (1 + len(found))


def test_what_a_plan_starts_from_is_published() -> None:
    """A plan compares the present settings with those that it recommends."""
    gate = SwitchGate()
    broker = VirtualBroker(Limits(queued_messages=123, connections=7), gate=gate)
    found = figures(broker)
    assert found["penstock/withholding/policy"] == "SwitchGate"
    assert found["penstock/withholding/probe_period"] == "1"
    assert (found["penstock/limits/queued_messages"], found["penstock/limits/connections"]) == (
        "123",
        "7",
    )
    assert int(found["penstock/machine/cores"]) > 0
    assert int(found["penstock/machine/memory_bytes"]) > int(found["heap/size"])
    assert float(found["penstock/process/processor_seconds"]) > 0


def test_every_figure_of_ours_and_every_reason_is_documented() -> None:
    """Who sees a number in a dashboard can look up what it counts."""
    text = DOCUMENTATION.read_text()
    broker = VirtualBroker(Limits().for_memory(1 << 30))
    named = [name.removeprefix("penstock/") for name in figures(broker) if "penstock/" in name]
    assert named
    assert [name for name in (*named, *DROP_REASONS) if f"`{name}`" not in text] == []


def test_decisions_about_large_messages_are_published_by_policy_outcome_and_cause() -> None:
    """Counters and histograms have a topic for each of their values."""
    gate = SwitchGate()
    broker = VirtualBroker(gate=gate)
    broker.connect("s").subscribe("t")
    broker.connect("p").publish("t", b"x" * 200)
    broker.advance(3)
    gate.is_open = True
    broker.advance(1)
    root = "penstock/withholding/"
    found = {
        name.removeprefix(root): value
        for name, value in figures(broker).items()
        if name.startswith(root)
    }
    assert found["decisions_total/SwitchGate/held/other"] == "1"
    assert found["decisions_total/SwitchGate/released/other"] == "1"
    assert found["sojourn_seconds/SwitchGate/le/2.5"] == "0"
    assert found["sojourn_seconds/SwitchGate/le/5"] == "1"
    assert found["sojourn_seconds/SwitchGate/le/Inf"] == "1"
    assert found["sojourn_seconds/SwitchGate/count"] == "1"
    assert float(found["sojourn_seconds/SwitchGate/sum"]) == pytest.approx(4, abs=1)
    assert found["latency_seconds/large/sent/calm/count"] == "1"


def test_the_ledger_is_published_and_balances() -> None:
    """Messages matched = delivered + inflight + withheld + queued + expired + dropped."""
    broker = VirtualBroker()
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 9})
    client.subscribe("t", 1)
    publisher = broker.connect("p")
    for qos in (0, 1):
        publisher.publish("t", b"x", qos=qos)
    client.lose()
    for qos in (0, 1):
        publisher.publish("t", b"x", qos=qos)
    ledger = {
        name.removeprefix("penstock/ledger/"): int(value)
        for name, value in figures(broker).items()
        if name.startswith("penstock/ledger/")
    }
    assert ledger["matched"] == 4
    assert ledger["dropped/offline"] == 1
    parts = ("delivered", "inflight", "withheld", "queued", "expired", "dropped/offline")
    assert ledger["matched"] == sum(ledger[part] for part in parts)


def ledger_now(broker: VirtualBroker) -> dict[str, int]:
    """Return the published ledger."""
    root = f"{ROOT}penstock/ledger/"
    return {
        topic.removeprefix(root): int(message.read_payload())
        for topic, message in broker.core.retained.by_topic.items()
        if topic.startswith(root)
    }


def places(ledger: dict[str, int]) -> int:
    """Return the sum of all places a message may be in."""
    drops = sum(n for name, n in ledger.items() if name.startswith("dropped/"))
    kept = ("delivered", "inflight", "withheld", "queued", "expired", "moved")
    return drops + sum(ledger[name] for name in kept)


def test_the_ledger_of_very_many_sessions_is_added_up_in_turns() -> None:
    """Others are served in between; whoever comes, goes or gets messages then, it balances."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    clients = [broker.connect(f"s{n}") for n in range(5 * SLICE)]
    for client in clients:
        client.subscribe("t", 1)
    publisher.publish("t", b"before", qos=1)
    SysTopics(broker.core, "1", broker.now).start(broker.now, 10.0)
    n_turns = 0
    while not ledger_now(broker):
        n_turns += 1
        publisher.publish("t", b"meanwhile", qos=1)
        for client in (clients[0], clients[-1]):  # one that was read, one that was not
            client.lose()
            clients.remove(client)
        broker.connect(f"new{n_turns}").subscribe("t", 1)
        broker.core.timers.run(broker.now)
    assert n_turns == 5
    during = ledger_now(broker)
    assert during["matched"] == places(during) > 5 * SLICE
    broker.advance(10)
    after = ledger_now(broker)
    assert after["matched"] == places(after) == broker.core.ledger().matched
    counted = ("matched", "delivered", "dropped/session_ended")
    assert all(during.get(name, 0) <= after[name] for name in counted)


def test_only_what_has_changed_is_published_again() -> None:
    """A watcher of $SYS gets news, not a flood; a new one gets everything, retained."""
    broker = VirtualBroker()
    SysTopics(broker.core, "1", broker.now).start(broker.now, 10.0)
    client = broker.connect("s")
    client.subscribe("$SYS/#")
    everything = {packet.topic for packet in client.take_all(Publish)}
    assert "$SYS/broker/version" in everything
    broker.advance(10)
    news = {packet.topic for packet in client.take_all(Publish)}
    assert "$SYS/broker/uptime" in news
    assert "$SYS/broker/version" not in news


def test_beside_amqtts_plugin_only_our_own_names_are_published() -> None:
    """One name must not carry bytes from one plugin and megabytes from the other."""
    found = figures(VirtualBroker(), has_common=False)
    assert found
    assert all(name.startswith("penstock/") for name in found)


def test_faults_are_published_by_name() -> None:
    """What plugins and peers did wrong can be seen from outside."""
    broker = VirtualBroker()
    broker.connect("c").send_bytes(b"\xff\xff\xff\xff\xff")
    broker.connect("d").send(PubAck(1), PubAck(1))
    broker.core.guard.failed("Plugin", ValueError())
    found = figures(broker)
    assert found["penstock/peer_errors/0x81"] == "1"
    assert found["penstock/unexpected_acknowledgements"] == "2"
    assert found["penstock/extension_errors/Plugin"] == "1"


class Store(PayloadStore):
    """A payload store with figures, unless it fails."""

    is_well = True

    def figures(self) -> dict[str, int]:
        """Return one."""
        if not self.is_well:
            raise RuntimeError("no figures")
        return {"disk_bytes": 7}


def test_figures_of_a_payload_store_are_published_and_a_fault_of_it_counted() -> None:
    """All other figures come nevertheless."""
    store = Store()
    broker = VirtualBroker(payload_store=store)
    assert figures(broker)["penstock/payload_store/disk_bytes"] == "7"
    store.is_well = False
    broker.advance(10.0)
    assert broker.core.counters.extension_errors == {"Store": 1}
    assert figures(broker)["penstock/extension_errors/Store"] == "2"


def test_figures_that_cannot_be_read_once_are_published_at_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One moment without files must not stop $SYS; it is counted there."""
    broker = VirtualBroker()
    is_failing = True

    def resident_bytes() -> int:
        if is_failing:
            raise OSError(24, "Too many open files")
        return 12_345

    monkeypatch.setattr("penstock.broker.reports.sys_topics.resident_bytes", resident_bytes)
    assert "heap/size" not in figures(broker)
    is_failing = False
    broker.advance(10)
    retained = broker.core.retained.by_topic
    assert retained[f"{ROOT}heap/size"].read_payload() == b"12345"
    assert retained[f"{ROOT}penstock/faults/$SYS"].read_payload() == b"1"
