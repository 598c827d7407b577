from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from random import Random

import psutil
import pytest

from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, PingResp, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.broker.serving import until
from tests.helpers.malformed import CLOSED, TAKEN, Case, cases
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.wire import WireClient, connected, ending

LIMITS = {"maximum_packet_size": 1000, "receive_maximum": 10, "connect_timeout_seconds": 2.0}

AT_ONCE = 20
"""Connections of garbage that begin at a time: of more, the last would begin too late where others
have the processor."""

MALFORMED = ReasonCode.MALFORMED_PACKET
PROTOCOL = ReasonCode.PROTOCOL_ERROR


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker with small limits, one for all tests."""
    with running_broker(
        anonymous_policy(limits=LIMITS), tmp_path_factory.mktemp("b"), is_forked=False
    ) as running:
        yield running
        assert running.stop() == 0
        assert "ERROR" not in running.log
        assert "Traceback" not in running.log


@contextlib.asynccontextmanager
async def undisturbed(port: int) -> AsyncIterator[None]:
    """Keep two clients talking at QoS 1 during a block; every message must come, in order."""
    may_stop = asyncio.Event()

    async def talk(publisher: WireClient, subscriber: WireClient) -> None:
        number = 0
        is_last = False
        while not is_last:
            is_last = may_stop.is_set()
            number += 1
            assert (await publisher.publish("talk", b"%d" % number)).reason_code < 0x80
            packet = await subscriber.take(Publish)
            assert packet.payload == b"%d" % number
            await subscriber.send(PubAck(packet.packet_id))

    async with await connected(port) as publisher, await connected(port, version=4) as subscriber:
        await subscriber.subscribe("talk", 1)
        talking = asyncio.create_task(talk(publisher, subscriber))
        yield
        may_stop.set()
        await talking


def connect_bytes(old: bytes, new: bytes, version: int = 5) -> bytes:
    """Return a CONNECT in which bytes were replaced by as many others."""
    data = write_packet(Connect(client_id="wrong", protocol_version=version), version)
    assert data.count(old) == 1
    assert len(old) == len(new)
    return data.replace(old, new)


FIRST_PACKETS = {
    "PINGREQ": (b"\xc0\x00", b""),
    "PUBLISH": (b"\x30\x03\x00\x01t", b""),
    "packet type 0": (b"\x00\x00", b""),
    "another protocol": (b"GET / HTTP/1.1\r\n", b""),
    "five bytes of length": (b"\x10\xff\xff\xff\xff\x01", b""),
    "longer than allowed": (b"\x10\xff\xff\xff\x7f", b""),
    "another protocol in TLS": (b"\x16\x03\x01\x02\x00\x01", b""),
    "flags of the fixed header": (connect_bytes(b"\x10", b"\x11"), b""),
    "reserved flag": (connect_bytes(b"MQTT\x05\x02", b"MQTT\x05\x03"), b"\x00\x81"),
    "reserved flag, 3.1.1": (connect_bytes(b"MQTT\x04\x02", b"MQTT\x04\x03", 4), b""),
    "client id that is no UTF-8": (connect_bytes(b"wrong", b"wr\xffng"), b"\x00\x81"),
    "version 6": (connect_bytes(b"MQTT\x05", b"MQTT\x06"), b"\x00\x84"),
    "version 3": (connect_bytes(b"MQTT\x04", b"MQTT\x03", 4), b"\x00\x01"),
    "string beyond the end": (connect_bytes(b"\x05wrong", b"\x06wrong"), b"\x00\x81"),
}
"""First bytes of a connection, and flags and code of the CONNACK that answers it, if any."""


@pytest.mark.parametrize(("sent", "answer"), FIRST_PACKETS.values(), ids=FIRST_PACKETS.keys())
async def test_wrong_first_packet_is_answered_and_closed(
    broker: BrokerProcess, sent: bytes, answer: bytes
) -> None:
    """CONNACK in the client's version says why where it can; else nothing [MQTT-3.1.0-1]."""
    async with undisturbed(broker.port), await WireClient.dial(broker.port) as client:
        await client.send_bytes(sent)
        said = await client.rest_bytes()
        assert said[:1] == b"\x20"[: len(answer)]
        assert said[2:4] == answer


PACKETS = {
    "second CONNECT": (write_packet(Connect(client_id="c"), 5), PROTOCOL),
    "packet type 0": (b"\x00\x00", MALFORMED),
    "five bytes of length": (b"\x30\xff\xff\xff\xff\x01", MALFORMED),
    "announced longer than allowed": (b"\x30\xff\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
    "QoS 3": (b"\x36\x06\x00\x01t\x00\x01\x00", MALFORMED),
    "DUP with QoS 0": (b"\x38\x04\x00\x01t\x00", MALFORMED),
    "packet identifier 0": (b"\x32\x06\x00\x01t\x00\x00\x00", PROTOCOL),
    "topic that is no UTF-8": (b"\x30\x05\x00\x02\xff\xfe\x00", MALFORMED),
    "topic with a surrogate": (b"\x30\x06\x00\x03\xed\xa0\x80\x00", MALFORMED),
    "topic with U+0000": (b"\x30\x05\x00\x02a\x00\x00", MALFORMED),
    "topic with a wildcard": (b"\x30\x05\x00\x02a#\x00", MALFORMED),
    "empty topic": (b"\x30\x03\x00\x00\x00", PROTOCOL),
    "topic beyond the end": (b"\x30\x03\x00\x09t", MALFORMED),
    "properties beyond the end": (b"\x30\x05\x00\x01t\x09\x01", MALFORMED),
    "unknown property": (b"\x30\x07\x00\x01t\x03\x7f\x00\x01", MALFORMED),
    "property twice": (b"\x30\x08\x00\x01t\x04\x01\x00\x01\x00", PROTOCOL),
    "topic alias": (b"\x30\x07\x00\x01t\x03\x23\x00\x41", ReasonCode.TOPIC_ALIAS_INVALID),
    "SUBSCRIBE flags": (b"\x80\x07\x00\x01\x00\x00\x01t\x00", MALFORMED),
    "SUBSCRIBE to nothing": (b"\x82\x03\x00\x01\x00", PROTOCOL),
    "SUBSCRIBE to a wrong filter": (b"\x82\x09\x00\x01\x00\x00\x03a#b\x00", MALFORMED),
    "SUBSCRIBE with QoS 3": (b"\x82\x07\x00\x01\x00\x00\x01t\x03", PROTOCOL),
    "UNSUBSCRIBE from nothing": (b"\xa2\x03\x00\x01\x00", PROTOCOL),
    "PUBACK too short": (b"\x40\x01\x00", MALFORMED),
    "PUBREL flags": (b"\x60\x02\x00\x01", MALFORMED),
    "CONNACK from a client": (b"\x20\x03\x00\x00\x00", PROTOCOL),
    "AUTH": (b"\xf0\x00", PROTOCOL),
    "PINGREQ with a body": (b"\xc0\x01\x00", MALFORMED),
    "DISCONNECT of an unknown reason": (b"\xe0\x01\xff", PROTOCOL),
    "more than Receive Maximum": (
        b"".join(write_packet(Publish("t", qos=2, packet_id=number), 5) for number in range(1, 12)),
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
    ),
}
"""What a connected MQTT 5 client sends, and the reason code of the broker's DISCONNECT."""

ONLY_IN_5 = {name for name in PACKETS if "propert" in name} | {"topic alias"}
"""What MQTT 3.1.1 takes for payload; `Receive Maximum` it does not have."""


@pytest.mark.parametrize(("sent", "reason_code"), PACKETS.values(), ids=PACKETS.keys())
async def test_mqtt_5_client_is_told_why_it_is_closed(
    broker: BrokerProcess, sent: bytes, reason_code: ReasonCode
) -> None:
    """DISCONNECT carries the reason code [MQTT-4.13.1-1]; other clients go on."""
    async with undisturbed(broker.port), await connected(broker.port) as client:
        await client.send_bytes(sent)
        packets = await client.rest()
        assert ending(packets) == reason_code
        assert isinstance(packets[-1], Disconnect)
        assert packets[-1].properties["reason_string"]
    broker.wait_for_log(f"(0x{reason_code:02X})")  # it may come after the DISCONNECT


@pytest.mark.parametrize(
    "sent",
    [
        data
        for name, (data, _) in PACKETS.items()
        if name not in ONLY_IN_5 and name != "more than Receive Maximum"
    ],
    ids=[name for name in PACKETS if name not in ONLY_IN_5 and "Receive Maximum" not in name],
)
async def test_mqtt_3_1_1_client_is_closed(broker: BrokerProcess, sent: bytes) -> None:
    """MQTT 3.1.1 has no word for it: the connection ends [MQTT-4.8.0-1]."""
    async with undisturbed(broker.port), await connected(broker.port, version=4) as client:
        await client.send_bytes(sent)
        assert await client.rest_bytes() == b""


async def test_packets_before_a_malformed_one_count(broker: BrokerProcess) -> None:
    """What was right in the same chunk was handled and acknowledged."""
    async with await connected(broker.port) as subscriber, await connected(broker.port) as client:
        await subscriber.subscribe("right")
        right = write_packet(Publish("right", b"data", qos=1, packet_id=5), 5)
        await client.send_bytes(right + b"\x36\x06\x00\x01t\x00\x01\x00")
        packets = await client.rest()
        assert packets[0] == PubAck(5)
        assert (len(packets), ending(packets)) == (2, MALFORMED)
        assert (await subscriber.take(Publish)).payload == b"data"


async def test_client_that_stalls_within_a_packet_is_closed(broker: BrokerProcess) -> None:
    """Half a CONNECT meets the connect timeout, half of another packet the keep-alive."""
    connect = write_packet(Connect(client_id="half"), 5)
    publish = write_packet(Publish("t", bytes(500)), 5)
    async with (
        undisturbed(broker.port),
        await WireClient.dial(broker.port) as early,
        await connected(broker.port, keep_alive=1) as late,
    ):
        await early.send_bytes(connect[: len(connect) // 2])
        await late.send_bytes(publish[: len(publish) // 2])
        assert await early.rest() == []
        assert ending(await late.rest()) == ReasonCode.KEEP_ALIVE_TIMEOUT


def garbage(rng: Random) -> tuple[bytes, bool]:
    """Return bytes that make no sense, and whether a CONNECT that does is to come before."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 500)), False
    if kind == 1:
        connect = bytearray(write_packet(Connect(client_id="garbled", keep_alive=1), 5))
        kept = {0, 1, 10, 11}  # length and keep-alive: or the broker would have to wait for more
        for position in rng.sample(sorted(set(range(len(connect))) - kept), 3):
            connect[position] = rng.randrange(256)
        return bytes(connect), False
    return bytes([rng.choice(b"\x36\x00\x81\xf1\x3e")]) + rng.randbytes(300), True


async def pour(port: int, data: bytes, may_begin: asyncio.Semaphore, *, is_connected: bool) -> None:
    """Send bytes that make no sense and read whatever comes until the end."""
    async with contextlib.AsyncExitStack() as stack:
        async with may_begin:
            begun = connected(port, keep_alive=1) if is_connected else WireClient.dial(port)
            client = await stack.enter_async_context(await begun)
            with contextlib.suppress(ConnectionError):  # it may be closed before all is sent
                await client.send_bytes(data)
        await client.rest_bytes()


@pytest.mark.memory
async def test_two_thousand_connections_of_garbage(broker: BrokerProcess) -> None:
    """Each is closed, or is a client by chance; others go on, and the memory stays flat."""
    rng = Random(20)  # noqa: S311 (the same garbage each time)
    process = psutil.Process(broker.process.pid)
    n_bytes = []
    may_begin = asyncio.Semaphore(AT_ONCE)
    async with undisturbed(broker.port):
        for _ in range(4):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(500):
                    data, is_connected = garbage(rng)
                    begun = pour(broker.port, data, may_begin, is_connected=is_connected)
                    tasks.create_task(begun)
            n_bytes.append(process.memory_info().rss)
        # What the last round has left is given back a little later.
        await until(lambda: process.memory_info().rss < n_bytes[0] + 12_000_000)


@pytest.mark.parametrize("first", range(4))
async def test_a_sample_of_all_wrong_packets(broker: BrokerProcess, first: int) -> None:
    """On real sockets as on the virtual broker: the reason code, and nobody else notices."""
    sample = list(cases())[first::150]
    async with undisturbed(broker.port):
        answers = await asyncio.gather(*(answer(broker.port, case) for case in sample))
    wrong = [
        f"{case.name}: {answered:#x}"
        for case, answered in zip(sample, answers, strict=True)
        if answered not in (case.codes if case.version == 5 or TAKEN in case.codes else (CLOSED,))
    ]
    assert not wrong, "\n".join(wrong)


async def answer(port: int, case: Case) -> int:
    """Send a case's packet; return the reason code of the last answer, `CLOSED` or `TAKEN`."""
    dial = WireClient.dial if case.is_connect else connected
    async with await dial(port, version=case.version) as client:
        await client.send_bytes(case.data)
        if TAKEN in case.codes:
            await client.send_bytes(b"\xc0\x00")
            while (packet := await client.receive()) is not None:
                if packet == PingResp():
                    return TAKEN
            return CLOSED
        packets = await client.rest()
    last = packets[-1] if packets else None
    return last.reason_code if isinstance(last, ConnAck | Disconnect) else CLOSED


async def test_senders_of_one_byte_at_a_time_are_served(broker: BrokerProcess) -> None:
    """Each packet in as many chunks as it has bytes, from a hundred clients at once."""

    async def dribble(number: int) -> None:
        connect = write_packet(Connect(client_id=f"slow{number}"), 5)
        publish = write_packet(Publish("slow", b"%d" % number, qos=1, packet_id=1), 5)
        async with await WireClient.dial(broker.port) as client:
            client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in connect + publish:
                await client.send_bytes(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.take(ConnAck)).reason_code == 0
            assert (await client.take(PubAck)).reason_code < 0x80

    async with undisturbed(broker.port):
        await asyncio.gather(*(dribble(number) for number in range(100)))
