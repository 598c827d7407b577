"""Publishers that wait for room and vanish, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import peer_hangups
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.wire import WireClient, connected

LIMITS = {"queued_messages": 2, "receive_maximum": 4, "queue_full_seconds": 10_000}
N_PAUSING = 7
"""Messages after which a publisher is not read from: three have room, four are unacknowledged."""


def fill(sock: socket.socket) -> None:
    """Send until the kernels on both sides hold all that they take."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65_536))


async def full_subscriber(port: int) -> WireClient:
    """Return a client that acknowledges nothing: it gets one message, and two wait for it."""
    client = await connected(port, "deaf", properties={"receive_maximum": 1})
    await client.subscribe("t", 1)
    return client


RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time; the socket's end is a reset."""


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("n_unread", [0, 20])
async def test_a_client_that_waits_for_room_and_is_gone_has_no_session_any_more(
    monkeypatch: pytest.MonkeyPatch, n_unread: int, *, is_reset: bool
) -> None:
    """It is not read from, some of what it has sent may be unread, and nothing makes room."""
    monkeypatch.setattr(peer_hangups, "LOOK_SECONDS", 0.01)
    packets = [
        write_packet(Publish("t", bytes(1024), qos=1, packet_id=n + 1), 4)
        for n in range(N_PAUSING + n_unread)
    ]
    async with serving(limits=LIMITS) as server:
        port = port_of(server)
        deaf = await full_subscriber(port)
        async with await connected(port, "p", 4, keep_alive=0) as publisher:
            driver, protocol = driver_of(server), protocol_of(server, "p")
            await publisher.send_bytes(b"".join(packets[:N_PAUSING]))
            await until(lambda: not protocol.is_reading)
            await publisher.send_bytes(b"".join(packets[N_PAUSING:]))
            assert server.core.sessions.get("p") is not None
            if is_reset:
                publisher.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            publisher.close()
            await until(lambda: protocol not in driver.protocols)
        assert server.core.sessions.client_ids() == ["deaf"]
        assert server.core.counters.clients_connected == 1
        deaf.close()


async def test_a_client_that_waits_for_room_and_is_there_goes_on_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is looked at and asked for meanwhile; all that it has sent is acknowledged."""
    looks = 0
    look = peer_hangups.PeerHangups._look

    def counted(self: peer_hangups.PeerHangups) -> None:
        nonlocal looks
        looks += 1
        look(self)

    monkeypatch.setattr(peer_hangups.PeerHangups, "_look", counted)
    monkeypatch.setattr(peer_hangups, "LOOK_SECONDS", 0.01)
    packets = [Publish("t", b"", qos=1, packet_id=n + 1) for n in range(N_PAUSING)]
    async with serving(limits=LIMITS) as server:
        port = port_of(server)
        deaf = await full_subscriber(port)
        async with await connected(port, "p", 4, keep_alive=0) as publisher:
            protocol = protocol_of(server, "p")
            await publisher.send_bytes(b"".join(write_packet(packet, 4) for packet in packets))
            await until(lambda: not protocol.is_reading)
            await until(lambda: looks > 2)
            sock = protocol.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            deaf.close()
            answers = [await publisher.take(PubAck) for _ in packets]
            assert {answer.packet_id for answer in answers} == set(range(1, N_PAUSING + 1))
            await until(lambda: protocol.is_reading)
            assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_client_whose_end_does_not_come_through_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine has given the connection up: a FIN behind a full window has never left it."""
    monkeypatch.setattr(peer_hangups, "LOOK_SECONDS", 0.01)
    monkeypatch.setitem(peer_hangups.KEEPALIVE, "TCP_KEEPIDLE", 1)
    packets = [
        write_packet(Publish("t", bytes(1024), qos=1, packet_id=n + 1), 4) for n in range(N_PAUSING)
    ]
    async with serving(limits=LIMITS) as server:
        port = port_of(server)
        deaf = await full_subscriber(port)
        async with await connected(port, "p", 4, keep_alive=0) as publisher:
            driver, protocol = driver_of(server), protocol_of(server, "p")
            await publisher.send_bytes(b"".join(packets))
            await until(lambda: not protocol.is_reading)
            publisher.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1)
            fill(publisher.sock)
            await until(lambda: protocol not in driver.protocols)
        assert server.core.sessions.client_ids() == ["deaf"]
        deaf.close()


async def test_a_client_that_waits_for_room_is_unheard_until_bytes_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a full window nothing is told of it: more cannot come. Silent, its Keep Alive ends."""
    monkeypatch.setattr(peer_hangups, "LOOK_SECONDS", 1000)
    packets = [Publish("t", b"", qos=1, packet_id=n + 1) for n in range(N_PAUSING)]
    async with serving(limits=LIMITS) as server:
        port = port_of(server)
        deaf = await full_subscriber(port)
        async with (
            await connected(port, "q", 4, keep_alive=0) as full,
            await connected(port, "p", 4, keep_alive=2) as silent,
        ):
            driver, protocol = driver_of(server), protocol_of(server, "p")
            full_protocol = protocol_of(server, "q")
            for client in (silent, full):
                await client.send_bytes(b"".join(write_packet(packet, 4) for packet in packets))
            await until(lambda: not full_protocol.is_reading)
            assert peer_hangups.unheard_seconds(full_protocol.fileno) is not None
            fill(full.sock)
            await until(lambda: peer_hangups.unheard_seconds(full_protocol.fileno) is None)
            await until(lambda: protocol not in driver.protocols)
        deaf.close()
