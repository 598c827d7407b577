from __future__ import annotations

import logging

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.edge_proxy.sidecar.client_reports import ProxyReports
from penstock.edge_proxy.sidecar.shared import describe_large
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from tests.helpers.gates import SwitchGate
from tests.helpers.pairs import LARGE_BYTES, UP, VirtualPair

LARGE = b"x" * (LARGE_BYTES + 1)


def reports_of(pair: VirtualPair) -> ProxyReports:
    """Return what the console can ask."""
    reports = ProxyReports(lambda: pair.now)
    reports.attach(pair.shared)
    return reports


def test_a_client_is_told_while_it_is_there_and_after_it_has_gone() -> None:
    """Why its picture was held, in a proxy as in a broker; payloads are not kept for it."""
    gate = SwitchGate(LARGE_BYTES)
    pair = VirtualPair.connected(gate=gate)
    reports = reports_of(pair)
    pair.broker_sends(Publish("cam", LARGE, qos=1, packet_id=1))
    assert reports.client_ids() == ["c"]
    found = reports.report("c")
    assert found is not None
    assert (found.is_connected, found.gone_seconds, found.subscriptions) == (True, None, None)
    assert found.withholding.last_decision is not None
    assert found.withholding.last_decision.outcome == "held"
    assert (found.ledger.matched, found.ledger.withheld) == (1, 1)
    pair.pair.connection_lost(UP, pair.now)
    pair.now += 12
    assert reports.client_ids() == []
    gone = reports.report("c")
    assert gone is not None
    assert (gone.is_connected, gone.gone_seconds) == (False, 12.0)
    assert [(one.outcome, one.topic) for one in gone.withholding.recent] == [("held", "cam")]
    assert gone.ledger.queued_bytes == 0
    assert reports.report("unknown") is None


def test_a_newer_connection_of_a_client_is_the_one_that_is_told() -> None:
    """The broker ends the older one, which has nothing to say about the newer."""
    old = VirtualPair.connected()
    new = VirtualPair.connected(shared=old.shared)
    reports = reports_of(new)
    old.pair.connection_lost(UP, old.now)
    found = reports.report("c")
    assert found is not None
    assert found.is_connected
    new.pair.connection_lost(UP, new.now)
    found = reports.report("c")
    assert found is not None
    assert not found.is_connected


def test_large_messages_are_counted_and_timed() -> None:
    """The counters and histograms are the broker's; a log at the end has them on one line."""
    gate = SwitchGate(LARGE_BYTES)
    config = ProbingConfig(sources=("puback",), puback_spacing_seconds=0)
    sampler = RttSampler(config, logging.getLogger("test"))
    pair = VirtualPair.connected(gate=gate, samplers=(sampler,))
    reports = reports_of(pair)
    assert describe_large(reports.withholding()) == ""
    pair.broker_sends(Publish("cam", LARGE, qos=1, packet_id=1))
    pair.now += 2
    gate.is_open = True
    pair.pair.handle_timeout(pair.now)
    pair.settle()
    pair.now += 1
    pair.client_sends(PubAck(1))
    pair.broker_sends(Publish("alarm", b"x", qos=1, packet_id=2))
    pair.now += 0.2
    pair.client_sends(PubAck(2))
    assert describe_large(reports.withholding()).split("; ") == [
        "decisions_total SwitchGate held other: 1",
        "decisions_total SwitchGate released other: 1",
        "sojourn_seconds SwitchGate: 1, mean 2",
        "latency_seconds large acknowledged: 1, mean 3",
        "latency_seconds small acknowledged: 1, mean 0.2",
    ]
