from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.edge_proxy.sidecar.operations import ProxyOperations, totals_of
from penstock.edge_proxy.sidecar.proxy_state import describe_large
from penstock.edge_proxy.upstream import Upstreams
from penstock.edge_proxy.upstream_config import UpstreamKeys
from penstock.plugins.probing import sampler as probing_sampler
from penstock.plugins.probing.config import ProbingConfig
from penstock.plugins.probing.sampler import RttSampler
from tests.edge_proxy.sidecar.test_sidecar import running
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import DOWN, LARGE_BYTES, UP, VirtualClient, publish, withholding
from tests.helpers.scripted import open_client, until

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
    record = proxied.shared.outbox_rules.record
    assert describe_large(record.metrics()) == ""
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
    assert describe_large(record.metrics()).split("; ") == [
        "decisions_total SwitchGate held other: 1",
        "decisions_total SwitchGate released other: 1",
        "sojourn_seconds SwitchGate: 1, mean 2",
        "latency_seconds large acknowledged calm: 1, mean 3",
        "latency_seconds small acknowledged calm: 1, mean 0.2",
    ]


HOLDS = """
plugins:
  probing: {probe_period: 0.05}
  withholding: {policy: conservative, threshold_s: 100, threshold_l: 1.0e-9}
"""
"""Plugins that hold each message above 100 bytes as soon as the RTT is known."""


@asynccontextmanager
async def holding() -> AsyncIterator[tuple[ProxyOperations, Any, Any]]:
    """Run a proxy that holds a message of 200 bytes for `c`; its client, and the broker's side."""
    async with running(HOLDS) as (proxy, upstream):
        client = await open_client(proxy.addresses["default"], client_id="c")
        broker = await upstream.accepted()
        await client.receive()
        await until(lambda: proxy.shared.by_client_id["c"].link.rtt_latest is not None)
        broker.send(publish("cam", 200, packet_id=1))
        await until(lambda: totals_of(proxy.shared).ledger.withheld_total == 1)
        yield proxy._operations, client, broker


async def test_a_proxy_shows_its_clients_and_what_waits_for_them() -> None:
    """Address, version, RTT and held messages; in metrics, the sums under the broker's names."""
    async with holding() as (operations, _client, _broker):
        row = operations.row("c")
        assert row is not None
        assert (row.address, row.listener, row.version) == ("127.0.0.1", "default", "5.0")
        assert (row.withheld, row.queued_bytes, row.inflight) == (1, 200, 0)
        assert row.rtt is not None
        assert operations.row("unknown") is None
        (topic,) = await operations.topics()
        assert topic[:4] == ("cam", "large", 1, 200)
        found: dict[str, Any] = {
            metric.name: metric.samples[0].value
            for metric in await operations.metrics()
            if metric.samples
        }
        assert (found["messages_matched_total"], found["messages_withheld"]) == (1, 1)
        assert (found["clients_connected"], found["upstreams_up"]) == (1, 1)
        assert found["memory_process_bytes"] > 0
        assert await operations.problems() == {}


async def test_held_messages_of_a_proxy_are_released() -> None:
    """They are never dropped: the broker counts on what it has sent."""
    async with holding() as (operations, client, broker):
        with pytest.raises(PenstockError, match="allowed: release what is held"):
            operations.drop_held("c")
        assert operations.release_held("c") == 1
        assert await client.receive() == publish("cam", 200, packet_id=1)
        client.send(PubAck(1))
        assert await broker.receive() == PubAck(1)
        assert operations.release_held("c") == operations.release_held("unknown") == 0


async def test_a_client_of_a_proxy_is_disconnected_and_its_address_banned() -> None:
    """Names are judged by the broker, where the session is, too."""
    async with holding() as (operations, client, _broker):
        with pytest.raises(PenstockError, match="kind: read username; allowed: address"):
            await operations.ban("username", "joe", 100, "")
        with pytest.raises(PenstockError, match="its session is the broker's"):
            operations.end_session("c")
        assert await operations.ban("address", "127.0.0.1", 100, "it floods", "ann") == 1
        assert await client.receive() == Disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
        assert not operations.disconnect("unknown", "")
        (ban,) = operations.bans()
        assert (ban.value, ban.by) == ("127.0.0.1", "ann")
        assert operations.unban("address", "127.0.0.1")


async def test_a_proxy_that_drains_lets_held_messages_leave_for_a_while() -> None:
    """Then its clients are sent away; the program is not ready meanwhile."""
    async with holding() as (operations, client, _broker):
        operations.drain(0.05)
        assert operations.is_draining
        assert list(await operations.problems()) == ["draining"]
        assert await client.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        await until(lambda: not operations.client_ids())


async def test_a_proxy_without_a_broker_is_not_ready() -> None:
    """A load balancer sends clients to another one."""
    proxied = VirtualClient.connected()
    operations = reports_of(proxied)
    upstreams = Upstreams(UpstreamKeys(address="broker.example"), logging.getLogger("test"))
    operations.attach(proxied.shared, upstreams)
    upstreams.failed(upstreams.each[0], "refused")
    problems = await operations.problems()
    assert problems == {"listeners": "none is open", "upstream": "broker.example:1883: refused"}
