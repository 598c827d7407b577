"""What is retained where messages are cut reaches those who subscribe to the parts later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.broker.mqtt.packets import Publish
from penstock.broker.sessions.retained_delivery import SLICE_MESSAGES
from penstock.edge_proxy.parts.partial_message import PartialMessage
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.parts.test_plugin import FIRMWARE, PART_BYTES, PAYLOAD, both_ends, plugin_of
from tests.edge_proxy.parts.test_splitter import N_PARTS, plugin, take_parts
from tests.edge_proxy.uplink.test_uplink import deliver, take_message, uplink_of
from tests.helpers.wire import connected

RETAINED: dict[str, Any] = {"qos": 1, "packet_id": 7, "retain": True}


async def test_a_later_subscription_gets_the_parts_of_what_is_retained(tmp_path: Path) -> None:
    """Alone, each as a message that is not retained; what is not split is not cut."""
    memory = {"memory": {"store": "spill", "directory": str(tmp_path), "memory_limit": 1}}
    marks = [("penstock-site", "berlin"), ("penstock-hops", "1")]
    properties = {"message_expiry_interval": 100, "content_type": "t", "user_property": marks}
    async with (
        serving(plugins={**plugin(tmp_path), **memory}) as server,
        await connected(port_of(server), "near") as near,
        await connected(port_of(server), "other") as other,
        await connected(port_of(server), "far") as far,
    ):
        await other.subscribe("penstock-parts/#", 1)
        await deliver(far, Publish("a", PAYLOAD, **RETAINED, properties=properties))
        await deliver(far, Publish("b", PAYLOAD, **RETAINED))
        await take_parts(other)
        await near.subscribe("penstock-parts/#", 1)
        found = await take_parts(near)
        message, part = found[-1]
        assert (message.topic, message.qos, message.retain) == ("penstock-parts/a", 1, False)
        assert message.properties["user_property"] == marks
        assert 0 < message.properties["message_expiry_interval"] <= 100
        assert part.trailer is not None
        assert part.trailer.properties == b"\x04\x03\x00\x01t"
        partial = PartialMessage(part, "a")
        for _, each in found:
            partial.add(each)
        assert partial.is_whole
        assert b"".join(part.data for _, part in found) == PAYLOAD
        await deliver(far, Publish("a", b"x", **RETAINED))
        for client in (near, other):  # and nothing else before it
            ((_, part),) = await take_parts(client, 1)
            assert bytes(part.data) == b"x"
        assert plugin_of(server).counts.kept_parts == N_PARTS


async def test_a_message_that_is_replaced_is_sent_no_further(tmp_path: Path) -> None:
    """The newer one comes by its own parts."""
    async with (
        serving(plugins=plugin(tmp_path)) as server,
        await connected(port_of(server), "near", properties={"receive_maximum": 1}) as near,
        await connected(port_of(server), "far") as far,
    ):
        large = PAYLOAD * 20
        await deliver(far, Publish("a", large, **RETAINED))
        counts = plugin_of(server).counts
        await until(lambda: counts.split_messages == 1)
        await near.subscribe("penstock-parts/#", 1)
        await deliver(far, Publish("a", b"x", **RETAINED))
        n_parts = 0
        while (await take_parts(near, 1))[0][1].total_bytes != 1:
            n_parts += 1
        assert n_parts <= 2 * SLICE_MESSAGES < len(large) // PART_BYTES


async def test_a_site_gets_what_the_cloud_had_retained_before(tmp_path: Path) -> None:
    """Whole, on two lanes of which one has the last part; an outage does not bring it again."""
    lanes = {"by": "size"}
    payload = PAYLOAD * 2
    keys = {"split": ["firmware/#"], "part_bytes": 12_000}
    async with (
        both_ends(
            tmp_path,
            keys,
            {},
            up=[{"filter": "up/#"}],
            down=[FIRMWARE],
            lanes=lanes,
            refresh_retained_seconds=0.001,
        ) as (cloud, site),
        await connected(port_of(cloud), "far") as far,
        await connected(port_of(site), "near") as near,
        await connected(port_of(site), "later") as later,
    ):
        await deliver(far, Publish("firmware/x", payload, **RETAINED))
        lane = uplink_of(site, "cloud/large")
        in_cloud, at_site = plugin_of(cloud).counts, plugin_of(site).counts
        await until(lambda: bool(lane.counts.connected and in_cloud.split_messages))
        await near.subscribe("firmware/#", 2)
        came = await take_message(near)
        assert (came.topic, came.payload, came.qos) == ("firmware/x", payload, 1)
        await later.subscribe("firmware/x", 2)
        assert (await take_message(later)).retain
        assert in_cloud.kept_parts >= 5
        n_parts, n_connections = in_cloud.kept_parts, lane.counts.connections
        assert lane._connection is not None
        lane._connection.end("closed", "as the test has it")
        await until(lambda: lane.counts.connections > n_connections)
        await deliver(far, Publish("firmware/y", b"x", qos=1, packet_id=8))
        assert (await take_message(near)).payload == b"x"
        assert in_cloud.kept_parts == n_parts
        await until(lambda: at_site.assembled_messages == 2)
