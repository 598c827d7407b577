from __future__ import annotations

from penstock.broker.extensions import PayloadStore
from penstock.broker.message import Message


def test_a_message_has_the_bytes_of_its_topic_and_the_size_of_its_payload() -> None:
    """Worked out once, used for every subscriber."""
    message = Message("temperatur/küche", b"21.5", qos=1)
    assert message.topic_bytes == "temperatur/küche".encode()
    assert message.payload_bytes == 4
    assert message.properties == {}


def test_a_message_expires_at_its_time() -> None:
    """[MQTT-3.3.2-5]: from the second on that its interval ends; without one never."""
    lasting, short = Message("t", b""), Message("t", b"", expires_at=5.0)
    assert [short.is_expired(4.9), short.is_expired(5.0)] == [False, True]
    assert not lasting.is_expired(1e9)


def test_showing_a_message_shows_no_payload() -> None:
    """L1: no payload in logs."""
    assert "secret" not in repr(Message("t", b"secret"))


def test_the_reference_store_keeps_the_very_object() -> None:
    """Paper 002, lazy allocation: one payload however many wait for it."""
    payload = b"x" * 1000
    message = Message("t", PayloadStore().keep(payload))
    assert message.read_payload() is payload


class _Handle:
    def __len__(self) -> int:
        return 3

    def read(self) -> bytes:
        """Return what a store has kept elsewhere."""
        return b"abc"

    def read_piece(self, start: int) -> bytes:
        """Return what is left of it from there on."""
        return b"abc"[start:]


def test_a_payload_kept_elsewhere_is_read_when_it_is_needed() -> None:
    """A handle stands for the payload, and knows its size without reading it."""
    message = Message("t", _Handle())
    assert message.payload_bytes == 3
    assert message.read_payload() == b"abc"


def test_a_message_counts_what_it_takes_of_the_memory() -> None:
    """Its payload, its topic twice, small properties too; not what a store keeps elsewhere."""
    small = Message("t", b"").memory_bytes
    assert 200 < small < 500
    assert Message("t", bytes(1000)).memory_bytes == small + 1000
    assert Message("t" * 1001, b"").memory_bytes == small + 2000
    wide = Message("\N{GRINNING FACE}" + "t" * 1000, b"").memory_bytes
    assert wide > small + 5000  # one such character makes each take four bytes
    assert Message("t", _Handle()).memory_bytes == small
    properties = {"user_property": [("k", "v")] * 200, "content_type": "x" * 500}
    assert 200 * 150 < Message("t", b"", properties=properties).memory_bytes - small < 200 * 250
