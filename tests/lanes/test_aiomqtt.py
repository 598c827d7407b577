from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiomqtt as stock
import pytest

from penstock.lanes import aiomqtt
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE, is_connected, wait_for


@pytest.mark.parametrize("name", [n for n in dir(stock) if not n.startswith("__")])
def test_it_has_all_names_of_the_package_that_it_stands_for(name: str) -> None:
    """All but the client are the same object."""
    ours, theirs = getattr(aiomqtt, name), getattr(stock, name)
    assert ours is theirs or issubclass(ours, theirs)


async def test_messages_of_both_lanes_are_those_of_one_client(tmp_path: Path) -> None:
    """In the order of their topic; they are acknowledged as they are with one lane."""
    with running_broker(anonymous_policy(), tmp_path) as broker:
        async with aiomqtt.Client(
            "127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5
        ) as client:
            await client.subscribe("#", qos=1)
            for payload in (PICTURE + b"0", b"1", PICTURE + b"2", b"3"):
                await client.publish("cam", payload, qos=1)
            got = []
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                got.append(message.payload[-1:])
                if len(got) == 4:
                    break
            assert got == [b"0", b"1", b"2", b"3"]
            assert client._client._lane.is_up  # type: ignore[attr-defined]


async def test_the_large_lane_ends_where_the_first_connection_is_lost(tmp_path: Path) -> None:
    """It takes no picture from the next client of the program."""
    plugins = {"console": {"http": "127.0.0.1:0"}}
    options: dict[str, Any] = {
        "identifier": "again",
        "protocol": aiomqtt.ProtocolVersion.V5,
        "clean_start": False,
        "properties": connect_properties(SessionExpiryInterval=600),
    }
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        async with aiomqtt.Client("127.0.0.1", broker.port, **options) as lost:
            await lost.subscribe("cam", qos=1)
            paho: Any = lost._client
            await asyncio.to_thread(wait_for, lambda: paho._lane.is_up)
            paho._sock.shutdown(socket.SHUT_RDWR)
            with pytest.raises(aiomqtt.MqttError):
                await anext(lost.messages)
            await asyncio.to_thread(wait_for, lambda: not is_connected(broker, "again.large-lane"))
        with PahoClient(broker.port, "camera") as camera:
            assert camera.connect()
            camera.publish("cam", PICTURE)
        async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
            message = await anext(client.messages)
            assert message.payload == PICTURE
        assert not len(lost.messages)
