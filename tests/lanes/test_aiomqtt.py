from __future__ import annotations

from pathlib import Path

import aiomqtt as stock
import pytest

from penstock.lanes import aiomqtt
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.two_lanes import PICTURE


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
