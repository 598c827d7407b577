"""What passes what on the way to a subscriber that does not read for a while, on real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import Publish
from tests.broker.serving import port_of, serving
from tests.helpers.wire import WireClient, connected

LARGE_BYTES = 200_000
TOPICS = [f"views/{n}" for n in range(4)]


async def order_of_arrival(withholding: dict[str, Any], **listener: Any) -> list[str]:
    """Return the topics that come, in order, after four large messages and two small ones.

    The subscriber reads nothing before all of them were published, at QoS 1.
    """
    listeners = {"default": {"bind": "127.0.0.1:0", **listener}}
    plugins = {"withholding": {"policy": "none", **withholding}}
    async with serving(listeners=listeners, plugins=plugins) as server:
        subscriber = await WireClient.dial(port_of(server), receive_bytes=4096)
        async with subscriber, await connected(port_of(server)) as publisher:
            await subscriber.connect("subscriber")
            await subscriber.subscribe("#", 1)
            for topic in TOPICS:
                await publisher.publish(topic, bytes(LARGE_BYTES))
            await publisher.publish(TOPICS[-1], b"small, of the last large one's topic")
            await publisher.publish("alarms/1", b"small")
            return [(await subscriber.take(Publish)).topic for _ in range(6)]


@pytest.mark.parametrize(
    ("withholding", "listener", "order"),
    [
        ({}, {}, ["views/0", "alarms/1", *TOPICS[1:], "views/3"]),
        ({"ordering": "none"}, {}, ["views/0", "views/3", "alarms/1", *TOPICS[1:]]),
        (
            {"priority": ["alarms/#", "views/2"]},
            {},
            ["views/0", "views/2", "alarms/1", "views/1", "views/3", "views/3"],
        ),
        # What small ones cannot pass: all that was left to the kernel.
        ({}, {"unsent_bytes": None}, [*TOPICS, "views/3", "alarms/1"]),
    ],
)
async def test_what_passes_what(
    withholding: dict[str, Any], listener: dict[str, Any], order: list[str]
) -> None:
    """Small ones wait behind the large one on the wire, and no other; what has priority, too."""
    assert await order_of_arrival(withholding, **listener) == order
