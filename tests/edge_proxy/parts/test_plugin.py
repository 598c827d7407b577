"""Messages in parts, from a broker to another and back, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.broker.mqtt.packets import Publish
from penstock.broker.server import Server
from penstock.edge_proxy.parts.config import DEFAULT_PREFIX, PartsConfig
from penstock.edge_proxy.parts.plugin import PartsPlugin
from penstock.edge_proxy.parts.splitter import SPLIT_ID
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.aggregator.test_uplink import deliver, edge_policy, stands, take_message
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
        assert came.properties["user_property"] == [("a", "b"), ("penstock-publisher", "far")]
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


async def test_a_plugin_without_filters_drops_what_waited_to_be_cut(tmp_path: Path) -> None:
    """Its session would take messages for ever; the log says so."""
    keys = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    async with serving(plugins={"parts": parts(tmp_path, "a", split=["a"])}, **keys) as server:
        assert server.core.sessions.get(SPLIT_ID) is not None
    async with serving(plugins={"parts": parts(tmp_path, "a")}, **keys) as server:
        assert server.core.sessions.get(SPLIT_ID) is None


def test_a_sidecar_has_no_messages_in_parts() -> None:
    """It has no clients of its own; the message names the key."""
    context = PluginContext(getLogger("test"), "proxy.yaml", lambda: 0.0, is_proxy=True)
    with pytest.raises(ConfigError, match=r"plugins\.parts: read messages in parts in a sidecar"):
        PartsPlugin(PartsConfig(), context)
