"""Uplinks that lead round: a message comes to each broker a few times at most, and ends."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.server import Server
from penstock.edge_proxy.uplink.plugin import UplinkPlugin
from penstock.edge_proxy.uplink.uplink import Uplink
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import port_of, serving, until
from tests.helpers.process import anonymous_policy
from tests.helpers.wire import WireClient, connected

BOTH: Mapping[str, Any] = {"up": [{"filter": "t/#"}], "down": [{"filter": "t/#", "when": "always"}]}
LARGE = b"x" * 20_000


def site_policy(name: str, port: int, to: Mapping[str, int]) -> dict[str, Any]:
    """Return the policy file of a site on a port, with uplinks to other ports."""
    uplinks = {
        other: {
            "upstream": {"address": f"127.0.0.1:{other_port}"},
            "reconnect": {"min_seconds": 0.01, "max_seconds": 0.05},
            **BOTH,
        }
        for other, other_port in to.items()
    }
    listeners = {"default": {"bind": f"127.0.0.1:{port}"}}
    plugins = {"uplink": {"site": name, "uplinks": uplinks}}
    return anonymous_policy(plugins, listeners=listeners)


@contextlib.asynccontextmanager
async def running_sites(
    links: Mapping[str, Sequence[str]],
) -> AsyncIterator[tuple[dict[str, int], list[Uplink]]]:
    """Run sites with uplinks to each other.

    Yields:
        Name of a site to its port, and all lanes that stand, which is all that there are.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports = {name: stack.enter_context(reserved_port()) for name in links}
        lanes: list[Uplink] = []
        for name, others in links.items():
            to = {other: ports[other] for other in others}
            lanes += await start_site(site_policy(name, ports[name], to), stack)
        await all_stand(lanes)
        yield ports, lanes


async def start_site(
    policy: Mapping[str, Any], stack: contextlib.AsyncExitStack
) -> Sequence[Uplink]:
    """Start a site's broker until a stack ends; return the lanes of its uplinks."""
    server = Server(parse_policy(policy, "edge.yaml"))
    await server.start()
    stack.push_async_callback(server.stop)
    (plugin,) = (one for one in server._plugins.plugins if isinstance(one, UplinkPlugin))
    return plugin.uplinks


async def all_stand(lanes: Sequence[Uplink]) -> None:
    """Wait until all lanes are connected, and have subscribed."""
    await until(lambda: all(lane.counts.connected for lane in lanes))
    await until(lambda: all(lane.subscriptions.has("t/#") for lane in lanes))


async def taken(taker: WireClient, n_ends: int) -> Counter[bytes]:
    """Take messages until one called ``end`` has come so often; return how often each has come."""
    got: Counter[bytes] = Counter()
    while got[b"end"] < n_ends:
        packet = await taker.receive()
        assert isinstance(packet, Publish)
        if packet.qos:
            await taker.send(PubAck(packet.packet_id))
        got[bytes(packet.payload)] += 1
    return got


RINGS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "mutual": {"a": ["b"], "b": ["a"]},
    "ring": {"a": ["b"], "b": ["c"], "c": ["a"]},
    "both ways round": {"a": ["b", "c"], "b": ["c", "a"], "c": ["a", "b"]},
}


@pytest.mark.parametrize("name", list(RINGS))
async def test_a_message_ends_where_it_was(name: str) -> None:
    """Its own site gets it once, and the others once for each way that leads to them."""
    links = RINGS[name]
    async with running_sites(links) as (ports, lanes):
        takers = {site: await connected(port, f"taker-{site}") for site, port in ports.items()}
        for taker in takers.values():
            await taker.subscribe("t/#", 1)
        publisher = await connected(ports["a"], "publisher")
        payloads = [*(b"%d" % number for number in range(20)), LARGE, b"end"]
        for number, payload in enumerate(payloads, 1):
            await publisher.send(Publish("t/x", payload, qos=1, packet_id=number))
        for _ in payloads:
            await publisher.take(PubAck)
        counts = {}
        for site, taker in takers.items():
            most = {"mutual": 2, "ring": 2, "both ways round": 6}[name]
            counts[site] = await taken(taker, 1 if site == "a" else most)
        assert set(counts["a"].values()) == {1}
        for site in links.keys() - {"a"}:
            assert set(counts[site]) == set(payloads)
            assert max(counts[site].values()) == most
        passed = sum(lane.counts.down_messages for lane in lanes)
        assert passed <= most * len(links) * len(payloads) + len(lanes)
        for lane in lanes:
            assert set(lane.counts.up_dropped) | set(lane.counts.down_dropped) <= {"hops"}


async def test_a_loop_through_brokers_of_no_site_ends_as_well() -> None:
    """Two sites between two brokers, of which neither names a site."""
    async with serving() as one, serving() as other, contextlib.AsyncExitStack() as stack:
        ports = {"one": port_of(one), "other": port_of(other)}
        lanes: list[Uplink] = []
        for name in "ab":
            policy = site_policy(name, stack.enter_context(reserved_port()), ports)
            lanes += await start_site(policy, stack)
        await all_stand(lanes)
        takers = [await connected(port, "taker") for port in ports.values()]
        for taker in takers:
            await taker.subscribe("t/#", 1)
        publisher = await connected(ports["one"], "publisher")
        payloads = [*(b"%d" % number for number in range(20)), LARGE, b"end"]
        for number, payload in enumerate(payloads, 1):
            await publisher.send(Publish("t/x", payload, qos=1, packet_id=number))
        # At its own broker once, and once by each of the ways round; at the other by each site.
        for taker, n_times in zip(takers, (3, 2), strict=True):
            assert await taken(taker, n_times) == dict.fromkeys(payloads, n_times)
