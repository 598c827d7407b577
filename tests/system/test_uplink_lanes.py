"""The lanes of an uplink to a real broker: a connection that is lost costs and repeats nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.server import Server
from penstock.edge_proxy.uplink.plugin import UplinkPlugin
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.edge_proxy.upstream import UpstreamError
from tests.broker.serving import port_of, serving, until
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import anonymous_policy
from tests.helpers.wire import WireClient, connected

N_MESSAGES = 30
SMALL, LARGE = b"s" * 20, b"l" * 50_000


def edge_of(port: int, policy: Mapping[str, Any] | None = None, **keys: Any) -> Server:
    """Return a site's broker with an uplink to a port.

    Args:
        port: of the cloud's broker.
        policy: further keys of the policy file.
        keys: of the uplink.
    """
    uplink = {
        "upstream": {"address": f"127.0.0.1:{port}"},
        "reconnect": {"min_seconds": 0.01, "max_seconds": 0.1},
        **keys,
    }
    plugins = {"uplink": {"site": "berlin", "uplinks": {"cloud": uplink}}}
    return Server(parse_policy(anonymous_policy(plugins, **(policy or {})), "edge.yaml"))


def lanes_of(edge: Server) -> list[Uplink]:
    """Return the lanes of a site's uplink."""
    (plugin,) = (one for one in edge._plugins.plugins if isinstance(one, UplinkPlugin))
    return plugin.uplinks


def cut_all(lanes: Sequence[Uplink]) -> None:
    """End the connections of lanes, as a network would."""
    for lane in lanes:
        link = lane._connection
        if link is not None and link.cloud.transport is not None:
            link.cloud.transport.abort()


async def publish_all(
    client: WireClient, topics: list[str], numbers: Iterable[int] = range(N_MESSAGES)
) -> None:
    """Publish numbered messages of QoS 2 on each topic; every third on a mixed topic is large."""
    for number in numbers:
        for topic in topics:
            is_large = "large" in topic or ("mixed" in topic and number % 3 == 1)
            payload = b"%d " % number + (LARGE if is_large else SMALL)
            await client.send(Publish(topic, payload, qos=2, packet_id=1))
            await client.take(PubRec)
            await client.send(PubRel(1))
            await client.take(PubComp)


async def take_all(
    client: WireClient, n_topics: int, on_third: Callable[[], object]
) -> dict[str, list[int]]:
    """Take all messages of some topics; call something when a third is there.

    Returns:
        Topic to the numbers of its messages, in the order of their coming.
    """
    got: dict[str, list[int]] = {}
    n_released = 0
    while n_released < N_MESSAGES * n_topics:
        packet = await client.receive()
        if isinstance(packet, Publish):
            got.setdefault(packet.topic, []).append(int(packet.payload.split()[0]))
            await client.send((PubRec if packet.qos == 2 else PubAck)(packet.packet_id))
            if sum(map(len, got.values())) == N_MESSAGES * n_topics // 3:
                on_third()
        else:
            assert isinstance(packet, PubRel)
            await client.send(PubComp(packet.packet_id))
            n_released += 1
    return got


async def test_by_topic_a_lane_that_is_cut_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """With mosquitto, each lane cut once in each direction; each topic keeps its order."""
    keys: dict[str, Any] = {
        "up": [{"filter": "up/#"}, {"filter": "up-large/#"}],
        "down": [
            {"filter": "down/#", "when": "always"},
            {"filter": "down-large/#", "when": "always"},
        ],
        "lanes": {"by": "topic", "large": ["up-large/#", "down-large/#"]},
    }
    with running_mosquitto(tmp_path, "max_queued_messages 0") as mosquitto:
        edge = edge_of(mosquitto.port, **keys)
        await edge.start()
        try:
            lanes = lanes_of(edge)
            await until(lambda: all(lane.counts.connected for lane in lanes))
            far = await connected(mosquitto.port, "far")
            site = edge.addresses["default"][1]
            near = await connected(site, "near")
            for publisher, port, way in ((near, mosquitto.port, "up"), (far, site, "down")):
                taker = await connected(port, f"taker-{way}")
                topics = [f"{way}/a", f"{way}-large/a"]
                for topic in topics:
                    await taker.subscribe(topic, 2)
                await until(lambda: all(lane.counts.connected for lane in lanes))
                got, _ = await asyncio.gather(
                    take_all(taker, 2, lambda: cut_all(lanes)), publish_all(publisher, topics)
                )
                assert got == {topic: list(range(N_MESSAGES)) for topic in topics}
            assert [lane.counts.failures.get("closed") for lane in lanes] == [2, 2]
        finally:
            await edge.stop()


async def test_by_size_each_topic_keeps_its_order_over_cuts_and_a_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With mosquitto, which knows no sizes; each message of QoS 2 comes once.

    Both lanes are cut; then the large one cannot connect, is taken over, and comes back.
    """
    keys: dict[str, Any] = {
        "up": [{"filter": "up/#"}],
        "lanes": {"by": "size", "takeover_seconds": 0.01},
    }
    with running_mosquitto(tmp_path, "max_queued_messages 0") as mosquitto:
        edge = edge_of(mosquitto.port, **keys)
        await edge.start()
        try:
            lanes = lanes_of(edge)
            large = lanes[1]
            await until(lambda: all(lane.counts.connected for lane in lanes))
            near = await connected(edge.addresses["default"][1], "near")
            taker = await connected(mosquitto.port, "taker")
            await taker.subscribe("up/#", 2)
            topics = ["up/mixed/a", "up/mixed/b"]

            async def publish() -> None:
                await publish_all(near, topics, range(10))
                await until(lambda: all(lane.counts.connected for lane in lanes))
                is_reachable = False
                dial = large.upstreams.dial

                async def dial_later(*args: Any) -> Any:
                    if not is_reachable:
                        raise UpstreamError("unreachable, as the test has it")
                    return await dial(*args)

                monkeypatch.setattr(large.upstreams, "dial", dial_later)
                cut_all([large])
                await publish_all(near, topics, range(10, 20))
                await until(lambda: large.counts.taken_over)
                await publish_all(near, topics, range(20, 25))
                is_reachable = True
                await until(lambda: large.counts.connected)
                await publish_all(near, topics, range(25, N_MESSAGES))

            got, _ = await asyncio.gather(take_all(taker, 2, lambda: cut_all(lanes)), publish())
            assert got == {topic: list(range(N_MESSAGES)) for topic in topics}
            assert large.counts.takeovers
            assert not large.counts.taken_over
            assert all(lane.counts.up_messages for lane in lanes)
        finally:
            await edge.stop()


def _has_subscribed(cloud: Server, lane: Uplink) -> bool:
    session = cloud.core.sessions.get(lane.client_id)
    return session is not None and "down/#" in session.subscriptions


async def test_by_size_with_penstock_a_lane_that_is_cut_costs_no_order_either_way() -> None:
    """Each lane is cut in the middle of the messages; each of QoS 2 comes once."""
    keys: dict[str, Any] = {
        "up": [{"filter": "up/#"}],
        "down": [{"filter": "down/#", "when": "always"}],
        "lanes": {"by": "size"},
    }
    async with serving() as cloud:
        edge = edge_of(port_of(cloud), **keys)
        await edge.start()
        try:
            lanes = lanes_of(edge)
            ports = {"up": port_of(cloud), "down": port_of(edge)}
            for way, other in (("up", "down"), ("down", "up")):
                publisher = await connected(ports[other], f"publisher-{way}")
                taker = await connected(ports[way], f"taker-{way}")
                topics = [f"{way}/mixed/a", f"{way}/mixed/b"]
                await taker.subscribe(f"{way}/#", 2)
                await until(lambda: all(_has_subscribed(cloud, lane) for lane in lanes))
                got, _ = await asyncio.gather(
                    take_all(taker, 2, lambda: cut_all(lanes)), publish_all(publisher, topics)
                )
                assert got == {topic: list(range(N_MESSAGES)) for topic in topics}
            for lane in lanes:
                assert lane.counts.up_messages
                assert lane.counts.down_messages
                assert lane.counts.failures["closed"] == 2
        finally:
            await edge.stop()
