from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from penstock.broker.extensions import DeliveryGate, Transfer
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import PingReq, Publish
from penstock.broker.network import lingering_close as lingering_module
from penstock.broker.network.lingering_close import LingeringClose
from penstock.broker.sending.outgoing import WRITE_BYTES
from penstock.broker.server import Server
from penstock.broker.sessions import breaking_off
from penstock.broker.sessions.breaking_off import BreakingOff
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.certificates import Authority
from tests.helpers.shelf import Shelf
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient

MANY_BYTES = 64 * 1024


async def make(client_bytes: bytes) -> tuple[LingeringClose, asyncio.Transport, socket.socket]:
    """Return a connection's transport, which is not read from, and the peer, which has sent."""
    loop = asyncio.get_running_loop()
    server = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(server.getsockname())
    sock, _ = server.accept()
    server.close()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
    transport.pause_reading()
    peer.sendall(client_bytes)
    peer.setblocking(False)
    return LingeringClose(loop), transport, peer


async def read_all(peer: socket.socket) -> bytes:
    """Return what a peer gets until the end; a reset raises."""
    loop = asyncio.get_running_loop()
    data = b""
    while chunk := await loop.sock_recv(peer, MANY_BYTES):
        data += chunk
    return data


async def test_what_the_kernel_has_arrives_with_an_end_and_no_reset() -> None:
    """Although the peer has sent what nobody has read, and goes on sending."""
    lingering, transport, peer = await make(b"unread" * 1000)
    transport.write(b"sent")
    lingering.break_off(transport)
    assert transport.is_closing()
    peer.sendall(b"more")
    assert await read_all(peer) == b"sent"
    peer.sendall(b"and more")
    assert len(lingering) == 1
    peer.close()
    await until(lambda: len(lingering) == 0)


async def test_what_the_transport_has_is_not_waited_for() -> None:
    """A peer that reads nothing for now gets what the kernel had, and then the end."""
    lingering, transport, peer = await make(b"")
    n_bytes = 64 * 1024 * 1024
    transport.write(bytes(n_bytes))
    await until(lambda: 0 < transport.get_write_buffer_size() < n_bytes)
    lingering.break_off(transport)
    assert 0 < len(await read_all(peer)) < n_bytes
    peer.close()
    await until(lambda: len(lingering) == 0)


async def test_peer_that_does_not_close_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its descriptor is free again."""
    monkeypatch.setattr(lingering_module, "LINGER_SECONDS", 0.01)
    lingering, transport, peer = await make(b"")
    lingering.break_off(transport)
    await until(lambda: len(lingering) == 0)
    peer.close()


async def test_peer_that_is_gone_is_not_lingered_for() -> None:
    """A reset is the end."""
    lingering, transport, peer = await make(b"")
    lingering.break_off(transport)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    await until(lambda: len(lingering) == 0)


async def test_no_more_than_so_many_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that lingers longest makes room; its peer sees the end all the same."""
    monkeypatch.setattr(lingering_module, "MOST_SOCKETS", 1)
    lingering, transport, peer = await make(b"")
    transport.write(b"sent")
    lingering.break_off(transport)
    _, second, second_peer = await make(b"")
    lingering.break_off(second)
    assert len(lingering) == 1
    assert await read_all(peer) == b"sent"
    assert await read_all(second_peer) == b""
    peer.close()
    second_peer.close()
    await until(lambda: len(lingering) == 0)


async def test_all_are_closed_as_the_broker_stops() -> None:
    """Nothing is left for the loop to look at."""
    lingering, transport, peer = await make(b"")
    lingering.break_off(transport)
    lingering.close()
    assert len(lingering) == 0
    assert await read_all(peer) == b""
    peer.close()


async def test_a_connection_that_is_broken_off_ends_without_a_reset() -> None:
    """A client gets what the kernel had, then the end, though nobody has read what it sent."""
    shelf = Shelf(bytes(20 * WRITE_BYTES))
    async with (
        serving() as server,
        await WireClient.dial(port_of(server), receive_bytes=4096) as client,
    ):
        await client.connect("c")
        protocol = protocol_of(server, "c")
        connection = protocol.connection
        assert connection is not None

        def send() -> None:
            message = Message("t", shelf)
            connection.client.session.deliver(
                message, 0, retain=False, subscription_ids=(), now=0.0
            )

        driver_of(server).take_turn(send)
        await until(lambda: connection.outgoing.is_stuck)
        protocol.transport.pause_reading()
        await client.send(PingReq())
        driver_of(server).take_turn(lambda: connection.client.break_off(0.0))
        await until(lambda: protocol not in driver_of(server).protocols)
        assert len(driver_of(server).lingering) == 1
        loop, n_bytes = asyncio.get_running_loop(), 0
        while data := await loop.sock_recv(client.sock, WRITE_BYTES):  # a reset would raise
            n_bytes += len(data)
        assert 0 < n_bytes < len(shelf)
        client.close()
        await until(lambda: not len(driver_of(server).lingering))


class Hasty(DeliveryGate):
    """Breaks off whatever it is asked about."""

    def breaks_off(self, transfer: Transfer, link: Link, now: float) -> str:
        """Answer at once."""
        del transfer, link, now
        return "now"


async def dial(kind: str, server: Server, authority: Authority) -> WireClient:
    """Connect by a listener of a kind."""
    port = port_of(server, kind)
    if kind == "tls":
        return await StreamClient.dial_tls(port, authority.client_context())
    if kind == "ws":
        return await WebSocketClient.dial_websocket(port)
    return await WireClient.dial(port)


@pytest.mark.parametrize("kind", ["default", "tls", "ws"])
async def test_what_is_unsent_is_known_below_all_layers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was broken off comes whole on the next connection, once, behind what waited for it."""
    monkeypatch.setattr(breaking_off, "LOOK_SECONDS", 0.01)
    authority = Authority(tmp_path)
    listeners = {
        "default": {"bind": "127.0.0.1:0"},
        "tls": authority.listener_keys(),
        "ws": {"type": "ws", "bind": "127.0.0.1:0"},
    }
    data = bytes(range(256)) * (20 * WRITE_BYTES // 256)
    keep = {"clean_start": False, "properties": {"session_expiry_interval": 600}}
    async with serving(listeners=listeners, limits={"queued_bytes": 10**8}) as server:
        core = server.core
        core.breaking = BreakingOff(core, Hasty(), 0.01)
        client = await dial(kind, server, authority)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.connect("c", **keep)
        session = protocol_of(server, "c").connection.client.session  # type: ignore[union-attr]

        def send(topic: str, payload: bytes) -> None:
            message = Message(topic, payload, qos=1, is_large=len(payload) > 1)
            session.deliver(message, 1, retain=False, subscription_ids=(), now=0.0)

        driver_of(server).take_turn(lambda: send("cam", data))
        await until(lambda: session.inflight)
        driver_of(server).take_turn(lambda: send("alarm", b"a"))
        await until(lambda: core.counters.broken_off)
        assert 0 < len(await client.rest_bytes()) < len(data)
        client.close()
        again = await dial(kind, server, authority)
        await again.connect("c", **keep)
        small, large = [await again.take(Publish) for _ in range(2)]
        assert (small.payload, large.payload, large.dup) == (b"a", data, False)
        again.close()
