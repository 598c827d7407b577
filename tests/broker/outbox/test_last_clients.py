from __future__ import annotations

from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.outbox.last_clients import (
    MAX_CLIENTS,
    MAX_NAME_CHARACTERS,
    MAX_TOPIC_CHARACTERS,
)
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker

LARGE = b"x" * 200


def reports_of(broker: VirtualBroker) -> BrokerOperations:
    """Return what a plugin can ask."""
    reports = BrokerOperations(lambda: broker.now)
    reports.attach(broker.core)
    return reports


def test_a_client_that_has_gone_is_told_with_its_last_decisions() -> None:
    """Why a message was held is asked after the client has failed."""
    gate = SwitchGate()
    broker = VirtualBroker(gate=gate)
    client = broker.connect("s", username="joe")
    client.subscribe("t")
    publisher = broker.connect("p")
    publisher.publish("t", LARGE)
    broker.advance(2)
    gate.is_open = True
    broker.advance(1)
    gate.is_open = False
    publisher.publish("t", LARGE)
    broker.advance(1)
    client.lose()
    broker.advance(30)
    reports = reports_of(broker)
    found = reports.report("s")
    assert found is not None
    assert (found.is_connected, found.gone_seconds, found.username) == (False, 30.0, "joe")
    assert found.subscriptions is None
    assert found.withholding.last_decision is not None
    assert found.withholding.last_decision.outcome == "gone"
    assert [(one.outcome, one.reason) for one in found.withholding.recent] == [
        ("held", "closed"),
        ("sent", "open"),
        ("held", "closed"),
    ]
    assert (found.ledger.matched, found.ledger.delivered) == (2, 1)
    assert found.ledger.dropped == {"connection_lost": 1}
    assert reports.client_ids() == ["p"]
    broker.connect("s")
    again = reports.report("s")
    assert again is not None
    assert (again.gone_seconds, again.withholding.recent) == (None, [])


def test_the_last_clients_are_remembered_and_no_others() -> None:
    """Bounded by number, and by the length of names and topics that clients make up."""
    broker = VirtualBroker(gate=SwitchGate())
    reports = reports_of(broker)
    for number in range(MAX_CLIENTS + 1):
        broker.connect(f"c{number}").lose()
    assert reports.report("c0") is None
    assert reports.report("c1") is not None
    broker.connect("c1").lose()
    broker.connect("more").lose()
    assert reports.report("c1") is not None
    assert reports.report("c2") is None
    long = "c" * (MAX_NAME_CHARACTERS + 1)
    broker.connect(long).lose()
    assert reports.report(long) is None


def test_clients_of_which_nothing_was_held_are_evicted_first() -> None:
    """Any number of short-lived ones does not push out the client that is asked about."""
    broker = VirtualBroker(gate=SwitchGate())
    publisher = broker.connect("p")
    for name in ("s", "s2"):
        client = broker.connect(name)
        client.subscribe("t")
        publisher.publish("t", LARGE)
        client.lose()
    reports = reports_of(broker)
    for number in range(MAX_CLIENTS + 1):
        broker.connect(f"c{number}").lose()
    assert reports.report("s") is not None
    assert reports.report("c2") is None
    assert reports.report("c3") is not None
    # Of clients that had messages held, the oldest goes; one that was back without is no such one.
    broker.connect("s").lose()
    for number in range(MAX_CLIENTS):
        broker.connect(f"d{number}").lose()
    assert reports.report("s") is None
    assert reports.report("s2") is not None


def test_a_long_topic_of_a_decision_is_cut() -> None:
    """It may have 65,535 bytes, and each client several."""
    broker = VirtualBroker(gate=SwitchGate())
    client = broker.connect("s")
    client.subscribe("#")
    broker.connect("p").publish("t" * 60_000, LARGE)
    client.lose()
    found = reports_of(broker).report("s")
    assert found is not None
    assert [one.topic for one in found.withholding.recent] == ["t" * MAX_TOPIC_CHARACTERS + "..."]


def test_a_decision_on_a_gone_client_outlives_many_holds_by_the_last_five() -> None:
    """The report of a client with many holds has the newest ones."""
    broker = VirtualBroker(gate=SwitchGate(most_seconds=1.0))
    broker.connect("s").subscribe("#")
    publisher = broker.connect("p")
    for number in range(4):
        publisher.publish(f"t/{number}", LARGE)
        broker.advance(5)
    found = reports_of(broker).report("s")
    assert found is not None
    topics = [(one.outcome, one.topic) for one in found.withholding.recent]
    assert topics == [
        ("sent", "t/1"),
        ("held", "t/2"),
        ("sent", "t/2"),
        ("held", "t/3"),
        ("sent", "t/3"),
    ]


def test_a_client_that_nothing_was_sent_to_is_remembered_too() -> None:
    """Whoever asks for it learns when it has gone; its newest visit is the one that counts."""
    broker = VirtualBroker()
    reports = reports_of(broker)
    broker.connect("c", username="joe").lose()
    broker.advance(5)
    found = reports.report("c")
    assert found is not None
    assert (found.gone_seconds, found.username, found.ledger.matched) == (5.0, "joe", 0)
    client = broker.connect("c")
    client.subscribe("t")
    client.publish("t", b"x")
    client.lose()
    found = reports.report("c")
    assert found is not None
    assert (found.username, found.ledger.matched) == (None, 1)
    broker.connect("n" * (MAX_NAME_CHARACTERS + 1)).lose()
    assert reports.report("n" * (MAX_NAME_CHARACTERS + 1)) is None
    for number in range(MAX_CLIENTS):
        broker.connect(f"c{number}").lose()
    assert reports.report("c") is None
    assert reports.report("c0") is not None
