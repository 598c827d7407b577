"""Parts on the disk."""

from __future__ import annotations

import resource
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.edge_proxy.parts.part_format import STREAM_BYTES, Part, Trailer
from penstock.edge_proxy.parts.partial_message import PartialMessage, Span
from penstock.edge_proxy.parts.spool import (
    NUMBERS,
    RESERVE_BYTES,
    Ended,
    Piece,
    Spool,
    Spooled,
    SpoolError,
    SpoolFullError,
)

ID = bytes(range(16))
TRAILER = Trailer(sha256(b"abcdef").digest(), b"\0")


def opened(path: Path) -> Spool:
    """Return an open spool."""
    spool = Spool(str(path / "spool.db"))
    spool.open_file()
    return spool


def spooled(partial: PartialMessage, number: int = 1) -> Spooled:
    """Return a row."""
    return Spooled(number, partial, b"\0", 5.0, 7.0, None)


def partial_of(message_id: bytes = ID) -> PartialMessage:
    """Return a message of which nothing has come."""
    return PartialMessage(Part(message_id, 0, 6, 2, retain=True, trailer=None, data=b""), "a/b")


def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    """Places, flags, trailer and times; the payload in its order, whatever that of its parts."""
    spool = opened(tmp_path)
    partial = partial_of()
    partial.add_span(Span(4, 6))
    spool.store([spooled(partial)], [Piece(1, 4, b"ef")])
    partial.trailer = TRAILER
    partial.add_span(Span(0, 3))
    spool.store([spooled(partial)], [Piece(1, 0, memoryview(b"abc"))])
    spool.close()
    spool = opened(tmp_path)
    (found,) = spool.messages()
    assert found._replace(partial=partial) == spooled(partial)
    assert found.partial.spans == [Span(0, 3), Span(4, 6)]
    assert (found.partial.topic, found.partial.qos, found.partial.retain) == ("a/b", 2, True)
    assert found.partial.trailer == TRAILER
    assert not found.partial.is_whole
    spool.store([], [Piece(1, 3, b"d")])
    assert spool.digest(1) == TRAILER.digest
    assert spool.read([row for row, _ in spool.pieces(1)]) == b"abcdef"
    spool.publishing(1, 9)
    assert spool.messages()[0].packet_id == 9
    spool.close()


def test_a_full_disk_takes_no_parts_and_lets_go_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting needs space, too: it is reserved."""
    spool = opened(tmp_path)
    spool.store([spooled(partial_of())], [Piece(1, 0, bytes(300_000))])
    reserve = tmp_path / "spool.db.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spend = spool._reserve.spend

    def spent() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return spend()

    monkeypatch.setattr(spool._reserve, "spend", spent)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        spool.end(1, Ended(ID, "disk", 5.0, None))
        assert not reserve.exists()
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with pytest.raises(SpoolFullError, match="4,194,304 bytes left that are kept for deleting"):
            spool.store([spooled(partial_of())], [Piece(1, 0, b"x")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not spool.messages()
    spool.store([spooled(partial_of())], [Piece(1, 0, b"x")])
    assert reserve.exists()
    spool.close()


def test_what_has_ended_is_remembered_for_a_while(tmp_path: Path) -> None:
    """But for as long as a packet identifier is to be released."""
    spool = opened(tmp_path)
    spool.store([spooled(partial_of())], [Piece(1, 0, b"a")])
    ended = Ended(ID, "", 10.0, 4)
    spool.end(1, ended)
    assert not spool.messages()
    assert not spool.pieces(1)
    spool.end(None, Ended(bytes(16), "hash", 11.0, None))
    spool.forget(20.0, 9)
    assert spool.ended() == [ended]
    spool.released(ID)
    spool.forget(20.0, 9)
    assert not spool.ended()
    spool.close()


def test_no_more_than_the_newest_are_remembered(tmp_path: Path) -> None:
    """However young the others are."""
    spool = opened(tmp_path)
    for number in range(5):
        spool.end(None, Ended(number.to_bytes(16), "", 10.0, None))
    spool.forget(0.0, 2)
    assert [one.message_id[-1] for one in spool.ended()] == [3, 4]
    spool.close()


def test_space_is_given_back(tmp_path: Path) -> None:
    """A large message that is gone leaves some MB in the file at most."""
    spool = opened(tmp_path)
    for number in range(1, 21):
        spool.store(
            [spooled(partial_of(number.to_bytes(16)), number)], [Piece(number, 0, bytes(1 << 20))]
        )
    for number in range(1, 21):
        spool.end(number, Ended(number.to_bytes(16), "", 0.0, None))
    spool.forget(1.0, 9)
    spool.close()
    assert (tmp_path / "spool.db").stat().st_size < 10 << 20


def test_a_message_that_is_cut_is_known_by_its_packet_identifier(tmp_path: Path) -> None:
    """Until it is forgotten."""
    spool = opened(tmp_path)
    spool.cut(3, ID, 0)
    spool.cut(3, ID, 500)
    spool.cut(4, bytes(16), 0)
    assert spool.cutting() == {3: (ID, 500), 4: (bytes(16), 0)}
    spool.end_cutting(3)
    assert list(spool.cutting()) == [4]
    stream = spool.stream()
    assert len(stream) == STREAM_BYTES
    assert [spool.reserve_numbers() for _ in range(2)] == [0, NUMBERS]
    spool.end_cutting(None)
    assert not spool.cutting()
    assert (spool.stream(), spool.reserve_numbers()) == (stream, 2 * NUMBERS)
    spool.close()


def test_a_spool_is_of_one_process(tmp_path: Path) -> None:
    """And of this program; the message names the file."""
    spool = opened(tmp_path)
    with pytest.raises(SpoolError, match=r"spool .*spool\.db: in use by process"):
        opened(tmp_path)
    spool.close()
    (tmp_path / "spool.db").write_bytes(b"no database" * 100)
    with pytest.raises(SpoolError, match=r"spool .*spool\.db: .*allowed"):
        opened(tmp_path)


def test_a_file_that_was_deleted_takes_nothing(tmp_path: Path) -> None:
    """What is written there would be lost with the process."""
    spool = opened(tmp_path)
    (tmp_path / "spool.db").unlink()
    with pytest.raises(SpoolError, match="was deleted or replaced"):
        spool.store([spooled(partial_of())], [Piece(1, 0, b"a")])
    spool.close()
    with pytest.raises(SpoolError, match="it is closed"):
        spool.cutting()
