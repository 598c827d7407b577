from __future__ import annotations

from pathlib import Path

from broker.ledger import DROP_REASONS
from broker.mqtt.packets import Publish
from broker.sys_topics import SysTopics
from tests.helpers.virtual import VirtualBroker

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def figures(broker: VirtualBroker) -> dict[str, str]:
    """Return the figures by topic."""
    return dict(SysTopics(broker.core, "1.2.3", 1000.0).figures(broker.now))


def test_figures_are_those_of_the_core() -> None:
    """What mosquitto's and aMQTT's dashboards read, by their names."""
    broker = VirtualBroker()
    client = broker.connect("s")
    client.subscribe("t", 1)
    publisher = broker.connect("p")
    publisher.publish("t", b"x", retain=True)
    publisher.publish("t", b"y", qos=1)
    publisher.lose()
    broker.advance(60)
    found = figures(broker)
    assert found["version"] == "Penstock 1.2.3"
    assert found["uptime"] == "60"
    assert found["clients/connected"] == "1"
    assert found["messages/publish/received"] == "2"
    assert found["messages/publish/sent"] == "2"
    assert found["retained messages/count"] == "1"
    assert found["subscriptions/count"] == "1"


def test_every_figure_of_ours_and_every_reason_is_documented() -> None:
    """Who sees a number in a dashboard can look up what it counts."""
    text = DOCUMENTATION.read_text()
    named = [
        name.removeprefix("penstock/") for name in figures(VirtualBroker()) if "penstock/" in name
    ]
    assert named
    assert [name for name in (*named, *DROP_REASONS) if f"`{name}`" not in text] == []


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


def test_only_what_has_changed_is_published_again() -> None:
    """A watcher of $SYS gets news, not a flood; a new one gets everything, retained."""
    broker = VirtualBroker()
    topics = SysTopics(broker.core, "1", broker.now)
    topics.publish(broker.now)
    client = broker.connect("s")
    client.subscribe("$SYS/#")
    everything = {packet.topic for packet in client.take_all(Publish)}
    assert "$SYS/broker/version" in everything
    broker.advance(1)
    topics.publish(broker.now)
    broker.settle()
    news = {packet.topic for packet in client.take_all(Publish)}
    assert "$SYS/broker/uptime" in news
    assert "$SYS/broker/version" not in news


def test_beside_amqtts_plugin_only_our_own_names_are_published() -> None:
    """The same name must not carry bytes from one and megabytes from the other."""
    broker = VirtualBroker()
    topics = SysTopics(broker.core, "1", 0.0, has_common=False)
    assert all(name.startswith("penstock/") for name, _ in topics.figures(broker.now))


def test_faults_are_published_by_name() -> None:
    """What plugins and peers did wrong can be seen from outside."""
    broker = VirtualBroker()
    broker.connect("c").send_bytes(b"\xff\xff\xff\xff\xff")
    broker.core.on_extension_error("Plugin", ValueError())
    found = figures(broker)
    assert found["penstock/peer_errors/0x81"] == "1"
    assert found["penstock/extension_errors/Plugin"] == "1"
