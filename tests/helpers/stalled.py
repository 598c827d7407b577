"""Subscribers that stop reading, and the memory that they cost the program that serves them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.wire import WireClient, connected

N_MESSAGES = 20
PAYLOAD_BYTES = 1_000_000


async def stalled_subscriber(port: int, number: int, receive_bytes: int = 4096) -> WireClient:
    """Return a client that subscribes to `large/#` at QoS 1 and then reads nothing.

    Args:
        port: the port of a broker or proxy.
        number: the number of the client; its protocol version is 3.1.1 or 5.0 in turn.
        receive_bytes: the bytes that the kernel accepts for it, at the price of a slow read later;
            0 for no bound.
    """
    client = await WireClient.dial(port, 4 + number % 2, receive_bytes=receive_bytes)
    assert (await client.connect(f"stalled {number}")).reason_code == 0
    assert await client.subscribe("large/#", 1) == 1
    return client


async def publish_numbered(publisher: WireClient, number: int) -> None:
    """Publish a large message that begins with its number; it must be accepted."""
    payload = b"%03d" % number + bytes(PAYLOAD_BYTES - 3)
    assert (await publisher.publish("large/1", payload)).reason_code < 0x80


async def read_numbers(client: WireClient) -> list[int]:
    """Read and acknowledge all large messages; return their numbers."""
    numbers = []
    for _ in range(N_MESSAGES):
        packet = await client.take(Publish)
        assert len(packet.payload) == PAYLOAD_BYTES
        numbers.append(int(packet.payload[:3]))
        await client.send(PubAck(packet.packet_id))
    return numbers


async def growth_with_stalled_subscribers(
    port: int, n_subscribers: int, resident: Callable[[], int]
) -> int:
    """Publish `N_MESSAGES` large messages to subscribers that read nothing.

    Meanwhile another client gets each small message. Afterwards four of them read everything, each
    message once and in order.

    Args:
        port: the port of a broker or proxy.
        n_subscribers: the number of subscribers, at least four.
        resident: a function that returns the bytes of memory of the program behind the port.

    Returns:
        The bytes by which it has grown at most.
    """
    async with contextlib.AsyncExitStack() as clients:
        stalled = [
            await clients.enter_async_context(await stalled_subscriber(port, number))
            for number in range(n_subscribers)
        ]
        healthy = await clients.enter_async_context(await connected(port))
        await healthy.subscribe("small")
        publisher = await clients.enter_async_context(await connected(port))
        before = most = resident()
        for number in range(N_MESSAGES):
            await publish_numbered(publisher, number)
            await publisher.publish("small", b"%d" % number)
            assert (await healthy.take(Publish)).payload == b"%d" % number
            most = max(most, resident())
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(read_numbers(client)) for client in stalled[:4]]
        for task in reading:
            assert task.result() == list(range(N_MESSAGES))
    return most - before
