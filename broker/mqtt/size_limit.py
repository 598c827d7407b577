"""Makes packets fit the limits of a client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.packets import Packet, PingReq, PingResp
from penstock.broker.mqtt.writer import write_packet

_EXPENDABLE: Final = ("user_property", "reason_string")
"""Properties that a packet can do without, in the order of removal."""

_ALWAYS_EXPLAINED: Final = frozenset(
    {PacketType.CONNACK, PacketType.PUBLISH, PacketType.DISCONNECT}
)
"""These packets may hold a Reason String and User Properties whatever a client has asked for."""


MAX_REASON: Final = 256
"""A Reason String has at most so many characters: enough for what was read and what is allowed."""


def explained(reason: str) -> dict[str, Any]:
    """Return the properties that give a client a reason; none for an empty one."""
    if not reason:
        return {}
    return {"reason_string": reason[:MAX_REASON].replace("\0", "\N{REPLACEMENT CHARACTER}")}


def fit_packet(packet: Packet, version: int, maximum: int, *, is_explained: bool) -> bytes | None:
    """Return a packet that fits the client's limits.

    Reason String and User Properties are left out where the client does not want them
    [MQTT-3.1.2-29], and as far as the packet would be too large with them: [MQTT-3.2.2-19],
    [MQTT-3.2.2-20] and their like for each packet.

    Returns:
        Its bytes; None where it cannot be made to fit and must not be sent [MQTT-3.1.2-24].
    """
    if not is_explained and packet.packet_type not in _ALWAYS_EXPLAINED:
        for name in _EXPENDABLE:
            packet = _without(packet, name)
    frame = write_packet(packet, version)
    for name in _EXPENDABLE:
        if len(frame) <= maximum:
            return frame
        packet = _without(packet, name)
        frame = write_packet(packet, version)
    return frame if len(frame) <= maximum else None


def _without(packet: Packet, name: str) -> Packet:
    if isinstance(packet, PingReq | PingResp) or name not in packet.properties:
        return packet
    properties: dict[str, Any] = {k: v for k, v in packet.properties.items() if k != name}
    return replace(packet, properties=properties)
