from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from penstock.broker.config.listener_config import Listener
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import websocket as websocket_module
from penstock.broker.network.websocket import WebSocketLayer
from tests.broker.serving import (
    driver_of,
    objects_of_connections,
    port_of,
    protocol_of,
    serving,
    until,
    without_collector,
)
from tests.helpers.effort import examples
from tests.helpers.streams import WebSocketClient
from tests.helpers.wire import WireClient, connected

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def listeners(**keys: Any) -> dict[str, Any]:
    """Return a WebSocket listener and a plain one."""
    return {"default": {"bind": "127.0.0.1:0"}, "ws": {"bind": "127.0.0.1:0", "type": "ws", **keys}}


def masked(first_byte: int, payload: bytes) -> bytes:
    """Return a client's frame, with a mask of zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([first_byte]) + length + bytes(4) + payload


async def upgraded(port: int) -> WireClient:
    """Return a bare socket on which a WebSocket was accepted."""
    client = await WireClient.dial(port)
    await client.send_bytes(REQUEST)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await client.read()
    assert head.startswith(b"HTTP/1.1 101 ")
    return client


# -- MQTT in messages -------------------------------------------------------------------------


@pytest.mark.mqtt5("6.0.0-1", "6.0.0-4")
@pytest.mark.mqtt311("6.0.0-1", "6.0.0-4")
@pytest.mark.parametrize("version", [4, 5])
async def test_messages_of_all_sizes_go_both_ways(version: int) -> None:
    """Every length of a frame's header; what is sent are binary messages of sub-protocol mqtt."""
    async with serving(listeners=listeners()) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"), version=version)
        assert client.stream.subprotocol == "mqtt"
        assert (await client.connect("c")).reason_code == 0
        await client.subscribe("t")
        for n_bytes in (0, 1, 100, 125, 126, 4096, 65_535, 65_536, 3_000_000):
            payload = bytes(n_bytes)
            await client.send(Publish("t", payload, qos=1, packet_id=1))
            packets = [await client.receive(), await client.receive()]
            (publish,) = [packet for packet in packets if isinstance(packet, Publish)]
            assert publish.payload == payload
            assert any(isinstance(packet, PubAck) for packet in packets)
        client.close()


@pytest.mark.mqtt5("6.0.0-2")
@pytest.mark.mqtt311("6.0.0-2")
async def test_packets_need_not_keep_to_frames() -> None:
    """A packet may span messages, a message hold many, and both be cut into fragments."""
    packets = b"".join(
        write_packet(packet, 5)
        for packet in (
            Connect(client_id="c", keep_alive=0),
            Subscribe(1, (SubscriptionRequest("t"),)),
            Publish("t", b"data", qos=1, packet_id=2),
        )
    )
    async with serving(listeners=listeners()) as server:
        whole = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await whole.send_bytes(packets)
        cut = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        for byte in packets:
            await cut.send_bytes(bytes([byte]))
        fragmented = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await fragmented.stream.send(bytes([byte]) for byte in packets)
        for client in (whole, cut, fragmented):
            for kind in (ConnAck, SubAck):
                await client.take(kind)
            kinds = {type(await client.receive()), type(await client.receive())}
            assert kinds == {Publish, PubAck}
            client.close()


@pytest.mark.mqtt5("6.0.0-1")
@pytest.mark.mqtt311("6.0.0-1")
async def test_text_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """MQTT travels in binary messages alone."""
    caplog.set_level(logging.INFO)
    async with serving(listeners=listeners()) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await client.connect("c")
        await client.stream.send("text")
        assert await client.rest() == []
        assert client.stream.close_code == CloseCode.UNSUPPORTED_DATA
        await until(lambda: not driver_of(server).protocols)
        assert server.core.counters.connections_refused == {"websocket": 1}
    assert "a text frame; allowed: binary" in caplog.text


async def test_large_payload_is_written_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is a header before the very payload that was published."""
    async with (
        serving(listeners=listeners()) as server,
        await connected(port_of(server)) as publisher,
    ):
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await client.connect("c")
        await client.subscribe("t")
        layer = protocol_of(server, "c").transport
        assert isinstance(layer, WebSocketLayer)
        written: list[Any] = []
        write = layer.below.writelines

        def keep(buffers: Any) -> None:
            written.extend(buffers)
            write(buffers)

        monkeypatch.setattr(layer.below, "writelines", keep)
        await publisher.publish("t", bytes(1_000_000))
        assert (await client.take(Publish)).payload == bytes(1_000_000)
        parts = [buffer for buffer in written if isinstance(buffer, memoryview)]
        assert sum(map(len, parts)) == 1_000_000
        assert len({id(part.obj) for part in parts}) == 1
        client.close()


async def test_client_that_does_not_read_costs_little() -> None:
    """Nothing more is taken than without WebSocket; the rest comes in order."""
    n_messages, n_bytes = 60, 100_000
    async with (
        serving(listeners=listeners(), limits={"queued_bytes": 10**8}) as server,
        await connected(port_of(server)) as publisher,
    ):
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"), max_queue=1)
        await client.connect("stalled", properties={"receive_maximum": n_messages})
        await client.subscribe("t", 1)
        for number in range(n_messages):
            await publisher.publish("t", number.to_bytes(2, "big") + bytes(n_bytes - 2))
        transport = protocol_of(server, "stalled").transport
        high_bytes = server.core.limits.write_high_bytes
        assert transport.get_write_buffer_size() <= high_bytes + 2 * n_bytes
        for number in range(n_messages):
            packet = await client.take(Publish)
            assert int.from_bytes(packet.payload[:2], "big") == number
        client.close()


class Sink:
    """What is below and above of a layer, without a network.

    Attributes:
        received: what the layer has handed up.
        written: what it has written.
    """

    def __init__(self) -> None:
        self.received = b""
        self.written: list[bytes] = []

    def connection_made(self, transport: object) -> None:
        """Take the layer for the transport."""
        del transport

    def data_received(self, data: bytes) -> None:
        """Keep what comes up."""
        self.received += data

    def write(self, data: bytes) -> None:
        """Keep what goes down."""
        self.written.append(data)

    def is_closing(self) -> bool:
        """Return False."""
        return False


class Known:
    """An arrival whose CONNECT was accepted."""

    is_known = True
    connection = None


def frame_bytes(payload: bytes, mask: bytes, first_byte: int) -> bytes:
    """Return a client's frame, with each form of a length that may hold it."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65_536:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([first_byte]) + length + mask + body


@settings(max_examples=examples(40))  # each is up to a few hundred kilobytes
@given(st.data())
@pytest.mark.mqtt5("6.0.0-2")
@pytest.mark.mqtt311("6.0.0-2")
def test_however_the_stream_is_cut_the_same_bytes_come_out(data: st.DataObject) -> None:
    """Whole messages, fragments and pings between them, in any pieces."""
    sizes = st.one_of(st.integers(0, 130), st.sampled_from([125, 126, 127, 65_535, 65_536]))
    stream, expected, n_pings = b"", b"", 0
    for size in data.draw(st.lists(sizes, max_size=6)):
        payload = bytes(index % 256 for index in range(size))
        mask = data.draw(st.binary(min_size=4, max_size=4))
        ping = frame_bytes(b"ping", mask, 0x89)
        half = data.draw(st.integers(0, size))
        match data.draw(st.sampled_from(["whole", "fragments", "ping"])):
            case "whole":
                stream += frame_bytes(payload, mask, 0x82)
            case "fragments":
                stream += frame_bytes(payload[:half], mask, 0x02) + ping
                stream += frame_bytes(payload[half:], mask, 0x80)
                n_pings += 1
            case _:
                stream += ping + frame_bytes(payload, mask, 0x82)
                n_pings += 1
        expected += payload
    sink = Sink()
    layer = WebSocketLayer(cast(Any, sink), cast(Any, Known()), Listener("ws", None, 0), 10**6)
    layer.below = cast(Any, sink)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(REQUEST + stream)), max_size=20)))
    whole = REQUEST + stream
    for begin, end in pairwise([0, *cuts, len(whole)]):
        if begin < end:
            layer.data_received(whole[begin:end])
    assert sink.received == expected
    assert sum(one.startswith(b"\x8a") for one in sink.written) == n_pings


# -- the end ----------------------------------------------------------------------------------


async def test_end_by_the_broker_is_a_closing_handshake() -> None:
    """DISCONNECT, then WebSocket's own goodbye."""
    async with serving(listeners=listeners()) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await client.connect("c")
        await client.send_bytes(b"\x36\x03\x00\x01t")  # QoS 3
        assert [type(packet) for packet in await client.rest()] == [Disconnect]
        assert client.stream.close_code == CloseCode.NORMAL_CLOSURE
        await until(lambda: not driver_of(server).protocols)


async def test_end_by_the_client_is_answered() -> None:
    """A close frame gets its answer, and the client counts as gone."""
    async with serving(listeners=listeners()) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await client.connect("c")
        await client.stream.close()
        assert client.stream.close_code == CloseCode.NORMAL_CLOSURE
        await until(lambda: not driver_of(server).protocols)
        assert server.core.counters.clients_connected == 0


async def test_pings_are_answered_but_not_for_who_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that pings and never reads does not fill the memory with pongs."""
    async with serving(listeners=listeners()) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await client.connect("c")
        await asyncio.wait_for(await client.stream.ping(), 30)
        layer = protocol_of(server, "c").transport
        assert isinstance(layer, WebSocketLayer)
        layer.pause_writing()
        with monkeypatch.context() as patch:
            patch.setattr(layer.below, "write", lambda _data: pytest.fail("a pong"))
            for _ in range(10):
                layer.data_received(masked(0x89, bytes(100)))
        layer.resume_writing()
        await asyncio.wait_for(await client.stream.ping(), 30)
        client.close()


# -- who is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"subprotocols": None}, 400),
        ({"subprotocols": [Subprotocol("chat")]}, 400),
        ({"path": "/other"}, 404),
        ({"origin": "https://evil.test"}, 403),
    ],
)
@pytest.mark.mqtt5("6.0.0-3")
@pytest.mark.mqtt311("6.0.0-3")
async def test_refused_handshake_says_why(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], status: int
) -> None:
    """By HTTP, readably; and in one line of the log."""
    caplog.set_level(logging.INFO)
    keys = {"path": "/mqtt", "allowed_origins": ["https://good.test"]}
    async with serving(listeners=listeners(**keys)) as server:
        with pytest.raises(InvalidStatus) as refused:
            await WebSocketClient.dial_websocket(port_of(server, "ws"), **options)
        assert refused.value.response.status_code == status
        assert refused.value.response.body
        await until(lambda: server._reception.admission.n_connections == 0)
        assert server.core.counters.connections_refused == {"websocket": 1}
    assert len([line for line in caplog.messages if f"no WebSocket: {status}: " in line]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"path": "/mqtt?token=1"},
        {"origin": "https://good.test"},
        {"subprotocols": [Subprotocol("mqttv3.1")]},
        {"subprotocols": [Subprotocol("mqttv3.1"), Subprotocol("mqtt")]},
    ],
)
async def test_who_is_let_in(options: dict[str, Any]) -> None:
    """A page of an allowed site, a client of an older time, a path with a query."""
    keys = {"path": "/mqtt", "allowed_origins": ["https://good.test"]}
    async with serving(listeners=listeners(**keys)) as server:
        client = await WebSocketClient.dial_websocket(port_of(server, "ws"), **options)
        assert client.stream.subprotocol in ("mqtt", "mqttv3.1")
        assert (client.stream.subprotocol == "mqtt") == (len(options.get("subprotocols", "ab")) > 1)
        assert (await client.connect()).reason_code == 0
        client.close()


async def test_any_path_is_mqtts_by_default() -> None:
    """Clients ask for / or /mqtt, as their authors thought best."""
    async with serving(listeners=listeners()) as server:
        for path in ("/", "/mqtt", "/ws"):
            client = await WebSocketClient.dial_websocket(port_of(server, "ws"), path)
            assert (await client.connect()).reason_code == 0
            client.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 "),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 "),
        (write_packet(Connect(client_id="c"), 5), b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\nCookie: " + b"x" * 9_000 + b"\r\n\r\n", b"HTTP/1.1 431 "),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 129 + b"\r\n", b"HTTP/1.1 431 "),
        (b"GET /" + b"x" * 20_000, b""),
    ],
)
async def test_what_is_no_websocket_is_refused(data: bytes, status: bytes) -> None:
    """A browser is told what this is; what is no HTTP at all is ended at its first bytes."""
    async with (
        serving(listeners=listeners()) as server,
        await WireClient.dial(port_of(server, "ws")) as client,
    ):
        await client.send_bytes(data)
        assert (await client.rest_bytes()).startswith(status)
        await until(lambda: server._reception.admission.n_connections == 0)
        assert server.core.counters.connections_refused == {"websocket": 1}


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x82\x01x", CloseCode.PROTOCOL_ERROR),  # without a mask
        (masked(0x83, b"x"), CloseCode.PROTOCOL_ERROR),  # no such opcode
        (masked(0xC2, b"x"), CloseCode.PROTOCOL_ERROR),  # a reserved bit
        (masked(0x80, b"x"), CloseCode.PROTOCOL_ERROR),  # continues nothing
        (masked(0x82, b"")[:1] + b"\xff" + b"\x7f" * 8, CloseCode.MESSAGE_TOO_BIG),
        (masked(0x02, b"x") + masked(0x82, b"x"), CloseCode.PROTOCOL_ERROR),  # in between
        (masked(0x89, bytes(126)), CloseCode.PROTOCOL_ERROR),  # a ping too long
        (masked(0x09, b""), CloseCode.PROTOCOL_ERROR),  # a ping in fragments
        (masked(0x88, b"x"), CloseCode.PROTOCOL_ERROR),  # half a code
    ],
)
async def test_wrong_frame_closes_the_connection(
    caplog: pytest.LogCaptureFixture, frame: bytes, code: CloseCode
) -> None:
    """With the code of RFC 6455, and without waiting for a length that is a lie."""
    caplog.set_level(logging.INFO)
    async with serving(listeners=listeners()) as server:
        client = await upgraded(port_of(server, "ws"))
        await client.send_bytes(frame)
        answer = await client.rest_bytes()
        assert answer[0] == 0x88
        assert int.from_bytes(answer[2:4], "big") == code
        await until(lambda: not driver_of(server).protocols)
        client.close()
    assert len([line for line in caplog.messages if "on listener ws: closed: " in line]) == 1


async def test_stranger_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its CONNECT is accepted, a client may send little, in however large a frame."""
    monkeypatch.setattr(websocket_module, "MAX_STRANGER_BYTES", 1000)
    async with serving(listeners=listeners()) as server:
        client = await upgraded(port_of(server, "ws"))
        await client.send_bytes(b"\x82\xff" + (10**6).to_bytes(8, "big") + bytes(2000))
        answer = await client.rest_bytes()
        assert int.from_bytes(answer[2:4], "big") == CloseCode.MESSAGE_TOO_BIG
        client.close()
        known = await WebSocketClient.dial_websocket(port_of(server, "ws"))
        await known.connect("c")
        assert (await known.publish("t", bytes(5000))).reason_code < 0x80
        known.close()


async def test_frame_that_is_not_whole_counts_with_what_all_connections_hold() -> None:
    """It is kept below MQTT, as the half of a packet is kept in it."""
    limits = {"total_received_bytes": 100_000}
    async with serving(listeners=listeners(), limits=limits) as server:
        client = await upgraded(port_of(server, "ws"))
        await client.send_bytes(masked(0x82, write_packet(Connect(client_id="c"), 5)))
        await until(lambda: server.core.sessions.get("c") is not None)
        await client.send_bytes(b"\x82\xff" + (200_000).to_bytes(8, "big") + bytes(4 + 60_000))
        await until(lambda: server.core.received.n_bytes >= 60_000)
        await client.send_bytes(bytes(60_000))
        await until(lambda: server.core.sessions.get("c") is None)
        assert server.core.received.n_bytes == 0
        assert server.core.counters.peer_errors == {ReasonCode.QUOTA_EXCEEDED: 1}
        client.close()


async def test_ended_connection_is_freed_without_the_collector() -> None:
    """Browsers that come and go leave nothing behind that only a full collection would find."""
    async with serving(listeners=listeners()) as server:
        with without_collector():
            before = objects_of_connections()
            client = await upgraded(port_of(server, "ws"))
            packet = write_packet(Connect(client_id="c", keep_alive=0), 5)
            await client.send_bytes(masked(0x82, packet))
            await client.read()
            assert objects_of_connections() - before
            client.close()
            await until(lambda: not driver_of(server).protocols)
            await until(lambda: not objects_of_connections() - before)


@pytest.mark.parametrize(
    ("request_bytes", "frame"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b""),
        (REQUEST, masked(0x80, b"ab")),
        (REQUEST, masked(0x88, b"\x03")),
    ],
)
async def test_refused_connection_is_freed_without_the_collector(
    request_bytes: bytes, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of wrong requests or frames does not wait for it either."""
    # What pytest keeps of the log, the library's with it, has the errors.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    async with serving(listeners=listeners()) as server:
        with without_collector():
            before = objects_of_connections()
            client = await WireClient.dial(port_of(server, "ws"))
            await client.send_bytes(request_bytes)
            await client.read()
            if frame:
                await client.send_bytes(frame)
            await client.rest_bytes()
            client.close()
            await until(lambda: not objects_of_connections() - before)


@pytest.mark.parametrize(
    ("header", "told", "answered"),
    [
        (
            b"Cookie: " + b"x" * 9_000,
            "431: line too long; allowed: 128 headers, each of 8192 bytes; such as",
            b"Allowed: 128 headers, each of 8192 bytes; such as a shorter cookie.\n",
        ),
        (
            b"Cookie x",
            "not a GET request of HTTP/1.1: invalid HTTP header line: Cookie x",
            b"This is a WebSocket listener for MQTT.\n",
        ),
    ],
)
async def test_a_request_that_cannot_be_read_is_told_why(
    header: bytes, told: str, answered: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A page's cookies may have grown: its developer sees it in the answer, an operator here."""
    caplog.set_level(logging.INFO)
    async with (
        serving(listeners=listeners()) as server,
        await WireClient.dial(port_of(server, "ws")) as client,
    ):
        await client.send_bytes(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % header)
        assert (await client.rest_bytes()).endswith(answered)
        await until(lambda: f"no WebSocket: {told}" in caplog.text)
