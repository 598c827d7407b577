"""Clients that vanish, on real sockets, while what they have sent is still to be handled."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct

import pytest

from penstock.broker.mqtt.packets import Disconnect, Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import loop_scheduler as scheduler_module
from penstock.broker.network import transport as transport_module
from penstock.broker.network.transport import LEAST_SLICE_BYTES
from tests.broker.serving import driver_of, port_of, protocol_of, serving, until
from tests.helpers.wire import connected


async def test_what_a_vanished_client_has_left_is_handled_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It leaves every subscription at once, and what is not handled in time is counted."""
    monkeypatch.setattr(transport_module, "LEFTOVER_SECONDS", 0.0)
    monkeypatch.setattr(scheduler_module, "FEW_LEAVING", 0)
    monkeypatch.setattr(scheduler_module, "CROWDED_SECONDS", 0.0)
    n_messages = 5 * LEAST_SLICE_BYTES // 1024
    packet = write_packet(Publish("t", bytes(1024), retain=True), 5)
    async with serving() as server, await connected(port_of(server), "s") as subscriber:
        await subscriber.subscribe("t")
        async with await connected(port_of(server), "p") as publisher:
            await publisher.subscribe("t")
            core, driver = server.core, driver_of(server)
            protocol = protocol_of(server, "p")
            protocol.data_received(packet * n_messages)
            assert protocol.is_in_line
            protocol.transport.abort()
            await until(lambda: protocol not in driver.protocols)
        assert core.sessions.get("p") is None
        assert core.tree.n_subscriptions == 1
        n_dropped = core.counters.publish_refused["publisher gone"]
        n_handled = core.counters.publish_received
        assert 0 < n_dropped == n_messages - n_handled


async def test_clients_that_publish_and_vanish_leave_nothing_behind() -> None:
    """Whatever they have sent: no client, no subscription, no session, nothing in line."""
    retained = [Publish("t", bytes(100), qos=1, packet_id=n, retain=True) for n in range(1, 101)]
    burst = b"".join(write_packet(packet, 5) for packet in retained)
    async with serving() as server, await connected(port_of(server), "stays") as reader:
        await reader.subscribe("#", 1)
        clients = [await connected(port_of(server), f"c{number}") for number in range(10)]
        for client in clients:
            await client.subscribe("t", 1)
        for client in clients:
            await client.send_bytes(burst)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        core, driver = server.core, driver_of(server)
        await until(lambda: len(driver.protocols) == 1)
        assert core.counters.clients_connected == 1
        assert core.tree.n_subscriptions == 1
        assert core.sessions.client_ids() == ["stays"]
        stays = protocol_of(server, "stays").connection
        assert stays is not None
        assert core.ledger().outstanding() == stays.client.session.ledger.outstanding()


async def test_a_client_that_is_gone_loses_nothing_for_the_time_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a crowd of them does."""
    monkeypatch.setattr(transport_module, "LEFTOVER_SECONDS", 0.0)
    n_messages = 5 * LEAST_SLICE_BYTES // 1024
    packet = write_packet(Publish("t", bytes(1024), retain=True), 5)
    async with serving() as server, await connected(port_of(server), "p"):
        core, driver = server.core, driver_of(server)
        protocol = protocol_of(server, "p")
        protocol.data_received(packet * n_messages)
        assert protocol.is_in_line
        protocol.transport.abort()
        await until(lambda: protocol not in driver.protocols)
        assert core.counters.publish_received == n_messages
        assert not core.counters.publish_refused


async def test_what_a_client_that_is_gone_has_sent_keeps_to_its_publish_rate() -> None:
    """Below TLS, an orderly end comes with what was sent before it."""
    limits = {"publish_messages_per_second": 500, "publish_burst_seconds": 0.01}
    packet = write_packet(Publish("t", b"x"), 5)
    async with serving(limits=limits) as server, await connected(port_of(server), "p"):
        core, driver = server.core, driver_of(server)
        protocol = protocol_of(server, "p")
        protocol.data_received(packet * 50 + write_packet(Disconnect(), 5))
        assert core.counters.publish_received < 50
        protocol.transport.abort()
        await until(lambda: protocol not in driver.protocols)
        assert core.counters.publish_received == 50
        assert not core.counters.publish_refused


async def test_what_a_client_that_is_gone_has_sent_waits_for_access_control() -> None:
    """An answer that comes after the client has gone is not too late."""
    packet = write_packet(Publish("t", b"x"), 5)
    async with serving() as server, await connected(port_of(server), "p"):
        core, driver = server.core, driver_of(server)
        protocol = protocol_of(server, "p")
        assert protocol.connection is not None
        answer = asyncio.get_running_loop().create_future()

        async def wait() -> None:
            await answer

        protocol.connection.client.run(wait())
        protocol.data_received(packet * 50 + write_packet(Disconnect(), 5))
        protocol.transport.abort()
        await until(lambda: core.counters.clients_connected == 0)
        assert core.counters.publish_received == 0
        answer.set_result(None)
        await until(lambda: protocol not in driver.protocols)
        assert core.counters.publish_received == 50
        assert not core.counters.publish_refused


@pytest.mark.parametrize("is_taken_over", [True, False])
async def test_what_a_client_that_comes_back_had_left_is_counted(*, is_taken_over: bool) -> None:
    """It is dropped, as at the end of the broker: what its new connection sends is newer."""
    limits = {"publish_messages_per_second": 0.001}
    packet = write_packet(Publish("t", b"x"), 5)
    async with serving(limits=limits) as server, await connected(port_of(server), "p"):
        core, driver = server.core, driver_of(server)
        protocol = protocol_of(server, "p")
        protocol.data_received(packet * 50)
        protocol.transport.abort()
        await until(lambda: core.counters.clients_connected == 0)
        assert protocol in driver.protocols
        if is_taken_over:
            async with await connected(port_of(server), "p"):
                await until(lambda: protocol not in driver.protocols)
                assert core.counters.clients_connected == 1
        else:
            await server.stop()
        assert core.counters.publish_refused == {"publisher gone": 49}


async def test_a_client_that_has_reset_its_connection_before_it_is_told_why_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nobody left to tell."""

    def write_eof() -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async with serving() as server, await connected(port_of(server), "p") as client:
        protocol = protocol_of(server, "p")
        monkeypatch.setattr(protocol.transport, "write_eof", write_eof)
        await client.send_bytes(b"\xf0\0\0")
        await until(lambda: protocol not in driver_of(server).protocols)
    assert "fault of the broker" not in caplog.text
