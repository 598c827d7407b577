"""Section 4.7: topic names and topic filters."""

from __future__ import annotations

import pytest

from tests.conformance.clients import IN_EACH_VERSION, MALFORMED, assert_closed, frame
from tests.helpers.virtual import VirtualBroker, VirtualClient


def subscribe_bytes(client: VirtualClient, topic_filter: bytes) -> None:
    """Subscribe to whatever these bytes are."""
    properties = "00" if client.version == 5 else ""
    digits = f"{len(topic_filter):04x} {topic_filter.hex()}"
    client.send_bytes(frame(0x82, f"0001 {properties} {digits} 00"))


@pytest.mark.parametrize(
    "topic_filter",
    [
        pytest.param(
            name, marks=[pytest.mark.mqtt5("4.7.1-1"), pytest.mark.mqtt311("4.7.1-2")], id=name
        )
        for name in ("a#", "#a", "a/#/b", "##", "#/")
    ]
    + [
        pytest.param(
            name, marks=[pytest.mark.mqtt5("4.7.1-2"), pytest.mark.mqtt311("4.7.1-3")], id=name
        )
        for name in ("a+", "+a", "a/+b/c", "++")
    ],
)
@IN_EACH_VERSION
def test_a_wildcard_out_of_its_place_is_refused(version: int, topic_filter: str) -> None:
    """A whole level, and for # the last one."""
    client = VirtualBroker().connect("c", version)
    subscribe_bytes(client, topic_filter.encode())
    assert_closed(client, MALFORMED)
