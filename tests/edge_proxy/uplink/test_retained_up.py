"""Retained messages of a site that change during an outage of its uplink."""

from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import Publish
from penstock.broker.network.in_process import MemoryTransport
from penstock.broker.server import Server
from penstock.edge_proxy.uplink.packet_stream import PacketWriter
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.uplink.test_uplink import deliver, site, stands, take_message, uplink_of
from tests.helpers.wire import connected


def retained(topic: str, payload: bytes, qos: int) -> Publish:
    """Return a retained message."""
    return Publish(topic, payload, qos=qos, retain=True, packet_id=1 if qos else 0)


def cut(uplink: Uplink) -> None:
    """End the connection of an uplink."""
    assert uplink._connection is not None
    uplink._connection.end("closed", "cut by the test")


async def all_has_come(edge: Server) -> None:
    """Wait until each lane is sure that the cloud has had all that is retained."""
    number = edge.core.retained.number
    for lane in uplink_of(edge).lanes:
        link, up = lane._connection, lane._retained_up
        assert link is not None
        # What it has noted before it is sure of first.
        await until(lambda up=up: max(up._after, (up._noted or (0, -1))[1]) >= number)  # type: ignore[misc]
        link.relay.ping()
        link._flush()
        await until(lambda up=up: up._after >= number)  # type: ignore[misc]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize(("rule", "qos"), [(0, 1), (1, 0), (0, 0)])
async def test_the_cloud_gets_what_a_site_has_retained_and_cleared_meanwhile(
    rule: int, qos: int, version: str
) -> None:
    """Under a rule of QoS 0, and of messages of QoS 0; what has not changed is not sent again."""
    reconnect = {"min_seconds": 3600.0, "max_seconds": 3600.0}
    keys = {"up": [{"filter": "up/#", "qos": rule}], "version": version, "reconnect": reconnect}
    async with (
        serving() as cloud,
        site(port_of(cloud), **keys) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await stands(edge)
        uplink, there = uplink_of(edge), cloud.core.retained.by_topic
        # A lane that is accepted has the other one tried again at once.
        await until(lambda: all(lane.counts.connected for lane in uplink.lanes))
        for topic in ("up/kept", "up/changed", "up/cleared"):
            await deliver(near, retained(topic, b"1", qos))
        await until(lambda: {"up/kept", "up/changed", "up/cleared"} <= set(there))
        kept = there["up/kept"]
        await all_has_come(edge)
        cut(uplink)
        await until(lambda: uplink.counts.failures)
        for topic, payload in (("up/changed", b"2"), ("up/cleared", b""), ("up/new", b"3")):
            await deliver(near, retained(topic, payload, qos))
        await near.publish("fence", b"")
        uplink.retry_now()
        await until(lambda: "up/new" in there and "up/cleared" not in there)
        await until(lambda: there["up/changed"].payload == b"2")
        await until(lambda: uplink.counts.retained_repeated == 3)
        assert there["up/kept"] is kept


async def test_what_waits_for_the_cloud_is_not_repeated() -> None:
    """At QoS 1 it waits in the session: once is enough; each topic keeps its order."""
    with reserved_port() as port:
        async with site(port, lanes=None) as edge, await connected(port_of(edge), "near") as near:
            for payload in (b"1", b"2"):
                await deliver(near, retained("up/a", payload, 1))
            listeners = {"default": {"bind": f"127.0.0.1:{port}"}}
            async with serving(listeners=listeners) as cloud, await connected(port, "far") as far:
                await far.subscribe("up/#", 1)
                assert [(await take_message(far)).payload for _ in range(2)] == [b"1", b"2"]
                await until(lambda: cloud.core.retained.by_topic["up/a"].payload == b"2")
            assert uplink_of(edge).counts.retained_repeated == 0


async def test_what_was_on_its_way_at_qos_0_is_repeated() -> None:
    """Nothing tells whether the cloud has got it."""
    keys = {"up": [{"filter": "up/#", "qos": 0}], "lanes": None}
    reconnect = {"min_seconds": 3600.0, "max_seconds": 3600.0}
    async with (
        serving() as cloud,
        site(port_of(cloud), reconnect=reconnect, **keys) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await stands(edge)
        uplink, there = uplink_of(edge), cloud.core.retained.by_topic
        await near.send(retained("up/a", b"1", 0))
        await until(lambda: "up/a" in there)
        cut(uplink)
        await until(lambda: uplink.counts.failures)
        first = there["up/a"]
        uplink.retry_now()
        await until(lambda: there["up/a"] is not first)
        assert uplink.counts.retained_repeated == 1


@pytest.mark.parametrize("where", ["on the way", "at the site"])
async def test_what_was_lost_before_the_loss_was_noticed_is_repeated(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At QoS 0: changes and clears, also of topics with a later message that is not retained."""
    reconnect = {"min_seconds": 3600.0, "max_seconds": 3600.0}
    async with (
        serving() as cloud,
        site(port_of(cloud), reconnect=reconnect, lanes=None) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await stands(edge)
        uplink, there = uplink_of(edge), cloud.core.retained.by_topic
        for topic in ("up/changed", "up/cleared"):
            await near.send(retained(topic, b"1", 0))
        await until(lambda: {"up/changed", "up/cleared"} <= set(there))
        await all_has_come(edge)
        link = uplink._connection
        assert link is not None
        if where == "on the way":
            monkeypatch.setattr(PacketWriter, "take", lambda writer: writer.out.clear() or [])
        else:
            link._up.read(unless="the test", wants=False)
        await near.send(retained("up/changed", b"2", 0))
        await near.send(retained("up/cleared", b"", 0))
        await near.send(Publish("up/changed", b"live", qos=0))
        await near.publish("fence", b"")
        await until(lambda: where == "at the site" or uplink.counts.up_messages == 5)
        cut(uplink)
        await until(lambda: uplink.counts.failures)
        monkeypatch.undo()
        uplink.retry_now()
        await until(lambda: "up/cleared" not in there and there["up/changed"].payload == b"2")


async def test_what_is_pushed_out_of_the_backlog_during_an_outage_is_repeated() -> None:
    """A message of QoS 1 has waited when the connection was lost."""
    reconnect = {"min_seconds": 3600.0, "max_seconds": 3600.0}
    async with (
        serving() as cloud,
        site(port_of(cloud), reconnect=reconnect, lanes=None, backlog={"messages": 2}) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await stands(edge)
        uplink, there = uplink_of(edge), cloud.core.retained.by_topic
        session = edge.core.sessions.get("$uplink/cloud/up")
        assert session is not None
        link = uplink._connection
        assert link is not None
        assert isinstance(link._up.transport, MemoryTransport)
        link._up.read(unless="the test", wants=False)
        link._up.transport.other.protocol.pause_writing()  # what follows waits in the session
        await deliver(near, retained("up/a", b"1", 1))
        assert session.outbox.n_messages == 1
        cut(uplink)
        await until(lambda: uplink.counts.failures)
        for _ in range(2):
            await deliver(near, Publish("up/b", b"x", qos=1, packet_id=1))
        assert session.ledger.dropped["pushed_out"] == 1
        uplink.retry_now()
        await until(lambda: "up/a" in there)
