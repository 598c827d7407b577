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
