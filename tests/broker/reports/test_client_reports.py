from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.client_report import (
    MOST_FILTER_CHARACTERS,
    ClientReport,
    DecisionFigures,
    TcpFigures,
)
from penstock.broker.link import Link, TcpLook
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.reports.client_reports import report, subject_of
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker

LARGE = b"x" * 200


class Gate(SwitchGate):
    """A gate with an RTT above which it takes the path for congested."""

    threshold: float | Exception = 0.25

    def __init__(self) -> None:
        super().__init__(look_again_after=2.0)

    def threshold_l(self, link: Link) -> float:
        """Return, or raise, what the test has set."""
        del link
        if isinstance(self.threshold, Exception):
            raise self.threshold
        return self.threshold


def told(broker: VirtualBroker, client_id: str = "s") -> ClientReport:
    """Return what is reported of a client now."""
    return report(subject_of(broker.session(client_id)), broker.now)


def publish(broker: VirtualBroker, payload: bytes, **options: Any) -> None:
    """Publish to `t` from a client of its own."""
    publisher = broker.connect("p")
    publisher.publish("t", payload, **options)


def test_a_client_of_which_nothing_is_known_has_empty_figures() -> None:
    """No gate with a threshold, no RTT, no large message: None, not a guess."""
    broker = VirtualBroker()
    broker.connect("s", username="joe")
    found = told(broker)
    assert found[:5] == ("s", True, None, "joe", found.listener)
    link = found.link
    assert (link.rtt_latest, link.rtt_age_seconds, link.rtt_source) == (None, None, "")
    assert (link.threshold_l, link.outstanding_age_seconds, link.tcp) == (None, None, None)
    assert found.withholding == (0, 0, 0, None, None, [], None, None)
    assert found.ledger == (0, 0, 0, 0, 0, 0, 0, {}, 0, "empty")


def test_the_link_is_told_with_ages_of_its_figures() -> None:
    """When an estimate was made is what tells whether it still means anything."""
    broker = VirtualBroker(gate=Gate())
    broker.connect("s")
    link = broker.session("s").link
    link.rtt_latest, link.rtt_source, link.rtt_bytes = 0.81234567, "puback", 100
    link.rtt_min = 0.1
    link.rtt_updated_at, link.outstanding_since = broker.now - 1.5, broker.now - 0.5
    link.outstanding_bytes, link.unsent_bytes = 100, 4_000
    look = link.tcp = TcpLook(broker.now - 0.25)
    look.delivery_rate, look.retransmissions, look.retransmit_ratio = 9_000, 7, 0.125
    look.congestion_control = "bbr"
    found = told(broker).link
    assert found[:6] == (0.812346, "puback", 100, 1.5, 0.1, 0.25)
    assert found[6:9] == (4_000, 0.5, 100)
    assert found.tcp == TcpFigures(0.25, None, None, 9_000, False, 0, 0, 7, 0.125, "bbr")


def test_nothing_is_unsent_where_there_is_no_connection() -> None:
    """What the last connection had not sent is gone with it."""
    broker = VirtualBroker()
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 9})
    broker.session("s").link.unsent_bytes = 4_000
    assert told(broker).link.unsent_bytes == 4_000
    client.lose()
    assert told(broker).link.unsent_bytes == 0
    assert not told(broker).is_connected


def test_nothing_is_told_of_the_last_connection_as_if_it_were_there() -> None:
    """A client that is away has no path that is good or bad, and nothing on its way."""
    broker = VirtualBroker(gate=Gate())
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 90})
    client.subscribe("t", 1)
    link = broker.session("s").link
    link.rtt_latest, link.rtt_min, link.rtt_source = 0.8, 0.1, "puback"
    link.rtt_updated_at = link.outstanding_since = broker.now
    link.outstanding_bytes = 100
    link.tcp = TcpLook(broker.now)
    publish(broker, LARGE, qos=1)
    broker.advance(0.5)
    client.lose()
    broker.advance(30)
    found = told(broker)
    assert (found.link.rtt_latest, found.link.rtt_min) == (None, 0.1)
    assert (found.link.outstanding_age_seconds, found.link.outstanding_bytes) == (None, 0)
    assert (found.link.rtt_age_seconds, found.link.tcp) == (30.5, None)
    assert found.withholding.look_again_in_seconds is None
    assert found.withholding.last_decision is not None
    assert found.withholding.last_decision.withheld_seconds < 1
    assert found.ledger.waits_for == "not connected"


def test_a_held_message_is_told_with_its_wait_so_far_and_then_as_sent() -> None:
    """Topic, size, reason, how long, and when the gate is asked again at the latest."""
    gate = Gate()
    broker = VirtualBroker(gate=gate)
    broker.connect("s").subscribe("t", 1)
    publish(broker, LARGE, qos=1)
    publish(broker, b"behind", qos=1)
    broker.advance(0.5)
    held = told(broker)
    assert held.withholding.last_decision == DecisionFigures(
        "held", "closed", "other", "t", 200, 0.5, 0.5
    )
    assert held.withholding[:4] == (2, 1, 0, 1.5)
    assert (held.ledger.withheld, held.ledger.queued, held.ledger.queued_bytes) == (2, 0, 206)
    assert held.ledger.waits_for == "withheld: closed"
    gate.is_open = True
    broker.advance(2.5)
    sent = told(broker)
    assert sent.withholding.last_decision == DecisionFigures(
        "sent", "open", "other", "t", 200, 2.0, 1.0
    )
    assert sent.withholding[:4] == (0, 1, 1, None)
    assert (sent.ledger.matched, sent.ledger.inflight) == (2, 2)


def test_a_held_message_that_expired_is_told_as_gone() -> None:
    """It was not sent, and nothing waits: why it was held is still worth knowing."""
    broker = VirtualBroker(gate=Gate())
    broker.connect("s").subscribe("t", 1)
    publish(broker, LARGE, qos=1, properties={"message_expiry_interval": 1})
    broker.advance(3)
    found = told(broker)
    assert found.withholding.last_decision is not None
    assert found.withholding.last_decision.outcome == "gone"
    assert found.withholding.last_decision.reason == "closed"
    assert found.withholding.look_again_in_seconds is None
    assert found.ledger.expired == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_the_ledger_of_a_client_balances(qos: int) -> None:
    """Matched = delivered + inflight + withheld + queued + expired + moved + dropped."""
    broker = VirtualBroker(gate=Gate())
    client = broker.connect("s", clean_start=False, properties={"session_expiry_interval": 9})
    client.subscribe("t", 1)
    for payload in (b"a", LARGE, b"b"):
        publish(broker, payload, qos=qos)
    client.lose()
    publish(broker, b"c", qos=qos)
    ledger = told(broker).ledger
    assert ledger.matched == 4
    assert ledger.matched == sum(ledger[1:7]) + sum(ledger.dropped.values())


def test_a_gate_that_fails_has_no_threshold() -> None:
    """A plugin's fault is counted and does not spoil the report."""
    gate = Gate()
    gate.threshold = ValueError("broken")
    broker = VirtualBroker(gate=gate)
    broker.connect("s")
    assert told(broker).link.threshold_l is None
    assert broker.core.counters.extension_errors == {"Gate": 1}


def test_plugins_see_every_session_and_no_other() -> None:
    """Clients that are away have a report, those that never were have none."""
    broker = VirtualBroker()
    reports = BrokerOperations(lambda: broker.now)
    reports.attach(broker.core)
    broker.connect("s", clean_start=False, properties={"session_expiry_interval": 9}).lose()
    broker.connect("t")
    assert sorted(reports.client_ids()) == ["s", "t"]
    assert reports.report("s") == told(broker)
    assert reports.report("u") is None


def test_subscriptions_are_counted_by_their_size_class() -> None:
    """Shared ones too."""
    broker = VirtualBroker()
    client = broker.connect("s")
    for number, sizes in enumerate(("small", "small", "large", None)):
        pairs = [] if sizes is None else [("penstock-size", sizes)]
        client.subscribe(f"$share/{number}/t", properties={"user_property": pairs})
    filters = [f"$share/{number}/t" for number in range(4)]
    assert told(broker).subscriptions == (4, 2, 1, filters)


def test_a_report_names_as_many_topic_filters_as_it_has_room_for() -> None:
    """A client with thousands of subscriptions does not make a report of megabytes."""
    broker = VirtualBroker()
    client = broker.connect("s")
    for number in range(5):
        client.subscribe(f"{number}{'x' * (MOST_FILTER_CHARACTERS // 4)}")
    figures = told(broker).subscriptions
    assert figures is not None
    assert (figures.total, [name[0] for name in figures.filters]) == (5, ["0", "1", "2"])
