"""Which characters a topic may have: the same as with mosquitto."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.mqtt.packets import ConnAck, Connect, PingReq, PingResp, Publish, Will
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.wire import WireClient

CHARACTERS = (
    *("\x01", "\t", "\n", "\x1b", "\x1f", " ", "~", "\x7f", "\x80", "\x85", "\x9f", "\xa0", "\xad"),
    *("\u200b", "\u2028", "\ue000", "\ufdcf", "\ufdd0", "\ufdef", "\ufdf0", "\ufeff", "\ufffd"),
    *("\ufffe", "\uffff", "\U00010000", "\U0001f600", "\U0001fffe", "\U0010fffd", "\U0010ffff"),
)


async def takes(port: int, topic: str, version: int, *, in_will: bool) -> bool:
    """Say whether a broker takes a topic, of a message of QoS 0 or of a will."""
    will = Will(topic, b"") if in_will else None
    async with await WireClient.dial(port, version) as client:
        await client.send(Connect(client_id="c", protocol_version=version, will=will))
        connack = await client.receive()
        if not isinstance(connack, ConnAck) or connack.reason_code:
            assert in_will
            return False
        await client.send(Publish("a" if in_will else topic, b""), PingReq())
        return isinstance(await client.receive(), PingResp)


@pytest.mark.parametrize("in_will", [False, True], ids=["message", "will"])
@pytest.mark.parametrize("version", [4, 5])
async def test_what_mosquitto_refuses_is_refused(
    version: int, tmp_path: Path, *, in_will: bool
) -> None:
    """No other character is, however rare it is."""

    async def taken(port: int) -> list[str]:
        asked = {one: f"a/{one}/b" for one in CHARACTERS}
        return [
            one
            for one, topic in asked.items()
            if await takes(port, topic, version, in_will=in_will)
        ]

    with running_mosquitto(tmp_path) as mosquitto:
        theirs = await taken(mosquitto.port)
    with running_broker(anonymous_policy(), tmp_path) as broker:
        assert await taken(broker.port) == theirs
    assert " " in theirs
    assert "\t" not in theirs
