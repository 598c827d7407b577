"""Messages that one end of an uplink does not take are told and set aside; others pass."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from penstock.broker.server import Server
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.uplink.test_uplink import deliver, take_message
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.wire import WireClient, connected
from tests.system.test_uplink_lanes import edge_of, lanes_of

TAB: dict[str, Any] = {"limits": {"topic_control_characters": True}}
"""A site that takes topics which other brokers do not."""


@contextlib.asynccontextmanager
async def running_edge(
    port: int, policy: Mapping[str, Any] | None = None, **keys: Any
) -> AsyncIterator[Server]:
    """Run a site's broker with an uplink for what is below ``up``."""
    edge = edge_of(port, policy=policy, up=[{"filter": "up/#"}], **keys)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.stop()


async def take_topics(taker: WireClient, topics: Sequence[str]) -> None:
    """Take messages, some of which may come twice, until there was one of each topic."""
    left = set(topics)
    while left:
        packet = await taker.receive()
        if isinstance(packet, PubRel):
            await taker.send(PubComp(packet.packet_id))
        elif isinstance(packet, Publish):
            left.discard(packet.topic)
            await taker.send((PubRec if packet.qos == 2 else PubAck)(packet.packet_id))


def user_properties(n_properties: int) -> dict[str, Any]:
    """Return properties with so many User Properties."""
    return {"user_property": [("k", str(number)) for number in range(n_properties)]}


async def test_a_message_with_all_the_user_properties_that_a_site_takes_goes_up() -> None:
    """The uplink adds its own, for which the cloud has room."""
    async with serving() as cloud, await connected(port_of(cloud), "far") as far:
        await far.subscribe("up/#", 1)
        edge = edge_of(port_of(cloud), up=[{"filter": "up/#"}])
        await edge.start()
        try:
            near = await connected(edge.addresses["default"][1], "near")
            for n_properties in (253, 254, 255, 256):
                message = Publish(
                    "up/a", b"x", 1, packet_id=1, properties=user_properties(n_properties)
                )
                await deliver(near, message)
                came = await take_message(far)
                assert len(came.properties["user_property"]) == n_properties + 3
            for lane in lanes_of(edge):
                assert (lane.counts.failures, lane.counts.up_dropped) == ({}, {})
        finally:
            await edge.stop()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_of_the_cloud_that_the_site_does_not_take_is_dropped(
    qos: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is acknowledged to the cloud: unacknowledged, it would come with each connection."""
    caplog.set_level("INFO")
    with running_mosquitto(tmp_path) as mosquitto:
        edge = edge_of(mosquitto.port, down=[{"filter": "down/#", "when": "always"}])
        await edge.start()
        try:
            small = lanes_of(edge)[0]
            near = await connected(edge.addresses["default"][1], "near")
            await near.subscribe("down/#", 2)
            far = await connected(mosquitto.port, "far")
            await until(lambda: small.counts.connected)
            while not small.counts.down_messages:
                await deliver(far, Publish("down/begin", b"", 1, packet_id=1))
            packet_id = 1 if qos else 0
            poison = Publish(
                "down/a", b"x", qos, packet_id=packet_id, properties=user_properties(300)
            )
            await deliver(far, poison)
            await deliver(far, Publish("down/b", b"after", 1, packet_id=2))
            while (await take_message(near)).topic != "down/b":
                pass
            assert small.counts.failures == {}
            await until(lambda: len(small.counts.down_dropped) == bool(qos))
            assert small.counts.down_dropped == ({"refused": 1} if qos else {})
            assert (
                "publish to down/a refused: quota exceeded (0x97): PUBLISH: more prop"
                in caplog.text
            )
        finally:
            await edge.stop()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_that_the_cloud_hangs_up_at_is_set_aside(
    qos: int, version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto takes no control characters in topics, and says so by the end of the connection.

    All others pass, those that waited before and behind it, and what comes later.
    """
    with running_mosquitto(tmp_path) as mosquitto:
        far = await connected(mosquitto.port, "far")
        await far.subscribe("up/#", 2)
        async with running_edge(mosquitto.port, TAB, version=version) as edge:
            small = lanes_of(edge)[0]
            near = await connected(edge.addresses["default"][1], "near")
            topics = [f"up/{n}" for n in range(20)]
            for number, topic in enumerate([*topics[:10], "up/a\tb", *topics[10:]], 1):
                await deliver(near, Publish(topic, b"x", qos, packet_id=number))
            await take_topics(far, topics)
            await until(lambda: small.counts.up_dropped == {"refused": 1})
            await deliver(near, Publish("up/later", b"x", qos, packet_id=1))
            await take_topics(far, ["up/later"])
            assert "has ended the connection at the message of topic 'up/a\\tb'" in caplog.text
            assert "is set aside" in caplog.text
            assert "client_id" not in caplog.text


async def test_messages_of_qos_0_that_the_cloud_hangs_up_at_are_set_aside_by_their_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sensor that publishes one each second would end each connection."""
    with running_mosquitto(tmp_path) as mosquitto:
        far = await connected(mosquitto.port, "far")
        await far.subscribe("up/#", 1)
        async with running_edge(mosquitto.port, TAB, version="3.1.1") as edge:
            [uplink] = lanes_of(edge)
            near = await connected(edge.addresses["default"][1], "near")
            while not uplink.counts.up_dropped:
                await near.send(Publish("up/a\tb", b"x", 0))
                await near.publish("up/good", b"x")
                await take_topics(far, ["up/good"])
            assert uplink.counts.up_dropped == {"refused": 1}
            assert "'up/a\\tb' (1 bytes, QoS 0)" in caplog.text


@pytest.mark.parametrize("is_told", [False, True])
async def test_what_is_retained_goes_up_without_the_flag_where_the_cloud_hangs_up_at_it(
    *, is_told: bool, tmp_path: Path
) -> None:
    """MQTT 3.1.1 has no other way to say that nothing is retained.

    Where the cloud is told the state, it also refuses each CONNECT with a will that is retained:
    these ends do not make those at a message less credible.
    """
    with running_mosquitto(tmp_path, "retain_available false") as mosquitto:
        far = await connected(mosquitto.port, "far")
        await far.subscribe("up/#", 1)
        async with running_edge(
            mosquitto.port, version="3.1.1", notifications_local_only=not is_told
        ) as edge:
            [uplink] = lanes_of(edge)
            near = await connected(edge.addresses["default"][1], "near")
            topics = [f"up/{number}" for number in range(4)]
            for number, topic in enumerate(topics, 1):
                await deliver(near, Publish(topic, b"x", 1, retain=True, packet_id=number))
            await take_topics(far, topics)
            assert uplink.counts.up_dropped == {}
            assert list(uplink.counts.changed) == ["retain_cleared"]
            n_failures = uplink.counts.failures["closed"]
            await deliver(near, Publish("up/later", b"x", 1, retain=True, packet_id=1))
            await take_topics(far, ["up/later"])
            assert uplink.counts.failures["closed"] == n_failures


@contextlib.asynccontextmanager
async def cloud_that_retains_nothing(name: str, tmp_path: Path) -> AsyncIterator[int]:
    """Run mosquitto or Penstock without retained messages, and give its port."""
    if name == "mosquitto":
        with running_mosquitto(tmp_path, "retain_available false") as mosquitto:
            yield mosquitto.port
    else:
        async with serving(mqtt={"retain_available": False}) as cloud:
            yield port_of(cloud)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("name", ["penstock", "mosquitto"])
async def test_a_cloud_that_retains_nothing_is_told_the_state_without_the_flag(
    name: str, version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses a CONNECT with a will that is retained: in MQTT 5 it says why, in 3.1.1 it ends.

    MQTT 5 needs one attempt more, once; MQTT 3.1.1 two at first, and one with each connection.
    """
    caplog.set_level("INFO")
    async with cloud_that_retains_nothing(name, tmp_path) as port:
        far = await connected(port, "far")
        await far.subscribe("state", 1)
        async with running_edge(port, version=version, notification_topic="state") as edge:
            uplink = lanes_of(edge)[0]
            assert (await far.take(Publish)).payload == b"1"
            assert uplink._connection is not None
            assert uplink._connection.cloud.transport is not None
            uplink._connection.cloud.transport.abort()
            assert [(await far.take(Publish)).payload for _ in range(2)] == [b"0", b"1"]  # the will
            near = await connected(edge.addresses["default"][1], "near")
            await deliver(near, Publish("up/a", b"x", 1, packet_id=1))
            await near.subscribe("state", 1)
            assert (await near.take(Publish)).payload == b"1"  # the site retains it
            n_closed = {"5": 1, "3.1.1": 4}[version]
            assert uplink.counts.failures == {"closed": n_closed}
        assert (await far.take(Publish)).payload == b"0"  # its goodbye
    assert caplog.text.count("refuses a will that is retained, and takes one that is not") == 1


@contextlib.asynccontextmanager
async def link_that_is_cut(port: int, n_cuts: int, most_bytes: int) -> AsyncIterator[int]:
    """Forward connections to a port; cut those of the first that carry so many bytes to it."""
    n_cut = 0

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_cut
        back, forth = await asyncio.open_connection("127.0.0.1", port)

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            nonlocal n_cut
            n_bytes = 0
            while data := await source.read(10_000):
                sink.write(data)
                await sink.drain()
                n_bytes += len(data)
                if source is reader and n_bytes >= most_bytes and n_cut < n_cuts:
                    n_cut += 1
                    break
            for end in (writer, forth):
                end.transport.abort()

        with contextlib.suppress(OSError):
            await asyncio.gather(pass_on(reader, forth), pass_on(back, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, limit=10_000)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_message_on_a_link_that_is_cut_again_and_again_is_not_set_aside(
    tmp_path: Path,
) -> None:
    """The cloud has not got all of it, and TCP has not said so."""
    with running_mosquitto(tmp_path) as mosquitto:
        far = await connected(mosquitto.port, "far")
        await far.subscribe("up/#", 1)
        async with (
            link_that_is_cut(mosquitto.port, 6, 2_000_000) as port,
            running_edge(port, version="3.1.1") as edge,
        ):
            [uplink] = lanes_of(edge)
            near = await connected(edge.addresses["default"][1], "near")
            await near.publish("up/a", b"x" * 20_000_000)
            await near.publish("up/b", b"x")
            await take_topics(far, ["up/a", "up/b"])
            assert uplink.counts.failures == {"closed": 6}
            assert uplink.counts.up_dropped == {}
