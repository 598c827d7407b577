"""What the lanes of an uplink do about each other, where the cloud's broker takes one alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.mqtt.packets import ConnAck, Connect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.server import Server
from penstock.edge_proxy.uplink import lanes as lanes_module
from tests.broker.serving import port_of, serving, until
from tests.helpers.scripted import ScriptedBroker
from tests.helpers.wire import WireClient, connected
from tests.system.test_uplink_lanes import N_MESSAGES, edge_of, lanes_of, publish_all, take_all

TOPICS = ["up/mixed/a", "up/mixed/b"]
IN_ORDER = {topic: list(range(N_MESSAGES)) for topic in TOPICS}
LASTING: dict[str, Any] = {"properties": {"session_expiry_interval": 3600}}


@contextlib.asynccontextmanager
async def running_edge(port: int, **keys: Any) -> AsyncIterator[Server]:
    """Run a site's broker with an uplink for what is below ``up``."""
    edge = edge_of(port, up=[{"filter": "up/#"}], **keys)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.stop()


async def pass_all(edge: Server, taker: WireClient) -> dict[str, list[int]]:
    """Publish messages of both sizes at a site, and take them in the cloud."""
    near = await connected(edge.addresses["default"][1], "near")
    got, _ = await asyncio.gather(
        take_all(taker, len(TOPICS), lambda: None), publish_all(near, TOPICS)
    )
    near.close()
    return got


def sessions(n_sessions: int) -> dict[str, int]:
    """Return the limits of a broker with so many sessions."""
    return {"sessions": n_sessions, "sessions_per_address": n_sessions}


async def taker_of(port: int) -> WireClient:
    """Return a client of the cloud that gets what goes up."""
    taker = await connected(port, "taker")
    await taker.subscribe("up/#", 2)
    return taker


def told_of(edge: Server, client_id: str) -> str:
    """Return what `penstock why` says of a client beside its being connected or not."""
    session = edge.core.sessions.get(client_id)
    assert session is not None
    return report(subject_of(session), 0.0).why_away


async def test_a_second_connection_that_is_refused_is_done_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by a limit of sessions: told once, in the log and in the report; nothing is lost."""
    async with serving(limits=sessions(2)) as cloud:
        taker = await taker_of(port_of(cloud))
        async with running_edge(port_of(cloud), lanes="auto") as edge:
            small, large = lanes_of(edge)
            await until(lambda: large.counts.failures.get("refused"))
            assert await pass_all(edge, taker) == IN_ORDER
            assert (large.counts.up_messages, large.counts.connections) == (0, 0)
            for client_id in ("$uplink/cloud/up", "$uplink/cloud/up-large"):
                assert "one connection, not two: " in told_of(edge, client_id)
            for lane in (small, large):
                assert lane._connection is not None
            assert small._connection is not None
            small._connection.end("closed", "as the test has it")
            await until(lambda: small.counts.connections == 2)
            await until(lambda: large.counts.failures["refused"] == 2)
            assert caplog.text.count("one connection to") == 1


async def test_a_second_connection_that_is_closed_without_a_word_is_done_without() -> None:
    """As AWS IoT closes that of a client id which its policy does not allow."""
    async with ScriptedBroker() as cloud, running_edge(cloud.port, adopts_session=True) as edge:
        _, large = lanes_of(edge)
        first = await cloud.accepted()
        for _ in range(lanes_module.UNANSWERED_IN_A_ROW):
            peer = await cloud.connected()
            connect = await peer.receive()
            assert isinstance(connect, Connect)
            assert connect.client_id == "berlin-cloud-large"
            await peer.close()
        await until(lambda: large.counts.taken_over)
        near = await connected(edge.addresses["default"][1], "near")
        await near.publish("up/a", b"x" * 20_000)
        while not isinstance(packet := await first.receive(), Publish) or packet.qos == 0:
            pass
        assert packet.topic == "up/a"
        near.close()


async def test_a_client_id_that_is_too_long_for_its_suffix_has_one_connection() -> None:
    """Some brokers take few characters."""
    async with ScriptedBroker() as cloud, running_edge(cloud.port, adopts_session=True) as edge:
        small, large = lanes_of(edge)
        await cloud.accepted()
        peer = await cloud.connected()
        await peer.receive()
        peer.send(ConnAck(reason_code=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID))
        await until(lambda: large.counts.taken_over)
        assert "client identifier not valid" in told_of(edge, "$uplink/cloud/up")
        assert small.counts.connected


async def test_with_mqtt_3_1_1_there_is_one_connection() -> None:
    """Such a broker may drop what the second client publishes, and acknowledge it all the same."""
    async with serving() as cloud:
        taker = await taker_of(port_of(cloud))
        async with running_edge(port_of(cloud), version="3.1.1", lanes="auto") as edge:
            [uplink] = lanes_of(edge)
            assert await pass_all(edge, taker) == IN_ORDER
            assert uplink.lane.sizes is None
