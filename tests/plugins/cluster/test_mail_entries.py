"""What the engine has of a message that waits."""

from __future__ import annotations

from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PUBLISH
from penstock.broker.mqtt.properties import read_properties
from penstock.plugins.cluster.frames import packet_head
from penstock.plugins.cluster.mail_entries import (
    Sent,
    entry_of,
    entry_of_row,
    read_entry,
    shared_entry,
)

MESSAGE = Message(
    "a/b",
    b"payload",
    qos=2,
    retain=True,
    expires_at=130.0,
    properties={"content_type": "t", "user_property": [("n", "v")]},
    publisher="µ",
)


def test_message_is_read_as_it_was_written() -> None:
    """What is left of its Message Expiry Interval counts from when the entry was made."""
    row, share = read_entry(entry_of(MESSAGE, b"payload", 100.0), 7, 50.0)
    assert (row.row, row.topic, row.payload, row.qos, row.retain) == (7, "a/b", b"payload", 2, True)
    assert (row.arrived_at, row.expires_at, row.publisher, share) == (50.0, 80.0, "µ", "")
    assert row.properties is not None
    assert read_properties(row.properties, 0, PUBLISH)[0] == MESSAGE.properties


def test_row_of_the_broker_is_written_in_the_same_way() -> None:
    """Such as a retained message that a new subscription has got."""
    row, _ = read_entry(entry_of(MESSAGE, b"payload", 100.0), 7, 50.0)
    assert read_entry(entry_of_row(row, "", 50.0), 7, 50.0) == (row, "")
    assert read_entry(entry_of_row(row, "$share/g/a", 50.0), 7, 50.0) == (row, "$share/g/a")


def test_shared_subscription_stands_beside_the_message() -> None:
    """As each member may have several."""
    packet = packet_head(Message("a", b"1", qos=1), 1, 0.0) + b"1"
    row, share = read_entry(shared_entry(packet, "$share/g/a"), 1, 0.0)
    assert (row.topic, row.payload, row.properties, share) == ("a", b"1", None, "$share/g/a")


def test_how_a_message_was_sent_is_read_as_it_was_written() -> None:
    """With its Packet Identifier."""
    sent = Sent(5, is_released=True, qos=2, retain=False, subscription_ids="1,2")
    assert Sent.read(sent.written()) == sent
