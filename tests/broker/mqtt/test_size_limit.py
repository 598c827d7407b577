"""What a packet leaves out, so that the client takes it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
from penstock.broker.mqtt.size_limit import fit_packet
from penstock.broker.mqtt.writer import write_packet

REASON: dict[str, Any] = {"reason_string": "why"}
USER: dict[str, Any] = {"user_property": [("a", "b")]}

PACKETS = [
    lambda properties: ConnAck(False, 0x87, {"receive_maximum": 3, **properties}),
    lambda properties: PubAck(1, 0x87, properties),
    lambda properties: PubRec(1, 0x87, properties),
    lambda properties: PubRel(1, 0x92, properties),
    lambda properties: PubComp(1, 0x92, properties),
    lambda properties: SubAck(1, (0x87,), properties),
    lambda properties: UnsubAck(1, (0x87,), properties),
    lambda properties: Disconnect(0x87, properties),
]


@pytest.mark.mqtt5(
    "3.2.2-19", "3.2.2-20", "3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2", "3.6.2-3"
)
@pytest.mark.mqtt5("3.7.2-2", "3.7.2-3", "3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2")
@pytest.mark.mqtt5("3.14.2-3", "3.14.2-4", "3.1.2-24")
@pytest.mark.parametrize("make", PACKETS)
def test_reasons_go_before_the_packet_is_too_large(make: Any) -> None:
    """User Properties first, then the Reason String; without both it is sent or not at all."""
    whole: Packet = make({**REASON, **USER})
    forms = [write_packet(make(left), 5) for left in ({**REASON, **USER}, REASON, {})]
    sizes = [len(form) for form in forms]
    assert sizes == sorted(sizes, reverse=True)
    for maximum in range(1, sizes[0] + 2):
        fitting = [form for form in forms if len(form) <= maximum]
        expected = fitting[0] if fitting else None
        assert fit_packet(whole, 5, maximum, is_explained=True) == expected


@pytest.mark.mqtt5("3.1.2-29")
@pytest.mark.parametrize("make", PACKETS)
def test_without_request_problem_information_reasons_stay_out(make: Any) -> None:
    """But in CONNACK and DISCONNECT, which end a connection."""
    whole: Packet = make({**REASON, **USER})
    is_end = isinstance(whole, ConnAck | Disconnect)
    expected = write_packet(whole if is_end else make({}), 5)
    assert fit_packet(whole, 5, 1000, is_explained=False) == expected


def test_a_packet_without_properties_is_what_it_is() -> None:
    """PINGRESP has none to leave out."""
    assert fit_packet(PingResp(), 5, 2, is_explained=False) == b"\xd0\0"
    assert fit_packet(PingResp(), 5, 1, is_explained=False) is None
