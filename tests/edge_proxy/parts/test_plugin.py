"""Messages in parts, from a broker to another and back, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.server import Server
from penstock.edge_proxy.parts.config import DEFAULT_PREFIX
from penstock.edge_proxy.parts.part_format import Part, Trailer, write_part
from penstock.edge_proxy.parts.plugin import PartsPlugin
from penstock.edge_proxy.parts.splitter import SPLIT_ID
from penstock.edge_proxy.uplink.uplink import Uplink
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.uplink.test_uplink import (
    deliver,
    edge_policy,
    stands,
    take_message,
    uplink_of,
)
from tests.helpers.wire import connected

PART_BYTES = 1_024
PAYLOAD = bytes(range(256)) * 100
"""25,600 bytes, 25 parts."""

FIRMWARE = {"filter": "firmware/#", "parts": True}


def plugin_of(server: Server) -> PartsPlugin:
    """Return the plugin of a server."""
    return next(one for one in server._plugins.plugins if isinstance(one, PartsPlugin))


def parts(path: Path, name: str, **keys: Any) -> dict[str, Any]:
    """Return the keys of the plugin."""
    return {"spool": str(path / f"{name}.db"), "part_bytes": PART_BYTES, **keys}


@contextlib.asynccontextmanager
async def both_ends(
    path: Path, cloud_keys: dict[str, Any], site_keys: dict[str, Any], **uplink: Any
) -> AsyncIterator[tuple[Server, Server]]:
    """Run a cloud's broker and a site's, whose link stands."""
    async with serving(plugins={"parts": parts(path, "cloud", **cloud_keys)}) as cloud:
        policy = edge_policy(port_of(cloud), **uplink)
        plugins = policy.pop("plugins")
        plugins["parts"] = parts(path, "site", **site_keys)
        async with serving(plugins=plugins) as site:
            await stands(site)
            yield cloud, site


@pytest.mark.parametrize(
    ("version", "qos", "prefix"),
    [("5", 0, DEFAULT_PREFIX), ("5", 2, DEFAULT_PREFIX), ("3.1.1", 1, "a/parts")],
)
async def test_a_message_comes_down_whole(
    tmp_path: Path, version: str, qos: int, prefix: str
) -> None:
    """With its QoS, its retain flag and its properties, whatever the uplink's version."""
    properties = {"content_type": "image", "user_property": [("a", "b")]}
    message = Publish("firmware/x", PAYLOAD, qos=qos, packet_id=7, retain=True)
    async with (
        both_ends(
            tmp_path,
            {"split": ["firmware/#"], "prefix": prefix},
            {"prefix": prefix},
            version=version,
            parts_prefix=prefix,
            up=[],
            down=[FIRMWARE],
        ) as (cloud, site),
        await connected(port_of(cloud), "far") as far,
        await connected(port_of(site), "near") as near,
        await connected(port_of(site), "later") as later,
    ):
        await near.subscribe("firmware/+", 2)
        session = cloud.core.sessions.get("berlin-cloud")
        assert session is not None
        await until(lambda: dict(session.subscriptions).keys() == {f"{prefix}/firmware/+"})
        await deliver(far, replace(message, properties=properties))
        came = await take_message(near)
        assert (came.topic, came.payload, came.qos) == ("firmware/x", PAYLOAD, qos)
        assert came.properties["content_type"] == "image"
        via = [("penstock-via", "berlin")] if version == "5" else []
        assert came.properties["user_property"] == [("a", "b"), ("penstock-publisher", "far"), *via]
        await later.subscribe("firmware/x", 2)
        assert (await take_message(later)).retain


async def test_a_message_goes_up_whole(tmp_path: Path) -> None:
    """It tells who published it, at which site, as any message that goes up."""
    async with (
        both_ends(tmp_path, {}, {"split": ["firmware/#"]}, up=[FIRMWARE], down=[]) as (cloud, site),
        await connected(port_of(cloud), "far") as far,
        await connected(port_of(site), "near") as near,
    ):
        await far.subscribe("firmware/#", 2)
        await deliver(near, Publish("firmware/x", PAYLOAD, qos=2, packet_id=7))
        came = await take_message(far)
        assert (came.topic, came.payload, came.qos) == ("firmware/x", PAYLOAD, 2)
        assert came.properties["user_property"] == [
            ("penstock-publisher", "near"),
            ("penstock-site", "berlin"),
            ("penstock-hops", "1"),
        ]


async def test_a_topic_may_go_both_ways(tmp_path: Path) -> None:
    """Each message reaches each client once, on both sides, and in the order of its topic."""
    both = {"split": ["firmware/#"]}
    rule = {**FIRMWARE, "when": "always"}
    async with (
        both_ends(tmp_path, both, both, up=[FIRMWARE], down=[rule]) as (cloud, site),
        await connected(port_of(cloud), "far") as far,
        await connected(port_of(site), "near") as near,
        await connected(port_of(site), "publisher") as publisher,
        await connected(port_of(cloud), "back end") as back_end,
    ):
        await far.subscribe("firmware/#", 2)
        await near.subscribe("firmware/#", 2)
        await deliver(publisher, Publish("firmware/x", PAYLOAD, qos=1, packet_id=7))
        await deliver(publisher, Publish("firmware/x", b"", qos=1, packet_id=8))
        for client in (near, far):
            assert (await take_message(client)).payload == PAYLOAD
            assert not (await take_message(client)).payload
        await deliver(back_end, Publish("firmware/x", b"down", qos=1, packet_id=7))
        for client in (near, far):
            assert (await take_message(client)).payload == b"down"
        await deliver(publisher, Publish("firmware/x", b"end", qos=1, packet_id=9))
        assert (await take_message(far)).payload == b"end"
        at_site, in_cloud = plugin_of(site).counts, plugin_of(cloud).counts
        await until(lambda: (at_site.split_messages, at_site.assembled_messages) == (3, 1))
        await until(lambda: (in_cloud.split_messages, in_cloud.assembled_messages) == (1, 3))


@pytest.mark.parametrize("by", ["size", "topic"])
async def test_parts_pass_lanes_that_are_cut_in_their_middle(tmp_path: Path, by: str) -> None:
    """By size, the last part is small, and takes the other lane: a message is whole all the same.

    At QoS 2 it comes once, in the order of its topic, both ways.
    """
    both = {"split": ["firmware/#"], "part_bytes": 12_000}
    large = PAYLOAD * 8
    lanes = {"by": by, "large": ["firmware/#"]} if by == "topic" else {"by": by}
    rules = {
        "up": [FIRMWARE, {"filter": "up/#"}],
        "down": [{**FIRMWARE, "when": "always"}, {"filter": "down/#"}],
    }
    async with (
        both_ends(tmp_path, both, both, lanes=lanes, **rules) as (cloud, site),
        await connected(port_of(cloud), "far") as far,
        await connected(port_of(site), "near") as near,
        await connected(port_of(site), "publisher") as publisher,
        await connected(port_of(cloud), "back end") as back_end,
    ):
        each = [uplink_of(site, name) for name in ("cloud", "cloud/large")]
        await until(lambda: all(lane.counts.connected for lane in each))
        n_lanes = 2 if by == "size" else 1
        await until(lambda: sum(_has_asked(cloud, lane.client_id) for lane in each) == n_lanes)
        ways = ((publisher, far, "up_bytes"), (back_end, near, "down_bytes"))
        for sender, taker, counter in ways:
            await taker.subscribe("firmware/#", 2)
            n_bytes = getattr(each[1].counts, counter)
            for number, payload in enumerate((large, b"small", large[:-1]), 1):
                await sender.send(Publish("firmware/x", payload, qos=2, packet_id=number))
            await _until_more(each[1], counter, n_bytes + 30_000)
            for lane in each:
                assert lane._connection is not None
                lane._connection.end("closed", "as the test has it")
            for payload in (large, b"small", large[:-1]):
                assert (await take_message(taker)).payload == payload


async def _until_more(lane: Uplink, counter: str, n_bytes: int) -> None:
    await until(lambda: getattr(lane.counts, counter) > n_bytes)


def _has_asked(cloud: Server, client_id: str) -> bool:
    session = cloud.core.sessions.get(client_id)
    return session is not None and f"{DEFAULT_PREFIX}/firmware/#" in session.subscriptions


async def test_parts_need_the_access_of_their_message(tmp_path: Path) -> None:
    """Who may publish or read parts alone reaches no other topic by them."""
    acl = tmp_path / "acl"
    acl.write_text(
        "topic readwrite penstock-parts/#\n"
        "topic readwrite open/#\ntopic read secret/#\ntopic write closed/#\n"
    )
    access = {"allow_anonymous": True, "acl_file": str(acl)}
    keys = parts(tmp_path, "spool", split=["closed/#", "open/#"])
    async with (
        serving(plugins={"parts": keys, "access": access}) as server,
        await connected(port_of(server), "near") as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("secret/#", 2)
        await near.subscribe("open/#", 2)
        for topic, code in (("secret/x", ReasonCode.NOT_AUTHORIZED), ("open/x", 0)):
            payload = write_part(
                Part(bytes(16), 0, 1, 1, False, Trailer(sha256(b"x").digest(), b"\0"), b"x")
            )
            await far.send(Publish(f"penstock-parts/{topic}", payload, qos=1, packet_id=1))
            assert (await far.take(PubAck)).reason_code == code
        assert (await take_message(near)).topic == "open/x"
        await near.subscribe("penstock-parts/#", 2)
        for topic in ("closed/x", "open/y"):
            await deliver(far, Publish(topic, b"x", qos=1, packet_id=1))
        found = {(await take_message(near)).topic for _ in range(2)}
        assert found == {"open/y", "penstock-parts/open/y"}


async def test_a_plugin_without_filters_drops_what_waited_to_be_cut(tmp_path: Path) -> None:
    """Its session would take messages for ever; the log says so."""
    keys = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    async with serving(plugins={"parts": parts(tmp_path, "a", split=["a"])}, **keys) as server:
        assert server.core.sessions.get(SPLIT_ID) is not None
    async with serving(plugins={"parts": parts(tmp_path, "a")}, **keys) as server:
        assert server.core.sessions.get(SPLIT_ID) is None
