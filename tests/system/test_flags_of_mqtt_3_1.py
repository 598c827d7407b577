"""MQTT 3.1: what is sent again has DUP, and flags that a packet does not use may be set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from penstock.broker.mqtt.packets import (
    ConnAck,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.sidecar import before, running_sidecar
from tests.helpers.wire import WireClient

Kind = TypeVar("Kind", bound=Packet)

CONNECT: Final = b"\x00\x06MQIsdp\x03\x02\x00\x00\x00\x01c"
SUBSCRIBE: Final = b"\x00\x01\x00\x01t\x02"
UNSUBSCRIBE: Final = b"\x00\x02\x00\x01t"


@contextlib.contextmanager
def port_of(kind: str, folder: Path) -> Iterator[int]:
    """Run a broker of some kind; yield where it listens."""
    with contextlib.ExitStack() as stack:
        if kind.endswith("mosquitto"):
            port = stack.enter_context(running_mosquitto(folder)).port
        else:
            port = stack.enter_context(running_broker(anonymous_policy(), folder)).port
        if kind.startswith("sidecar"):
            port = stack.enter_context(running_sidecar(before(port), folder)).port
        yield port


class Client31:
    """A client of MQTT 3.1 that sets flags in packets other than PUBLISH.

    Attributes:
        wire: its connection.
    """

    def __init__(self, wire: WireClient) -> None:
        self.wire = wire
        self._came: list[Packet] = []

    async def send(self, first_byte: int, body: bytes) -> None:
        """Send a packet."""
        await self.wire.send_bytes(bytes((first_byte, len(body))) + body)

    async def take(self, kind: type[Kind]) -> Kind:
        """Take the next packet of this kind; others that come before it wait."""
        while True:
            for packet in self._came:
                if isinstance(packet, kind):
                    self._came.remove(packet)
                    return packet
            came = await self.wire.receive()
            assert came is not None, f"closed; wanted {kind.__name__}"
            self._came.append(came)


async def talk(port: int, flags: int, *, everywhere: bool) -> None:
    """Send each packet that a client may send; every one must be taken, or answered.

    Args:
        port: of the broker.
        flags: of packets.
        everywhere: False sets them in PUBREL, SUBSCRIBE and UNSUBSCRIBE alone.
    """
    others = flags if everywhere else 0
    async with await WireClient.dial(port, 3) as wire:
        client = Client31(wire)
        await client.send(0x10 | others, CONNECT)
        await client.take(ConnAck)
        await client.send(0x82 | flags, SUBSCRIBE)
        await client.take(SubAck)
        # Its own message comes back at QoS 2, and then another at QoS 1.
        await client.send(0x34, b"\x00\x01t\x00\x07x")
        await client.take(PubRec)
        for _ in range(2):  # the answer to the first may be lost
            await client.send(0x62 | flags, b"\x00\x07")
            assert (await client.take(PubComp)).packet_id == 7
        packet_id = (await client.take(Publish)).packet_id.to_bytes(2, "big")
        await client.send(0x50 | others, packet_id)
        await client.take(PubRel)
        await client.send(0x70 | others, packet_id)
        await client.send(0x32, b"\x00\x01t\x00\x08x")
        await client.take(PubAck)
        packet_id = (await client.take(Publish)).packet_id.to_bytes(2, "big")
        await client.send(0x40 | others, packet_id)
        await client.send(0xA2 | flags, UNSUBSCRIBE)
        await client.take(UnsubAck)
        await client.send(0xC0 | others, b"")
        await client.take(PingResp)
        await client.send(0xE0 | others, b"")
        assert await wire.receive() is None


@pytest.mark.parametrize("kind", ["mosquitto", "penstock", "sidecar before mosquitto"])
async def test_what_a_client_sends_again_with_dup_is_answered(kind: str, tmp_path: Path) -> None:
    """PUBREL, SUBSCRIBE and UNSUBSCRIBE of QoS 1."""
    with port_of(kind, tmp_path) as port:
        await talk(port, 0x08, everywhere=False)


@pytest.mark.parametrize("kind", ["penstock", "sidecar before penstock"])
@pytest.mark.parametrize("flags", [0x01, 0x08, 0x09])
async def test_flags_that_a_packet_does_not_use_are_ignored(
    flags: int, kind: str, tmp_path: Path
) -> None:
    """MQTT 3.1 says so of DUP, QoS and RETAIN of most packets."""
    with port_of(kind, tmp_path) as port:
        await talk(port, flags, everywhere=True)
