"""A site's uplink to a real mosquitto."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import PubAck, Publish, PubRec, PubRel
from penstock.broker.server import Server
from penstock.edge_proxy.uplink.plugin import UplinkPlugin
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import until
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import anonymous_policy
from tests.helpers.wire import WireClient, connected

SMALL_WINDOW = "max_inflight_messages 3"
"""So that most retained messages wait in mosquitto for acknowledgements."""


def uplink_of(edge: Server) -> Uplink:
    """Return the uplink of a site."""
    (plugin,) = (one for one in edge._plugins.plugins if isinstance(one, UplinkPlugin))
    return plugin.uplinks[0]


def retained(edge: Server) -> dict[str, Any]:
    """Return the payloads of what a site has retained, by topic."""
    by_topic = edge.core.retained.by_topic
    return {t: one.payload for t, one in by_topic.items() if t.startswith("down/")}


async def retain(far: WireClient, n_messages: int, payload: bytes) -> None:
    """Publish retained messages in the cloud."""
    for number in range(n_messages):
        packet_id = number + 1
        await far.send(Publish(f"r/down/{number}", payload, 1, retain=True, packet_id=packet_id))
        await far.take(PubAck)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_mosquitto_sends_once_for_a_site_and_what_it_has_lost_is_cleared(
    version: str, tmp_path: Path
) -> None:
    """It has lost its session and what was retained; the marker comes behind the new ones."""
    with reserved_port() as port, contextlib.ExitStack() as clouds:
        keys = {
            "upstream": {"address": f"127.0.0.1:{port}"},
            "version": version,
            "down": [{"filter": "down/#", "remote_prefix": "r/"}],
            "reconnect": {"min_seconds": 0.01, "max_seconds": 0.1},
        }
        plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": keys}}}
        edge = Server(parse_policy(anonymous_policy(plugins), "edge.yaml"))
        clouds.enter_context(running_mosquitto(tmp_path, SMALL_WINDOW, port))
        await edge.start()
        try:
            counts = uplink_of(edge).counts
            await until(lambda: counts.connected)
            far = await connected(port, "far")
            await retain(far, 40, b"1")
            site = edge.addresses["default"][1]
            near = [await connected(site, f"near{number}") for number in range(20)]
            for client in near:
                await client.subscribe("down/#", 1)
            await until(lambda: len(retained(edge)) == 40)
            await far.publish("r/down/live", b"once")
            for client in near:
                while (await client.take(Publish)).payload != b"once":
                    pass
            assert counts.down_messages == 41
            clouds.close()
            await until(lambda: not counts.connected)
            assert len(retained(edge)) == 40
            clouds.enter_context(running_mosquitto(tmp_path, SMALL_WINDOW, port))
            await retain(await connected(port, "far"), 20, b"2")
            await until(lambda: list(retained(edge).values()) == [b"2"] * 20)
            assert counts.retained_cleared >= 20
        finally:
            await edge.stop()


async def test_a_mosquitto_that_refuses_retained_messages_gets_none(tmp_path: Path) -> None:
    """With MQTT 3.1.1 it cannot say that it does, and would end the connection for each of them."""
    with reserved_port() as port, running_mosquitto(tmp_path, "retain_available false", port):
        keys = {
            "upstream": {"address": f"127.0.0.1:{port}"},
            "version": "3.1.1",
            "up": [{"filter": "up/#"}],
            "outgoing_retain": False,
        }
        plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": keys}}}
        edge = Server(parse_policy(anonymous_policy(plugins), "edge.yaml"))
        far = await connected(port, "far")
        await far.subscribe("up/#", 1)
        await edge.start()
        try:
            near = await connected(edge.addresses["default"][1], "near")
            for number in range(2):
                await near.send(Publish(f"up/{number}", b"x", 1, retain=True, packet_id=1))
                await near.take(PubAck)
            came: dict[str, bool] = {}
            while len(came) < 2:
                message = await far.take(Publish)
                came[message.topic] = message.retain
            assert came == {"up/0": False, "up/1": False}
            counts = uplink_of(edge).counts
            assert (counts.connections, counts.changed) == (1, {})
        finally:
            await edge.stop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_mosquitto_may_send_more_than_the_receive_maximum_after_an_outage(
    qos: int, tmp_path: Path
) -> None:
    """Mosquitto 2.0.11 does; the site reads when it has room, and ends no connection."""
    n_messages = 3_000
    lines = "max_queued_messages 0\nmax_inflight_messages 0"
    with reserved_port() as port, running_mosquitto(tmp_path, lines, port):
        keys = {
            "upstream": {"address": f"127.0.0.1:{port}"},
            "down": [{"filter": "down/#", "when": "always"}],
            "reconnect": {"min_seconds": 0.01, "max_seconds": 0.1},
        }
        plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": keys}}}
        limits = {"receive_maximum": 20}
        edge = Server(parse_policy(anonymous_policy(plugins, limits=limits), "edge.yaml"))
        await edge.start()
        try:
            uplink = uplink_of(edge)
            await until(lambda: uplink.subscriptions.has("down/#"))
            near = await connected(edge.addresses["default"][1], "near")
            await near.subscribe("down/#", 1)
            far = await connected(port, "far")
            await uplink.stop()
            for number in range(n_messages):
                await far.send(Publish(f"down/{number}", b"x" * 100, qos, packet_id=number + 1))
            n_left = n_messages
            while n_left:
                packet = await far.receive()
                if isinstance(packet, PubRec):
                    await far.send(PubRel(packet.packet_id))
                else:
                    n_left -= 1
            uplink._is_stopping = False
            uplink.start()
            topics: set[str] = set()
            while len(topics) < n_messages:
                message = await near.take(Publish)
                topics.add(message.topic)
                await near.send(PubAck(message.packet_id))
            assert uplink.counts.failures == {}
            assert uplink.counts.connections == 2
        finally:
            await edge.stop()
