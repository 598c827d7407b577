from __future__ import annotations

import asyncio

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.mqtt.packets import Disconnect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.server import Server
from tests.broker.operations.test_metrics import values
from tests.broker.serving import operations_of, port_of, serving, until
from tests.helpers.process import anonymous_policy
from tests.helpers.wire import WireClient, connected


@pytest.mark.parametrize("seconds", [0.0, 0.2])
async def test_a_broker_that_drains_sends_its_clients_away_and_takes_no_others(
    seconds: float,
) -> None:
    """One after the other, so that other brokers are not flooded; the program goes on."""
    async with serving() as server:
        operations, port = operations_of(server), port_of(server)
        clients = [await connected(port, f"c{number}") for number in range(5)]
        operations.drain(seconds)
        operations.drain(seconds)
        assert operations.is_draining
        assert "draining" in await operations.problems()
        for client in clients:
            packet = await client.take(Disconnect)
            assert packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
            client.close()
        with pytest.raises(ConnectionRefusedError):
            await WireClient.dial(port)
        await until(lambda: not operations.client_ids())
        assert values(await operations.metrics())["draining"] == 1
        assert (await operations.reload()).failed


async def test_clients_are_told_where_else_to_go() -> None:
    """Where the policy file names another server."""
    async with serving(mqtt={"server_reference": "other.example"}) as server:
        client = await connected(port_of(server), "c")
        operations_of(server).drain(0)
        packet = await client.take(Disconnect)
        assert packet.reason_code == ReasonCode.USE_ANOTHER_SERVER
        assert packet.properties["server_reference"] == "other.example"
        client.close()


async def test_messages_that_were_accepted_are_there_for_the_next_server() -> None:
    """A durable session keeps what a client that was sent away had not acknowledged."""
    async with serving() as server:
        port = port_of(server)
        stays = {"session_expiry_interval": 100}
        client = await connected(port, "s", clean_start=False, properties=stays)
        await client.subscribe("t", 1)
        async with await connected(port, "p") as publisher:
            await publisher.publish("t", b"x")
        await client.take(Publish)
        operations_of(server).drain(0)
        await client.take(Disconnect)
        session = server.core.sessions.get("s")
        assert session is not None
        assert len(session.inflight) == 1
        session.check_invariants()
        client.close()


async def test_a_reload_under_way_opens_no_listener() -> None:
    """A broker that drains takes no clients, whichever came first."""
    listeners = {"default": {"bind": "127.0.0.1:0"}, "more": {"bind": "127.0.0.1:0"}}
    wanted = parse_policy(anonymous_policy(listeners=listeners), "policy.yaml")
    before = parse_policy(anonymous_policy(), "policy.yaml")
    server = Server(before, read_policy=lambda: wanted)
    await server.start()
    try:
        reloading = asyncio.create_task(server.reload())
        await asyncio.sleep(0)
        operations_of(server).drain(0)
        assert (await reloading).failed
        assert "more" not in server.addresses
    finally:
        await server.stop()
