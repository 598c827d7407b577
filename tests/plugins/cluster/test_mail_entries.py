"""What the engine has of a message that waits."""

from __future__ import annotations

from struct import error as StructError  # noqa: N812 (it is a class)

import pytest

from penstock.broker.errors import PeerError
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PUBLISH
from penstock.broker.mqtt.properties import read_properties
from penstock.plugins.cluster.frames import packet_head
from penstock.plugins.cluster.mail_entries import (
    Sent,
    head_of,
    packet_of_row,
    read_entry,
    written,
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
PACKET = packet_head(MESSAGE, 7, 100.0) + b"payload"


def test_message_is_read_as_it_was_written() -> None:
    """What is left of its Message Expiry Interval counts from when the entry was made."""
    row, share = read_entry(head_of("µ"), PACKET, 7, 50.0)
    assert (row.row, row.topic, row.payload, row.qos, row.retain) == (7, "a/b", b"payload", 2, True)
    assert (row.arrived_at, row.expires_at, row.publisher, share) == (50.0, 80.0, "µ", "")
    assert row.properties is not None
    left = {"message_expiry_interval": 30}  # what has no properties is sent without any
    assert read_properties(row.properties, 0, PUBLISH)[0] == {**MESSAGE.properties, **left}


def test_row_of_the_broker_is_written_in_the_same_way() -> None:
    """Such as a retained message that a new subscription has got."""
    row, _ = read_entry(head_of("µ"), PACKET, 7, 50.0)
    packet = packet_of_row(row, 50.0)
    assert read_entry(head_of("µ"), packet, 7, 50.0) == (row, "")


def test_packet_is_in_the_form_of_its_publisher_s_version() -> None:
    """Beside it stands the shared subscription, as each member may have several."""
    head = head_of("", "$share/g/a", 4)
    row, share = read_entry(head, b"\x32\x06\0\1a\0\x091", 1, 0.0)
    assert (row.topic, row.payload, row.properties, share) == ("a", b"1", None, "$share/g/a")


@pytest.mark.parametrize("packet", [b"\x40\x06\0\1a\0\x091", b"\x32\x06\0\1", b"\0003 name"])
def test_what_is_no_message_is_refused(packet: bytes) -> None:
    """Such as the name of one that stands elsewhere, and is lost there."""
    with pytest.raises((PeerError, ValueError, LookupError, StructError)):
        read_entry(head_of(""), packet, 1, 0.0)


def test_how_a_message_was_sent_is_read_as_it_was_written() -> None:
    """With its Packet Identifier."""
    sent = Sent(5, is_released=True, qos=2, retain=False, subscription_ids="1,2")
    assert Sent.read(written(sent._replace(packet_id=4), 5, is_released=1)) == sent
