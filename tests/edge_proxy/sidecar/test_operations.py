from __future__ import annotations

import logging

import pytest

from penstock.broker.mqtt.packets import ConnAck, Connect, PubAck, Publish
from penstock.edge_proxy.sidecar.operations import ProxyOperations
from penstock.edge_proxy.sidecar.proxy_state import describe_large
from penstock.edge_proxy.upstream import Upstreams
from penstock.edge_proxy.upstream_config import UpstreamKeys
from penstock.plugins.probing import sampler as probing_sampler
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import DOWN, LARGE_BYTES, UP, VirtualClient, publish, withholding

LARGE = b"x" * (LARGE_BYTES + 1)


def reports_of(proxied: VirtualClient) -> ProxyOperations:
    """Return what the console can ask."""
    reports = ProxyOperations(lambda: proxied.now)
    reports.attach(proxied.shared)
    return reports


def test_a_client_is_told_while_it_is_there_and_after_it_has_gone() -> None:
    """Why its picture was held, in a proxy as in a broker; payloads are not kept for it."""
    gate = SwitchGate(LARGE_BYTES)
    proxied = VirtualClient.connected(gate=gate)
    reports = reports_of(proxied)
    proxied.broker_sends(Publish("cam", LARGE, qos=1, packet_id=1))
    assert reports.client_ids() == ["c"]
    found = reports.report("c")
    assert found is not None
    assert (found.is_connected, found.gone_seconds, found.subscriptions) == (True, None, None)
    assert found.withholding.last_decision is not None
    assert found.withholding.last_decision.outcome == "held"
    assert (found.ledger.matched, found.ledger.withheld) == (1, 1)
    proxied.proxied.connection_lost(UP, proxied.now)
    proxied.now += 12
    assert reports.client_ids() == []
    gone = reports.report("c")
    assert gone is not None
    assert (gone.is_connected, gone.gone_seconds) == (False, 12.0)
    assert [(one.outcome, one.topic) for one in gone.withholding.recent] == [("held", "cam")]
    assert gone.ledger.queued_bytes == 0
    assert reports.report("unknown") is None


def test_a_newer_connection_of_a_client_is_the_one_that_is_told() -> None:
    """The broker ends the older one, which has nothing to say about the newer."""
    old = VirtualClient.connected()
    new = VirtualClient.connected(shared=old.shared)
    reports = reports_of(new)
    old.proxied.connection_lost(UP, old.now)
    found = reports.report("c")
    assert found is not None
    assert found.is_connected
    new.proxied.connection_lost(UP, new.now)
    found = reports.report("c")
    assert found is not None
    assert not found.is_connected


def test_the_account_of_a_slow_client_balances() -> None:
    """Small messages of QoS 0 wait as bytes, apart from the outbox, and are told as queued."""
    proxied = VirtualClient.connected()
    reports = reports_of(proxied)
    proxied.broker_sends(publish("small"))
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(publish("small", 3), publish("small", 4))
    assert proxied.proxied.client.qos0_backlog.n_messages == 2
    found = reports.report("c")
    assert found is not None
    ledger = found.ledger
    assert (ledger.matched, ledger.delivered, ledger.queued, ledger.queued_bytes) == (3, 1, 2, 7)
    assert ledger.waits_for == "waiting for room"


def test_clients_without_an_identifier_are_known_by_their_addresses() -> None:
    """MQTT 3.1.1 does not tell which one the broker has given; each of them counts."""
    first = VirtualClient(4, peer="test:1")
    others = [VirtualClient(4, shared=first.shared, peer=f"test:{port}") for port in (2, 3)]
    reports = reports_of(first)
    for proxied in (first, *others):
        proxied.client_sends(Connect(protocol_version=4))
        proxied.proxied.broker_connected()
        proxied.broker_sends(ConnAck())
    assert reports.client_ids() == ["test:1", "test:2", "test:3"]
    assert str(first.proxied) == "client at test:1"
    others[0].proxied.connection_lost(UP, first.now)
    gone = reports.report("test:2")
    assert gone is not None
    assert not gone.is_connected


def test_the_state_of_the_proxy_says_where_all_messages_are() -> None:
    """What is there and what has gone together; what a client has not acknowledged has moved."""
    first, _ = withholding()
    second = VirtualClient(shared=first.shared, peer="test:2")
    second.client_sends(Connect(client_id="d"))
    second.proxied.broker_connected()
    second.broker_sends(ConnAck(), publish("small", packet_id=1), publish("small", packet_id=2))
    second.client_sends(PubAck(1))
    upstreams = Upstreams(UpstreamKeys(address="broker.example"), logging.getLogger("test"))
    reports = ProxyOperations(lambda: first.now)
    reports.attach(first.shared, upstreams)
    there = {"matched": 3, "delivered": 1, "inflight": 1, "withheld": 1, "queued": 0, "expired": 0}
    state = reports.proxy()
    assert state is not None
    assert state["messages"] == {**there, "moved": 0, "dropped": {}}
    assert state["clients"] == {"connected": 2, "gone": 0, "refused": {}}
    for proxied in (first, second):
        proxied.proxied.connection_lost(UP, first.now)
    state = reports.proxy()
    assert state is not None
    gone = {**there, "inflight": 0, "withheld": 0, "moved": 2, "dropped": {}}
    assert state["messages"] == gone
    assert state["clients"] == {"connected": 0, "gone": 2, "refused": {}}


def test_large_messages_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters and histograms are the broker's; a log at the end has them on one line."""
    gate = SwitchGate(LARGE_BYTES)
    monkeypatch.setattr(probing_sampler, "SPACING_SECONDS", 0.0)
    sampler = RttSampler(ProbingConfig(sources=("puback",)), logging.getLogger("test"))
    proxied = VirtualClient.connected(gate=gate, samplers=(sampler,))
    reports = reports_of(proxied)
    assert describe_large(reports.withholding()) == ""
    proxied.broker_sends(Publish("cam", LARGE, qos=1, packet_id=1))
    proxied.now += 2
    gate.is_open = True
    proxied.proxied.handle_timeout(proxied.now)
    proxied.settle()
    proxied.now += 1
    proxied.client_sends(PubAck(1))
    proxied.broker_sends(Publish("alarm", b"x", qos=1, packet_id=2))
    proxied.now += 0.2
    proxied.client_sends(PubAck(2))
    assert describe_large(reports.withholding()).split("; ") == [
        "decisions_total SwitchGate held other: 1",
        "decisions_total SwitchGate released other: 1",
        "sojourn_seconds SwitchGate: 1, mean 2",
        "latency_seconds large acknowledged calm: 1, mean 3",
        "latency_seconds small acknowledged calm: 1, mean 0.2",
    ]
