from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.broker.network import lingering_close as lingering_module
from penstock.broker.network.lingering_close import LingeringClose
from tests.broker.serving import until

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
    lingering.linger(transport)
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
    lingering.linger(transport)
    assert 0 < len(await read_all(peer)) < n_bytes
    peer.close()
    await until(lambda: len(lingering) == 0)


async def test_peer_that_does_not_close_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its descriptor is free again."""
    monkeypatch.setattr(lingering_module, "LINGER_SECONDS", 0.01)
    lingering, transport, peer = await make(b"")
    lingering.linger(transport)
    await until(lambda: len(lingering) == 0)
    peer.close()


async def test_peer_that_is_gone_is_not_lingered_for() -> None:
    """A reset is the end."""
    lingering, transport, peer = await make(b"")
    lingering.linger(transport)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    await until(lambda: len(lingering) == 0)


async def test_no_more_than_so_many_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that lingers longest makes room; its peer sees the end all the same."""
    monkeypatch.setattr(lingering_module, "MOST_SOCKETS", 1)
    lingering, transport, peer = await make(b"")
    transport.write(b"sent")
    lingering.linger(transport)
    _, second, second_peer = await make(b"")
    lingering.linger(second)
    assert len(lingering) == 1
    assert await read_all(peer) == b"sent"
    assert await read_all(second_peer) == b""
    peer.close()
    second_peer.close()
    await until(lambda: len(lingering) == 0)


async def test_all_are_closed_as_the_program_stops() -> None:
    """Nothing is left for the loop to look at."""
    lingering, transport, peer = await make(b"")
    lingering.linger(transport)
    lingering.close()
    assert len(lingering) == 0
    assert await read_all(peer) == b""
    peer.close()
