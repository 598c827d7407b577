"""A broker publishes messages a second time, in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.edge_proxy.parts import splitter
from penstock.edge_proxy.parts.part_format import Part, read_part
from penstock.edge_proxy.parts.partial_message import PartialMessage
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.parts.test_plugin import PART_BYTES, PAYLOAD, parts, plugin_of
from tests.edge_proxy.uplink.test_uplink import deliver, take_message
from tests.helpers.wire import WireClient, connected

N_PARTS = len(PAYLOAD) // PART_BYTES
KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 100}}


def plugin(path: Path, **keys: Any) -> dict[str, Any]:
    """Return the plugins of a server."""
    return {"parts": parts(path, "spool", **{"split": ["a"], **keys})}


async def take_parts(client: WireClient, n_parts: int = N_PARTS) -> list[tuple[Publish, Part]]:
    """Take parts, and acknowledge them."""
    messages = [await take_message(client) for _ in range(n_parts)]
    return [(message, read_part(message.payload)) for message in messages]


async def test_a_message_is_published_in_parts_once(tmp_path: Path) -> None:
    """Beside the whole one; the broker does not put its own parts together."""
    async with (
        serving(plugins=plugin(tmp_path)) as server,
        await connected(port_of(server), "near") as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("penstock-parts/#", 2)
        for n in range(2):
            await deliver(far, Publish("a", PAYLOAD, qos=1 + n, packet_id=7))
            found = await take_parts(near)
            assert {message.topic for message, _ in found} == {"penstock-parts/a"}
            partial = PartialMessage(found[0][1], "a")
            for _, part in found:
                assert not partial.mismatch(part, "a")
                partial.add(part)
            assert partial.is_whole
            assert partial.qos == 1 + n
            assert b"".join(part.data for _, part in found) == PAYLOAD
        counts = plugin_of(server).counts
        await until(lambda: counts.split_messages == 2)
        assert counts.split_parts == 2 * N_PARTS
        assert not counts.received_parts


async def test_parts_carry_what_brokers_on_their_way_must_know(tmp_path: Path) -> None:
    """The marks of uplinks and the expiry; the rest stands in the last one.

    The name of the publisher does not, where it is not to be told.
    """
    marks = [("penstock-site", "berlin"), ("penstock-hops", "1")]
    properties = {
        "message_expiry_interval": 100,
        "content_type": "t",
        "user_property": [("a", "b"), *marks],
    }
    async with (
        serving(plugins=plugin(tmp_path, tells_publisher=False)) as server,
        await connected(port_of(server), "near") as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("penstock-parts/#", 2)
        await deliver(far, Publish("a", b"x", qos=1, packet_id=7, properties=properties))
        ((message, part),) = await take_parts(near, 1)
        assert message.properties["user_property"] == marks
        assert 0 < message.properties["message_expiry_interval"] <= 100
        assert part.trailer is not None
        assert part.trailer.properties == b"\x0b\x03\x00\x01t&\x00\x01a\x00\x01b"


async def test_a_queue_that_is_full_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part is lost for a subscriber that is slow."""
    monkeypatch.setattr(splitter, "AGAIN_SECONDS", 0.001)
    limits = {"queued_messages": 5}
    properties = {"receive_maximum": 1}
    async with (
        serving(plugins=plugin(tmp_path), limits=limits) as server,
        await connected(port_of(server), "near", properties=properties) as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("penstock-parts/#", 1)
        await deliver(far, Publish("a", PAYLOAD, qos=1, packet_id=7))
        found = await take_parts(near)
        assert {part.offset for _, part in found} == set(range(0, len(PAYLOAD), PART_BYTES))
        assert dict(plugin_of(server).counts.split_dropped) == {}


async def test_a_restart_goes_on_with_the_same_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of both attempts are parts of one, and the start waits for none of them."""
    monkeypatch.setattr(splitter, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(splitter, "WAITING_BYTES", PART_BYTES)
    keys: dict[str, Any] = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    limits = {"queued_messages": 5}
    async with (
        serving(plugins=plugin(tmp_path), limits=limits, **keys) as server,
        await connected(port_of(server), "near", **KEPT) as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("penstock-parts/#", 1)
        near.close()
        session = server.core.sessions.get("near")
        assert session is not None
        await until(lambda: session.client is None)
        await deliver(far, Publish("a", PAYLOAD, qos=2, packet_id=7))
        await until(lambda: session.outbox.n_messages == 5)
        for _ in range(50):
            await deliver(far, Publish("other", b"", qos=1, packet_id=8))
        assert not session.ledger.dropped  # as the publisher's message would be, as a whole
    async with (
        serving(plugins=plugin(tmp_path), **keys) as server,
        await connected(port_of(server), "near", **KEPT) as near,
    ):
        await until(lambda: plugin_of(server).counts.split_messages == 1)
        await until(lambda: not plugin_of(server)._splitter._cutting)  # type: ignore[union-attr]
        await near.send(Publish("a", b""))
        found: list[Part] = []
        while not found or found[-1].total_bytes:
            message = await near.take(Publish)
            await near.send(PubAck(message.packet_id))
            found.append(read_part(message.payload))
        found.pop()
        assert len({part.message_id for part in found}) == 1
        assert {part.offset for part in found} == set(range(0, len(PAYLOAD), PART_BYTES))


async def test_filters_that_are_not_configured_any_more_are_given_up(tmp_path: Path) -> None:
    """The session stays, with what waits in it."""
    keys: dict[str, Any] = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    async with serving(plugins=plugin(tmp_path, split=["a", "b"]), **keys):
        pass
    async with serving(plugins=plugin(tmp_path, split=["b", "c"]), **keys) as server:
        session = server.core.sessions.get(splitter.SPLIT_ID)
        assert session is not None
        assert sorted(session.subscriptions) == ["b", "c"]


async def test_what_was_retained_before_the_plugin_was_there_is_cut(tmp_path: Path) -> None:
    """For those who had subscribed to the parts by then."""
    keys: dict[str, Any] = {"persistence": {"path": str(tmp_path / "sessions.db")}}
    async with (
        serving(**keys) as server,
        await connected(port_of(server), "near", **KEPT) as near,
        await connected(port_of(server), "far") as far,
    ):
        await near.subscribe("penstock-parts/#", 1)
        await deliver(far, Publish("a", PAYLOAD, qos=1, packet_id=7, retain=True))
    async with (
        serving(plugins=plugin(tmp_path), **keys) as server,
        await connected(port_of(server), "near", **KEPT) as near,
    ):
        found = await take_parts(near)
        assert b"".join(part.data for _, part in found) == PAYLOAD
        assert all(part.retain for _, part in found)
