"""What the tests of statements have in common: versions, sessions, bytes and refusals."""

from __future__ import annotations

from typing import Any, Final

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.data_types import write_variable_byte_integer
from penstock.broker.mqtt.packets import ConnAck, Disconnect, Packet
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient


class OnDisk(DurableBroker):
    """A virtual broker that keeps durable sessions on a disk, made as `VirtualBroker` is."""

    def __init__(self, limits: Limits | None = None, **extensions: Any) -> None:
        super().__init__(limits=limits, **extensions)


IN_EACH_VERSION: Final = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])

MALFORMED: Final = ReasonCode.MALFORMED_PACKET
PROTOCOL_ERROR: Final = ReasonCode.PROTOCOL_ERROR


def keep(version: int, seconds: int = 600, **properties: Any) -> dict[str, Any]:
    """Return the options of a CONNECT whose session outlives its connection.

    Args:
        version: 4 or 5.
        seconds: Session Expiry Interval, in MQTT 5.
        properties: further ones, in MQTT 5.
    """
    if version == 4:
        return {"clean_start": False}
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds, **properties}}


def frame(first_byte: int, digits: str) -> bytes:
    """Return a packet with its right length.

    Args:
        first_byte: type and flags.
        digits: all that follows the length, as hexadecimal digits.
    """
    body = bytes.fromhex(digits)
    return bytes([first_byte]) + write_variable_byte_integer(len(body)) + body


def answer(client: VirtualClient, *packets: Packet | bytes) -> bytes:
    """Send packets, or bytes as they are; take and return the bytes that come back."""
    data = b"".join(
        packet if isinstance(packet, bytes) else write_packet(packet, client.version)
        for packet in packets
    )
    n_bytes = len(client.received)
    client.send_bytes(data)
    client.inbox.clear()
    return bytes(client.received[n_bytes:])


def assert_closed(client: VirtualClient, code: ReasonCode) -> None:
    """Assert that a connection was closed for an error, in the words of its version."""
    assert client.is_lost
    if client.version == 5:
        assert client.take(Disconnect).reason_code == code
    assert client.inbox == []


def assert_refused(client: VirtualClient, code: ReasonCode) -> None:
    """Assert that a CONNECT was malformed or not allowed: MQTT 3.1.1 has no word for it."""
    assert client.is_lost
    if client.version == 5:
        connack = client.take(ConnAck)
        assert (connack.session_present, connack.reason_code) == (False, code)
    assert client.inbox == []


def connect_bytes(version: int, flags: int, payload: str, *, name: str = "0004 4d515454") -> bytes:
    """Return a CONNECT put together by hand, without properties and keep-alive.

    Args:
        version: protocol level.
        flags: connect flags.
        payload: as hexadecimal digits.
        name: protocol name with its length, as hexadecimal digits.
    """
    properties = "00" if version == 5 else ""
    return frame(0x10, f"{name} {version:02x} {flags:02x} 0000 {properties} {payload}")


def pair(broker: VirtualBroker, version: int, qos: int = 0) -> tuple[VirtualClient, VirtualClient]:
    """Return a publisher, and a subscriber to everything with a session that stays."""
    subscriber = broker.connect("s", version, **keep(version))
    subscriber.subscribe("#", qos)
    return broker.connect("p", version), subscriber
