"""Properties of an outgoing PUBLISH: encoded once, and right for each reader."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.properties import read_properties, write_properties
from penstock.broker.sending import outgoing_properties as module
from penstock.broker.sending.outgoing_properties import outgoing_properties

USER = {"user_property": [("unit", "celsius"), ("unit", "kelvin")], "content_type": "text"}


def decoded(data: bytes) -> dict[str, Any]:
    """Return the properties of a PUBLISH, which take all of the bytes."""
    properties, end = read_properties(data, 0, PacketType.PUBLISH)
    assert end == len(data)
    return properties


def test_each_reader_has_its_own_beside_what_is_the_same_for_all() -> None:
    """Expiry counts down; Subscription Identifiers and Topic Alias are one reader's."""
    properties = USER | {"message_expiry_interval": 60}
    message = Message("t", b"x", properties=properties, expires_at=160.0)
    assert decoded(outgoing_properties(message, (), 100.0)) == properties
    later = decoded(outgoing_properties(message, (7, 300), 130.0, 5))
    assert later == USER | {
        "message_expiry_interval": 30,
        "subscription_identifier": [7, 300],
        "topic_alias": 5,
    }
    assert decoded(outgoing_properties(message, (), 170.0))["message_expiry_interval"] == 0


def test_properties_are_encoded_once_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: there may be very many properties, too."""
    encoded: list[int] = []

    def write(properties: dict[str, Any], carrier: int) -> bytes:
        encoded.append(len(properties))
        return write_properties(properties, carrier)

    monkeypatch.setattr(module, "write_properties", write)
    message = Message("t", b"x", properties=USER)
    for reader in range(1, 50):
        outgoing_properties(message, (reader,), 0.0)
    assert encoded == [len(USER)]


def test_nothing_is_the_empty_property_length() -> None:
    """As for most messages."""
    assert outgoing_properties(Message("t", b"x"), (), 0.0) == b"\0"
