from __future__ import annotations

from pathlib import Path

from penstock.netem.clients.publisher import Published, read_published, read_published_file


def test_messages_are_joined_with_their_acknowledgements() -> None:
    """Packet ids tell which is whose, on each stream's connection for itself."""
    lines = ["p 0 0 1 10.0", "p 1 0 1 10.5", "a 1 1 10.75", "a 0 1 11.0", "p 0 1 2 12.0"]
    assert read_published(lines) == [
        Published(0, 0, 10.0, 11.0),
        Published(1, 0, 10.5, 10.75),
        Published(0, 1, 12.0, None),
    ]


def test_an_acknowledgement_may_be_written_before_its_message() -> None:
    """The connection's thread may be faster than the one that publishes."""
    assert read_published(["a 0 7 10.5", "p 0 0 7 10.0"]) == [Published(0, 0, 10.0, 10.5)]


def test_a_packet_id_is_used_again() -> None:
    """Each acknowledgement belongs to one message."""
    lines = ["p 0 0 7 1.0", "a 0 7 2.0", "p 0 1 7 3.0", "a 0 7 4.0", "p 0 2 7 5.0"]
    assert [each.acknowledged_at for each in read_published(lines)] == [2.0, 4.0, None]


def test_nobody_acknowledges_at_qos_0() -> None:
    """Without a packet id there is no acknowledgement."""
    assert read_published(["p 0 0 0 1.0", "p 0 1 0 2.0"]) == [
        Published(0, 0, 1.0, None),
        Published(0, 1, 2.0, None),
    ]


def test_a_publisher_that_has_not_begun_has_published_nothing(tmp_path: Path) -> None:
    """There is no file then."""
    assert read_published_file(tmp_path / "none") == []
