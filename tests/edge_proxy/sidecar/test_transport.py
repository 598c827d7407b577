from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from penstock.broker.config.listener_config import Listener
from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.admission import MAX_REFUSED, Admission
from penstock.broker.network.listeners import Listening
from penstock.broker.network.new_connection import Reception
from penstock.edge_proxy.sidecar import pings, transport
from penstock.edge_proxy.sidecar.config import Identity, ProxyLimits
from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient
from penstock.edge_proxy.sidecar.proxy_state import ProxyState
from penstock.edge_proxy.sidecar.transport import ClientTransport, ProxiedClients
from penstock.edge_proxy.upstream import Upstreams
from penstock.edge_proxy.upstream_config import UpstreamKeys
from tests.helpers.gates import SwitchGate
from tests.helpers.process import SECONDS
from tests.helpers.proxied_clients import DOWN, UP, publish
from tests.helpers.scripted import Peer, ScriptedBroker, open_client, until

MIB = 1024 * 1024

LISTENER = Listener(name="default", host="127.0.0.1", port=0)


class Bench:
    """A proxy between a scripted broker and the test's clients.

    Attributes:
        clients: what is tested.
        broker: behind it.
        address: where clients connect.
    """

    def __init__(
        self, clients: ProxiedClients, broker: ScriptedBroker, address: tuple[str, int]
    ) -> None:
        self.clients = clients
        self.broker = broker
        self.address = address

    async def joined(self, version: int = 5) -> tuple[Peer, Peer]:
        """Return a client and the broker's end of its connection, CONNACK taken."""
        client = await open_client(self.address, version, client_id="c")
        broker = await self.broker.accepted()
        assert await client.receive() == ConnAck()
        return client, broker


class Sampler(LinkSampler):
    """A sampler that looks at whom the socket it is given is connected to."""

    period: float | None = 0.01

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def sample(self, link: Link, fileno: int, now: float) -> bool:
        """Take note of the peer."""
        del link, now
        with socket.socket(fileno=os.dup(fileno)) as sock:
            self.seen.append(sock.getpeername())
        return False


@asynccontextmanager
async def bench(
    gate: SwitchGate | None = None,
    sampler: Sampler | None = None,
    broker_port: int | None = None,
    *,
    connack_timeout_seconds: float = 3600.0,
    connections: int = 1000,
    listener: Listener = LISTENER,
    identity: Identity = "none",
    **limits: Any,
) -> AsyncIterator[Bench]:
    """Run a proxy."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(ScriptedBroker())
        shared = ProxyState(
            ProxyLimits(**limits),
            logger=logging.getLogger("test.proxy"),
            gate=gate,
            samplers=[sampler] if sampler else [],
        )
        port = broker.port if broker_port is None else broker_port
        upstreams = Upstreams(
            UpstreamKeys(address=f"127.0.0.1:{port}", connect_timeout_seconds=SECONDS),
            shared.logger,
        )
        reception = Reception(
            Admission(shared.counters, connections=connections, connections_per_address=None),
            shared.counters,
            shared.logger,
            clock=time.monotonic,
            timeout=shared.limits.connect_timeout_seconds,
        )
        clients = ProxiedClients(
            shared,
            reception,
            upstreams,
            connack_timeout_seconds=connack_timeout_seconds,
            identity=identity,
        )
        listening = Listening(
            listener,
            reception,
            clients.accept,
            maximum_packet_size=shared.limits.maximum_packet_size,
        )
        await listening.bind()
        await listening.serve()
        stack.push_async_callback(clients.close)
        stack.callback(listening.close)
        yield Bench(clients, broker, listening.address)


@pytest.mark.parametrize("version", [4, 5])
async def test_packets_go_both_ways(version: int, caplog: pytest.LogCaptureFixture) -> None:
    """A client and its broker talk through the proxy as if it was not there."""
    caplog.set_level("DEBUG", logger="test.proxy")
    async with bench() as proxy:
        client, broker = await proxy.joined(version)
        host, port = client.writer.get_extra_info("sockname")
        assert caplog.messages[-1] == (
            f"client c ({host}:{port}): connected, user None, protocol level {version}, on "
            f"listener default, to the broker at 127.0.0.1:{proxy.broker.port}"
        )
        client.send(PingReq(), publish("up", 10, packet_id=1))
        assert [await broker.receive(), await broker.receive()] == [
            PingReq(),
            publish("up", 10, packet_id=1),
        ]
        broker.send(PingResp(), PubAck(1), publish("down", MIB, packet_id=5))
        assert await client.receive() == PingResp()
        assert await client.receive() == PubAck(1)
        assert await client.receive() == publish("down", MIB, packet_id=5)
        client.send(PubAck(5))
        assert await broker.receive() == PubAck(5)


async def test_what_a_client_sends_at_once_reaches_the_broker() -> None:
    """CONNECT, a message and DISCONNECT in one go, then gone: nothing is lost on the way."""
    async with bench() as proxy:
        client = await open_client(proxy.address)
        client.send(Publish("up", b"x" * MIB), Disconnect())
        await client.close()
        broker = await proxy.broker.accepted()
        assert await broker.receive() == Publish("up", b"x" * MIB)
        assert await broker.receive() == Disconnect()
        assert await broker.receive_end() == b""


async def test_a_broker_that_goes_takes_the_client_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sent before arrives; then the client's connection is closed, at once."""
    monkeypatch.setattr(transport, "CLOSE_TIMEOUT_SECONDS", 3600.0)
    async with bench() as proxy:
        client, broker = await proxy.joined()
        broker.send(publish("last", 10), Disconnect(ReasonCode.SESSION_TAKEN_OVER))
        await broker.close()
        assert await client.receive() == publish("last", 10)
        assert await client.receive() == Disconnect(ReasonCode.SESSION_TAKEN_OVER)
        assert await client.receive_end() == b""
        await proxy.clients.all_ended()
        assert not proxy.clients.running


async def test_a_broker_is_doubted_when_a_client_gives_up_waiting_for_its_connack() -> None:
    """Most clients wait less long than the proxy; one that was answered says nothing by leaving."""
    async with bench() as proxy:
        [upstream] = proxy.clients.upstreams.each
        client, _ = await proxy.joined()
        await client.close()
        await proxy.clients.all_ended()
        assert not upstream.is_doubted
        client = await open_client(proxy.address)
        broker = await proxy.broker.connected()
        assert isinstance(await broker.receive(), Connect)
        client.writer.transport.abort()
        await proxy.clients.all_ended()
        assert upstream.is_doubted


async def test_silent_connections_are_counted_until_they_are_heard_or_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells of the first, and of the end of the last."""
    monkeypatch.setattr(pings, "MOST_PATIENCE_SECONDS", 0.01)
    caplog.set_level("WARNING", logger="test.proxy")
    async with bench() as proxy:
        [upstream] = proxy.clients.upstreams.each
        one, broker = await proxy.joined()
        other, _ = await proxy.joined()
        for client in (one, other):
            client.send(PingReq())
            assert await client.receive() == PingResp()
        await until(lambda: upstream.n_silent == 2)
        assert upstream.is_doubted
        broker.send(PubAck(1))
        assert await one.receive() == PubAck(1)
        await until(lambda: upstream.n_silent == 1)
        await other.close()
        await until(lambda: not upstream.n_silent)
    name = f"upstream: 127.0.0.1:{proxy.broker.port}"
    assert caplog.messages == [
        f"{name} answers no PINGREQ, and says nothing else to a client",
        f"{name} has no silent connection any more",
    ]


async def test_a_client_that_goes_takes_the_connection_to_the_broker_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once; what was withheld for it is left to the broker unacknowledged."""
    monkeypatch.setattr(transport, "CLOSE_TIMEOUT_SECONDS", 3600.0)
    async with bench(SwitchGate()) as proxy:
        client, broker = await proxy.joined()
        broker.send(publish("big", 200, packet_id=1), PingResp())
        assert await client.receive() == PingResp()
        client.writer.transport.abort()
        assert await broker.receive_end() == b""
        await proxy.clients.all_ended()
        assert proxy.clients.shared.ended.moved == 1


async def test_a_client_that_goes_before_the_broker_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that comes too late is dropped."""
    async with bench() as proxy:
        dial = ProxiedClients._dial
        begun = asyncio.Event()
        unstoppable: list[asyncio.Future[None]] = []

        async def late(
            clients: ProxiedClients, client_transport: transport.ClientTransport
        ) -> None:
            # The cancellation comes when the connection can no longer be stopped.
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                unstoppable.append(asyncio.ensure_future(dial(clients, client_transport)))

        monkeypatch.setattr(ProxiedClients, "_dial", late)
        client = await open_client(proxy.address)
        await begun.wait()
        (client_transport,) = proxy.clients.running
        client.writer.transport.abort()
        client_transport.close(ReasonCode.SERVER_SHUTTING_DOWN)
        broker = await proxy.broker.connected()
        assert await broker.receive_end() == b""
        await proxy.clients.all_ended()


async def test_a_withheld_message_leaves_when_its_time_has_come() -> None:
    """The deadline that the gate names is kept, without any packet coming in."""
    gate = SwitchGate()
    gate.look_again_after = 0.01
    async with bench(gate, connect_timeout_seconds=3600.0) as proxy:
        client, broker = await proxy.joined()
        broker.send(publish("big", 200, packet_id=1), publish("small", packet_id=2))
        assert await client.receive() == publish("small", packet_id=2)
        gate.is_open = True
        assert await client.receive() == publish("big", 200, packet_id=1)


async def test_more_large_messages_than_one_turn_takes() -> None:
    """They leave one by one, others have their turn in between, and all of them arrive."""
    async with bench(SwitchGate(is_open=True)) as proxy:
        client, broker = await proxy.joined()
        numbers = range(1, 3 * transport.MAX_TURNS)
        broker.send(*(publish(f"big{n}", 200, packet_id=n) for n in numbers))
        for number in numbers:
            assert await client.receive() == publish(f"big{number}", 200, packet_id=number)


async def test_samplers_look_at_the_clients_socket() -> None:
    """The path that counts is the one to the client, not the one to the broker."""
    sampler = Sampler()
    async with bench(sampler=sampler) as proxy:
        client, _broker = await proxy.joined()
        await until(lambda: len(sampler.seen) >= 2)
        assert set(sampler.seen) == {client.writer.get_extra_info("sockname")}


async def test_little_is_handed_over_before_the_client_has_room() -> None:
    """A small message has to wait for no more than the limits allow to be unsent."""
    async with bench(write_high_bytes=5000, write_low_bytes=1000) as proxy:
        await proxy.joined()
        (client_transport,) = proxy.clients.running
        assert _there(client_transport._client).get_write_buffer_limits() == (1000, 5000)


def _there(transport: asyncio.Transport | None) -> asyncio.Transport:
    """Return a transport that there must be."""
    assert transport is not None
    return transport


def pair_of(client_transport: ClientTransport) -> ProxiedClient:
    """Return the proxied client of a client that has its place."""
    assert client_transport.proxied is not None
    return client_transport.proxied


async def test_a_client_that_does_not_read_stops_the_broker() -> None:
    """Memory stays bounded by limits and buffers, and everything arrives in the end."""
    async with bench(queued_bytes=MIB) as proxy:
        client, broker = await proxy.joined()
        (client_transport,) = proxy.clients.running
        sent = 0
        while pair_of(client_transport).wants_reading(DOWN):
            if broker.writer.transport.get_write_buffer_size() < MIB:
                sent += 1
                assert sent < 200, "the broker is never stopped"
                broker.send(publish(f"t{sent}", MIB // 4))
            await asyncio.sleep(0)
        assert not _there(client_transport._broker).is_reading()
        assert pair_of(client_transport).client.outbox.n_bytes <= MIB + MIB // 4
        for number in range(1, sent + 1):
            packet = await client.receive()
            assert isinstance(packet, Publish)
            assert packet.topic == f"t{number}"
        assert _there(client_transport._broker).is_reading()


async def test_a_broker_that_does_not_read_stops_the_client() -> None:
    """Upstream, a client's flood stays with the client, and arrives in the end."""
    async with bench() as proxy:
        client, broker = await proxy.joined()
        (client_transport,) = proxy.clients.running
        sent = 0
        while pair_of(client_transport).wants_reading(UP):
            if client.writer.transport.get_write_buffer_size() < MIB:
                sent += 1
                assert sent < 200, "the client is never stopped"
                client.send(Publish("t", b"x" * MIB))
            await asyncio.sleep(0)
        assert not _there(client_transport._client).is_reading()
        for _ in range(sent):
            assert await broker.receive() == Publish("t", b"x" * MIB)
        client.send(PingReq())
        assert await broker.receive() == PingReq()


async def test_a_fault_of_the_proxy_ends_one_pair(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of our own is logged with its client; others go on."""
    async with bench() as proxy:
        client, _ = await proxy.joined()
        other, other_broker = await proxy.joined()

        def fail(*_: object) -> None:
            raise RuntimeError("our own")

        with monkeypatch.context() as patched:
            patched.setattr(
                "penstock.edge_proxy.sidecar.proxied_client.ProxiedClient.receive_data", fail
            )
            client.send(PingReq())
            assert await client.receive() == Disconnect(ReasonCode.UNSPECIFIED_ERROR)
            assert await client.receive_end() == b""
        other.send(PingReq())
        assert await other_broker.receive() == PingReq()
    assert "closed after a fault of the proxy" in caplog.text


async def test_a_client_that_takes_nothing_is_dropped_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A close does not wait for ever for what cannot be sent."""
    monkeypatch.setattr(transport, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with bench() as proxy:
        _client, broker = await proxy.joined()
        broker.send(publish("t", 30 * MIB))
        (client_transport,) = proxy.clients.running
        await until(lambda: pair_of(client_transport).client.is_paused)
        await broker.close()
        async with asyncio.timeout(SECONDS):
            await proxy.clients.all_ended()


async def stuck_client(proxy: Bench, broker: Peer) -> None:
    """Send a client, which reads nothing, more than its connection takes."""
    broker.send(publish("t", 30 * MIB))
    (client_transport,) = proxy.clients.running
    await until(lambda: pair_of(client_transport).client.is_paused)


async def test_a_client_that_sends_its_end_and_reads_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither its connection nor the one to the broker stays."""
    monkeypatch.setattr(transport, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with bench() as proxy:
        client, broker = await proxy.joined()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await stuck_client(proxy, broker)
        client.send(Publish("last", b"words"))
        client.writer.write_eof()
        assert await broker.receive() == Publish("last", b"words")
        assert await broker.receive_end() == b""
        async with asyncio.timeout(SECONDS):
            await proxy.clients.all_ended()
        await client.close()


async def test_a_broker_that_sends_its_end_and_reads_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it sent before still reaches the client, whose connection is closed then."""
    monkeypatch.setattr(transport, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with bench() as proxy:
        client, broker = await proxy.joined()
        broker.reader._transport.pause_reading()  # type: ignore[attr-defined]
        (client_transport,) = proxy.clients.running
        client.send(Publish("t", b"x" * 30 * MIB))
        await until(lambda: not pair_of(client_transport).wants_reading(UP))
        broker.send(publish("last", 10))
        broker.writer.write_eof()
        assert await client.receive() == publish("last", 10)
        async with asyncio.timeout(SECONDS):
            await proxy.clients.all_ended()
        await broker.close()


async def test_a_flood_above_the_limit_of_connections_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only so many may stay to hear why; the log tells of the rest, ever less often."""
    async with bench(connections=1) as proxy:
        client, _ = await proxy.joined()
        flood = [await asyncio.open_connection(*proxy.address) for _ in range(MAX_REFUSED + 3)]
        refused = proxy.clients.shared.counters.connections_refused
        await until(lambda: refused.get("all") == len(flood))
        assert refused["cut_off"] == 3
        for _, writer in flood:
            writer.close()
        await until(lambda: len(proxy.clients.running) == 1)
        assert proxy.clients.reception.admission.n_connections == 1
        await client.close()
    assert "2 connections above the limits cut off so far" in caplog.text
    assert "3 connections" not in caplog.text


async def test_a_fault_at_a_deadline_ends_one_pair(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its client, and the proxied client does not stay without its timer."""

    def fail(*_: object) -> None:
        raise RuntimeError("our own")

    monkeypatch.setattr(
        "penstock.edge_proxy.sidecar.proxied_client.ProxiedClient.handle_timeout", fail
    )
    async with bench(connect_timeout_seconds=0.01) as proxy:
        _, writer = await asyncio.open_connection(*proxy.address)
        await until(lambda: "closed after a fault of the proxy" in caplog.text)
        await until(lambda: not proxy.clients.running)
        writer.close()
