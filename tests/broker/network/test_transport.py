from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from penstock.broker.access_control import AccessControl, Action, ConnectAttempt, SessionView
from penstock.broker.fast_paths.fast_connection import FastConnection
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import transport as transport_module
from penstock.broker.network.new_connection import CLOSE_TIMEOUT_SECONDS
from penstock.broker.network.transport import GATHERED_BYTES, LEAST_SLICE_BYTES, MqttProtocol
from penstock.broker.payload import PIECE_BYTES
from penstock.broker.receiving.connection import Connection
from penstock.broker.sending.sender import WRITE_BYTES
from tests.broker.serving import (
    driver_of,
    objects_of_connections,
    port_of,
    protocol_of,
    serving,
    until,
    without_collector,
)
from tests.helpers.shelf import Shelf
from tests.helpers.streams import WebSocketClient
from tests.helpers.wire import WireClient, connected


class Gatekeeper(AccessControl):
    """Access control that answers a question when the test lets it.

    Attributes:
        may_answer: set to answer.
        n_asked: CONNECTs that wait or have been answered.
        is_cancelled: the answer for a topic filter is a cancelled wait.
    """

    checks_publish = False
    checks_subscribe = True
    checks_receive = False

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.is_cancelled = False
        self.n_asked = 0

    async def authenticate(self, attempt: ConnectAttempt) -> bool:
        """Let everybody in but `eve`."""
        self.n_asked += 1
        await self.may_answer.wait()
        return attempt.client_id != "eve"

    async def authorize(self, session: SessionView, topic: str, action: Action) -> bool:
        """Allow everything but `secret`."""
        del session, action
        await self.may_answer.wait()
        if self.is_cancelled:
            raise asyncio.CancelledError
        return topic != "secret"


# -- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_goes_in_rounds_is_sent_before_the_connection_closes(*, is_stored: bool) -> None:
    """DISCONNECT comes behind the whole of a message that does not go in one write."""
    data = bytes(range(256)) * (5 * WRITE_BYTES // 256)
    payload = Shelf(data) if is_stored else data
    async with serving() as server, await connected(port_of(server), "c") as client:
        connection = protocol_of(server, "c").connection
        assert connection is not None

        def send_and_close() -> None:
            message = Message("t", payload)
            connection.client.session.deliver(
                message, 0, retain=False, subscription_ids=(), now=0.0
            )
            connection.client.close(ReasonCode.SERVER_BUSY, None)

        driver_of(server).take_turn(send_and_close)
        assert (await client.take(Publish)).payload == data
        assert (await client.take(Disconnect)).reason_code == ReasonCode.SERVER_BUSY


async def test_a_stored_payload_is_read_as_the_client_takes_it() -> None:
    """Two payloads wait for a client that reads nothing, and no more than a piece is in memory."""
    shelves = [Shelf(bytes([n]) * 20 * WRITE_BYTES) for n in range(2)]
    async with (
        serving() as server,
        await WireClient.dial(port_of(server), receive_bytes=4096) as client,
    ):
        await client.connect("c")
        protocol = protocol_of(server, "c")
        connection = protocol.connection
        assert connection is not None

        def send() -> None:
            for shelf in shelves:
                message = Message("t", shelf)
                connection.client.session.deliver(
                    message, 0, retain=False, subscription_ids=(), now=0.0
                )

        driver_of(server).take_turn(send)
        await until(lambda: connection.outgoing.is_stuck)
        assert protocol.arrival.transport.get_write_buffer_size() <= PIECE_BYTES
        assert shelves[1].starts == []
        for shelf in shelves:
            assert (await client.take(Publish)).payload == shelf.data
        await client.send(PingReq())
        await client.take(PingResp)


async def test_a_client_that_never_reads_is_closed_in_time_amid_a_stored_payload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it does not take is not waited for, and not read from the store."""
    monkeypatch.setattr(transport_module, "CLOSE_TIMEOUT_SECONDS", 0.05)
    shelf = Shelf(bytes(20 * WRITE_BYTES))
    async with (
        serving() as server,
        await WireClient.dial(port_of(server), receive_bytes=4096) as client,
    ):
        await client.connect("c")
        protocol = protocol_of(server, "c")
        connection = protocol.connection
        assert connection is not None

        def send_and_close() -> None:
            message = Message("t", shelf)
            connection.client.session.deliver(
                message, 0, retain=False, subscription_ids=(), now=0.0
            )
            connection.client.close(ReasonCode.SERVER_BUSY, None)

        driver_of(server).take_turn(send_and_close)
        await until(lambda: protocol not in driver_of(server).protocols)
        assert len(shelf.starts) < len(shelf) / PIECE_BYTES


# -- reading ----------------------------------------------------------------------------------


async def test_packets_may_come_byte_by_byte() -> None:
    """A packet is handled once its last byte has come, however it was cut."""
    async with serving() as server, await WireClient.dial(port_of(server)) as client:
        packets = (
            Connect(client_id="c", keep_alive=0),
            Subscribe(1, (SubscriptionRequest("t"),)),
            Publish("t", b"data", qos=1, packet_id=2),
        )
        for byte in b"".join(write_packet(packet, 5) for packet in packets):
            await client.send_bytes(bytes([byte]))
        assert (await client.take(ConnAck)).reason_code == 0
        assert (await client.take(SubAck)).reason_codes == (0,)
        assert (await client.take(Publish)).payload == b"data"
        assert (await client.take(PubAck)).packet_id == 2


async def test_a_flood_is_read_on_after_the_others_had_their_turn() -> None:
    """After a chunk that is not the last a client is not read from until the next turn."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        protocol = protocol_of(server, "c")
        protocol.data_received(write_packet(Publish("t", bytes(LEAST_SLICE_BYTES // 2)), 5))
        assert protocol.arrival.transport.is_reading()
        protocol.data_received(write_packet(Publish("t", bytes(2 * LEAST_SLICE_BYTES)), 5))
        assert not protocol.arrival.transport.is_reading()
        await until(protocol.arrival.transport.is_reading)
        await client.send(PingReq())
        await client.take(PingResp)


async def test_a_large_packet_is_collected_without_turns() -> None:
    """A chunk that only completes a packet, or not even that, is taken at once."""
    payload = bytes(range(256)) * 1024
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.send(Subscribe(1, (SubscriptionRequest("t"),)))
        await client.take(SubAck)
        protocol = protocol_of(server, "c")
        frame = write_packet(Publish("t", payload), 5)
        for start, stop in ((0, 10), (10, 100_000), (100_000, len(frame))):
            protocol.data_received(frame[start:stop])
            assert protocol.arrival.transport.is_reading()
        assert (await client.take(Publish)).payload == payload


async def test_the_rest_of_a_chunk_is_put_off_up_to_the_end_of_a_large_packet() -> None:
    """What follows the packet waits for a turn of its own."""
    large, small = Publish("t", bytes(10 * LEAST_SLICE_BYTES)), Publish("t", b"small")
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.send(Subscribe(1, (SubscriptionRequest("t"),)))
        await client.take(SubAck)
        protocol = protocol_of(server, "c")
        protocol.data_received(b"".join(write_packet(packet, 5) for packet in (large, small)))
        assert not protocol.arrival.transport.is_reading()
        assert (await client.take(Publish)).payload == large.payload
        assert (await client.take(Publish)).payload == small.payload
        await until(protocol.arrival.transport.is_reading)


async def test_a_client_that_is_not_to_be_read_from_stays_so_after_its_turn() -> None:
    """The rest after a chunk does not end a pause that has another reason."""
    gatekeeper = Gatekeeper()
    async with serving() as server, await connected(port_of(server), "c") as client:
        server.core.access = gatekeeper
        protocol = protocol_of(server, "c")
        packets = (
            Subscribe(1, (SubscriptionRequest("t"),)),
            Publish("u", bytes(2 * LEAST_SLICE_BYTES)),
        )
        protocol.data_received(b"".join(write_packet(packet, 5) for packet in packets))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not protocol.arrival.transport.is_reading()
        gatekeeper.may_answer.set()
        await client.take(SubAck)
        await client.send(PingReq())
        await client.take(PingResp)


async def test_what_came_before_the_end_is_handled_though_a_subscriber_has_no_room() -> None:
    """The rest of a chunk from a peer that is gone counts: nobody can slow it down any more."""
    n_messages = 5 * LEAST_SLICE_BYTES // 1024
    packet = write_packet(Publish("t", bytes(1024)), 5)
    async with serving() as server, await connected(port_of(server), "s") as subscriber:
        await subscriber.subscribe("t")
        async with await connected(port_of(server), "p") as publisher:
            await publisher.send(Publish("t", b"first"))
            await subscriber.take(Publish)
            driver = driver_of(server)
            connection = protocol_of(server, "s").connection
            assert connection is not None
            connection.pause_sending(driver.clock())
            session = connection.client.session
            protocol = protocol_of(server, "p")
            protocol.data_received(packet * n_messages + write_packet(Disconnect(), 5))
            assert 0 < session.outbox.n_messages < n_messages
            protocol.arrival.transport.abort()
            await until(lambda: protocol not in driver.protocols)
        assert session.outbox.n_messages == n_messages


async def test_a_search_for_retained_messages_that_finds_none_for_long_goes_on() -> None:
    """A connection that has nothing to write yet is served again until it has."""
    async with serving() as server, await WireClient.dial(port_of(server)) as client:
        for number in range(2000):
            server.core.retained.set(Message(f"a/{number}/other", b"x", retain=True))
        server.core.retained.set(Message("a/last/wanted", b"found", retain=True))
        await client.send(Connect(client_id="c", keep_alive=0))
        await client.take(ConnAck)
        await client.send(Subscribe(1, (SubscriptionRequest("+/+/wanted"),)))
        await client.take(SubAck)
        assert (await client.take(Publish)).payload == b"found"


async def test_nothing_is_handled_while_access_control_takes_its_time() -> None:
    """What a client sends meanwhile waits, in order; other clients do not."""
    async with serving() as server:
        access = Gatekeeper()
        server.core.access = access
        async with await WireClient.dial(port_of(server)) as client:
            await client.send(
                Connect(client_id="c", keep_alive=0),
                Subscribe(1, (SubscriptionRequest("t"), SubscriptionRequest("secret"))),
                PingReq(),
            )
            await until(lambda: access.n_asked)
            (waiting,) = driver_of(server).protocols
            transport = waiting.arrival.transport
            await until(lambda: not transport.is_reading())
            await client.send(Publish("t", b"data", qos=1, packet_id=2))
            access.may_answer.set()
            await client.take(ConnAck)
            assert (await client.take(SubAck)).reason_codes == (0, ReasonCode.NOT_AUTHORIZED)
            await client.take(PingResp)
            await client.take(Publish)
            await client.take(PubAck)
            assert transport.is_reading()


async def test_client_that_leaves_is_not_judged_any_further() -> None:
    """Strangers who come and go leave no work behind, and no session."""
    async with serving() as server:
        access = Gatekeeper()
        server.core.access = access
        async with await WireClient.dial(port_of(server)) as client:
            await client.send(Connect(client_id="c"))
            await until(lambda: access.n_asked)
            (protocol,) = driver_of(server).protocols
            protocol.abort()
        await until(lambda: not driver_of(server).protocols)
        await until(lambda: not driver_of(server)._tasks)
        assert not access.may_answer.is_set()
        assert len(server.core.sessions) == 0


async def test_fault_of_the_broker_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What raises where nothing should is logged; every other client goes on."""
    for kind in (Connection, FastConnection):
        receive = kind.receive_data

        def fail(self: Any, chunk: bytes, now: float, receive: Any = receive) -> None:
            if b"poison" in chunk:
                raise RuntimeError("a fault")
            receive(self, chunk, now)

        monkeypatch.setattr(kind, "receive_data", fail)
    async with (
        serving() as server,
        await connected(port_of(server)) as other,
        await connected(port_of(server), "victim") as victim,
    ):
        await victim.send(Publish("poison"))
        assert await victim.rest() == []
        assert (await other.publish("t", b"data")).reason_code < 0x80
    assert "client victim" in caplog.text
    assert "closed after a fault of the broker" in caplog.text
    assert "RuntimeError: a fault" in caplog.text


async def test_fault_while_a_client_waits_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault may also come after access control has answered."""
    async with serving() as server:
        access = Gatekeeper()
        server.core.access = access
        async with await WireClient.dial(port_of(server)) as victim:
            await victim.send(Connect(client_id="victim"))
            await until(lambda: access.n_asked)
            monkeypatch.setattr(server.core.sessions, "open", None)
            access.may_answer.set()
            assert await victim.rest() == []
        monkeypatch.undo()
        async with await connected(port_of(server)) as other:
            assert (await other.publish("t", b"data")).reason_code < 0x80
    assert "closed after a fault of the broker" in caplog.text


@pytest.mark.parametrize("is_behind_proxy", [False, True])
async def test_ended_connection_is_freed_without_the_collector(*, is_behind_proxy: bool) -> None:
    """Clients that come and go leave nothing behind that only a full collection would find."""
    listener = {"bind": "127.0.0.1:0", "proxy_protocol": is_behind_proxy}
    async with serving(listeners={"default": listener}) as server:
        with without_collector():
            before = objects_of_connections()
            async with await WireClient.dial(port_of(server)) as client:
                if is_behind_proxy:
                    await client.send_bytes(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n")
                await client.send(Connect(client_id="c", keep_alive=0))
                await client.take(ConnAck)
                await client.send(Subscribe(1, (SubscriptionRequest("t"),)))
                await client.take(SubAck)
                await client.send(Publish("t", b"data", qos=1, packet_id=1))
                await client.take(Publish)
                assert objects_of_connections() - before
            await until(lambda: not driver_of(server).protocols)
            await until(lambda: not objects_of_connections() - before)


CONNECT = write_packet(Connect(client_id="c"), 5)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\x02\x00\x04",
        CONNECT[:-1] + b"\xff",
        CONNECT + write_packet(Publish("t", bytes(100_000)), 5) + b"\xf5\x00",
        CONNECT + b"\x30\x04\x00\x01\xff\x00",
        CONNECT + b"\x82\x03\x00\x01\x00",
        CONNECT + CONNECT,
        CONNECT + b"\x40\x02\x00\x00",
    ],
)
async def test_connection_closed_for_what_it_sent_is_freed_without_the_collector(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A flood of such, each with all that it has sent, would fill the memory till it runs."""
    caplog.set_level(logging.CRITICAL)  # what pytest keeps of the log has the error
    async with serving() as server:
        with without_collector():
            before = objects_of_connections()
            async with await WireClient.dial(port_of(server)) as client:
                await client.send_bytes(data)
                await client.rest_bytes()
            await until(lambda: not driver_of(server).protocols)
            await until(lambda: not objects_of_connections() - before)


# -- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
async def test_answer_that_is_cancelled_ends_one_connection(*, waits: bool) -> None:
    """A plugin whose own wait was cancelled must not leave its client waiting for ever."""
    async with serving() as server, await connected(port_of(server), "victim") as victim:
        access = Gatekeeper()
        access.is_cancelled = True
        server.core.access = access
        if not waits:
            access.may_answer.set()
        await victim.send(Subscribe(1, (SubscriptionRequest("t"),)))
        if waits:
            await until(lambda: bool(driver_of(server)._tasks))
            access.may_answer.set()
        assert await victim.rest() == []
        async with await connected(port_of(server)) as other:
            assert (await other.publish("t", b"data")).reason_code < 0x80


async def test_small_packets_leave_at_once() -> None:
    """Nagle's algorithm is off: it would hold a small message for an acknowledgement."""
    async with serving() as server, await connected(port_of(server), "c"):
        sock = protocol_of(server, "c").transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_client_that_does_not_read_costs_its_transport_little() -> None:
    """Unsent bytes stay near `write_high_bytes`; what waits in the outbox comes in order."""
    n_messages, n_bytes = 100, 100_000
    async with serving(limits={"queued_bytes": 2 * n_messages * n_bytes}) as server:
        stalled = await WireClient.dial(port_of(server), receive_bytes=4096)
        async with stalled, await connected(port_of(server)) as publisher:
            await stalled.connect("stalled", properties={"receive_maximum": n_messages})
            await stalled.subscribe("t", 1)
            for number in range(n_messages):
                await publisher.publish("t", number.to_bytes(2, "big") + bytes(n_bytes - 2))
            transport = protocol_of(server, "stalled").transport
            session = server.core.sessions.get("stalled")
            assert session is not None
            assert session.outbox.n_messages > n_messages // 2
            high_bytes = server.core.limits.write_high_bytes
            assert high_bytes < transport.get_write_buffer_size() <= high_bytes + 2 * n_bytes
            for number in range(n_messages):
                packet = await stalled.take(Publish)
                assert int.from_bytes(packet.payload[:2], "big") == number
                assert len(packet.payload) == n_bytes


async def test_connection_that_is_closed_sends_what_was_put_before() -> None:
    """A DISCONNECT of the broker comes behind all that was on its way."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.subscribe("t")
        bad = b"\x36\x03\x00\x01t"  # QoS 3
        await client.send_bytes(write_packet(Publish("t", bytes(1_000_000)), 5) + bad)
        packets = await client.rest()
        assert [type(packet) for packet in packets] == [Publish, Disconnect]


async def test_client_that_is_still_sending_reads_why_it_is_disconnected() -> None:
    """What it sends after its mistake is thrown away; no reset takes the reason from it."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.send_bytes(b"\x36\x03\x00\x01t")  # QoS 3
        await until(lambda: not server.core.counters.clients_connected)
        for _ in range(50):
            await client.send(Publish("t", bytes(100_000)))
        (said,) = await client.rest()
        assert isinstance(said, Disconnect)
        assert said.reason_code == ReasonCode.MALFORMED_PACKET
        assert server.core.counters.publish_received == 1
    await until(lambda: not driver_of(server).protocols)


async def test_client_that_stays_after_its_end_does_not_hold_up_a_stop() -> None:
    """The time it has to close is not added to the broker's stop."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.send_bytes(b"\x36\x03\x00\x01t")
        assert len(await client.rest()) == 1
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS / 2):
            await server.stop()


async def test_client_that_stays_after_its_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not close its side has not for ever."""
    monkeypatch.setattr(transport_module, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with serving() as server, await connected(port_of(server), "c") as client:
        await client.send_bytes(b"\x36\x03\x00\x01t")
        await client.rest()
        await until(lambda: not driver_of(server).protocols)


async def test_client_that_takes_nothing_of_its_end_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that is being closed does not stay for a client that never reads."""
    monkeypatch.setattr(transport_module, "CLOSE_TIMEOUT_SECONDS", 0.05)
    async with serving() as server:
        stalled = await WireClient.dial(port_of(server), receive_bytes=4096)
        async with stalled, await connected(port_of(server)) as publisher:
            await stalled.connect("stalled")
            await stalled.subscribe("t", 1)
            await publisher.publish("t", bytes(8_000_000))
            await stalled.send_bytes(b"\x36\x03\x00\x01t")
            await until(lambda: len(driver_of(server).protocols) == 1)


async def test_broken_connection_leaves_nothing_behind() -> None:
    """After a reset of the network connection the client counts as gone."""
    async with serving() as server:
        async with await connected(port_of(server), "c") as client:
            linger = (1).to_bytes(4, "little") + bytes(4)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await until(lambda: not driver_of(server).protocols)
        assert server.core.counters.clients_connected == 0


# -- deadlines --------------------------------------------------------------------------------


async def test_connection_without_connect_ends(caplog: pytest.LogCaptureFixture) -> None:
    """A client gets `connect_timeout_seconds` for its CONNECT, whole."""
    caplog.set_level(logging.INFO)
    limits = {"connect_timeout_seconds": 0.05}
    async with serving(limits=limits) as server, await WireClient.dial(port_of(server)) as client:
        await client.send_bytes(write_packet(Connect(client_id="c"), 5)[:-1])
        assert await client.rest() == []
        assert server.core.counters.connections_refused == {"timeout": 1}
    assert "no CONNECT in time" in caplog.text


# -- places of a listener ---------------------------------------------------------------------

LIMITED = {"default": {"bind": "127.0.0.1:0", "max_connections": 1}}


async def test_next_client_waits_for_a_place() -> None:
    """Above `max_connections` a client is accepted when another has left."""
    async with serving(listeners=LIMITED) as server:
        first = await connected(port_of(server), "first")
        second = await WireClient.dial(port_of(server))
        await second.send(Connect(client_id="second", keep_alive=0))
        await until(lambda: len(driver_of(server).protocols) == 2)
        assert (await first.publish("t", b"data")).reason_code < 0x80
        assert server.core.sessions.get("second") is None
        first.close()
        assert (await second.take(ConnAck)).reason_code == 0
        second.close()


async def test_stop_ends_those_who_wait() -> None:
    """A client without a place is cut off; it never was taken."""
    async with serving(listeners=LIMITED) as server, await connected(port_of(server)) as first:
        second = await WireClient.dial(port_of(server))
        await until(lambda: len(driver_of(server).protocols) == 2)
        await server.stop()
        assert await first.rest() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        assert await second.rest() == []
        second.close()


@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_what_came_right_before_the_end_is_answered(kind: str) -> None:
    """A client that only sends nothing more still reads, whatever layers there are."""
    async with serving(listeners={"default": {"bind": "127.0.0.1:0", "type": kind}}) as server:
        dial = WireClient.dial if kind == "tcp" else WebSocketClient.dial_websocket
        client = await dial(port_of(server))
        await client.send(Connect(client_id="c"))
        await client.take(ConnAck)
        protocol = protocol_of(server, "c")
        assert protocol.connection is not None
        protocol.data_received(write_packet(Publish("t", b"x", qos=1, packet_id=7), 5))
        below: Any = protocol if kind == "tcp" else protocol.transport
        below.eof_received()
        assert server.core.counters.publish_received == 1
        assert not protocol.connection.outgoing.out
        client.close()


async def test_chunks_of_all_sizes_are_handled_in_their_order() -> None:
    """Small ones may wait for each other; a large one comes behind them, and so does the end."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4) as publisher,
    ):
        await subscriber.subscribe("t", 1)
        protocol = protocol_of(server, "p")
        sizes = (1, 2, GATHERED_BYTES, 3, 3 * LEAST_SLICE_BYTES, 4)
        for size in sizes:
            protocol.data_received(write_packet(Publish("t", bytes(size)), 4))
        protocol.connection_lost(None)
        assert [len((await subscriber.take(Publish)).payload) for _ in sizes] == list(sizes)
        publisher.close()


async def test_a_chunk_that_was_gathered_waits_while_its_client_is_not_read_from() -> None:
    """What came before it may have caused that."""
    async with serving() as server, await connected(port_of(server), "c", version=4) as client:
        protocol = protocol_of(server, "c")
        assert protocol.connection is not None
        protocol.data_received(write_packet(PingReq(), 4))
        protocol.is_reading = False
        await asyncio.sleep(0)
        driver_of(server).take_received()
        protocol.is_reading = True
        protocol.see_to_reading(protocol.connection)
        await client.take(PingResp)


@pytest.mark.parametrize("n_bytes", [2 * GATHERED_BYTES, 2 * LEAST_SLICE_BYTES])
async def test_what_comes_behind_gathered_chunks_waits_behind_them(n_bytes: int) -> None:
    """The first of them may be what its client is not read from for."""
    async with (
        serving() as server,
        await connected(port_of(server), "s", version=4) as subscriber,
        await connected(port_of(server), "p", version=4),
    ):
        await subscriber.subscribe("t")
        protocol = protocol_of(server, "p")
        connection = protocol.connection
        assert connection is not None
        n_before = server.core.counters.publish_received
        protocol.data_received(write_packet(Publish("t", b"1"), 4))
        protocol.data_received(write_packet(Publish("t", b"2"), 4))
        receive_gathered = MqttProtocol.receive_gathered

        def pausing(protocol: MqttProtocol, data: bytes, now: float) -> None:
            receive_gathered(protocol, data, now)
            if protocol.is_reading:
                protocol._pause_reading()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MqttProtocol, "receive_gathered", pausing)
            protocol.data_received(write_packet(Publish("t", bytes(n_bytes)), 4))
        assert server.core.counters.publish_received == n_before + 1
        protocol.see_to_reading(connection)
        received = [(await subscriber.take(Publish)).payload for _ in range(3)]
        assert received == [b"1", b"2", bytes(n_bytes)]
