"""A message is cut into parts."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge_proxy.parts.cutting import Cutter
from penstock.edge_proxy.parts.part_format import Part, Trailer

ID = bytes(16)


def cutter(n_bytes: int, part_bytes: int, skip_bytes: int = 0) -> Cutter:
    """Return a cutter of a message."""
    return Cutter(
        ID,
        n_bytes,
        qos=2,
        retain=True,
        properties=b"\0",
        part_bytes=part_bytes,
        skip_bytes=skip_bytes,
    )


@given(st.lists(st.binary(max_size=20)), st.integers(1, 16), st.integers(0, 100))
def test_parts_are_the_payload_however_it_comes(
    pieces: list[bytes], part_bytes: int, skip_bytes: int
) -> None:
    """All but those that the other end has; the last one always comes, and knows the hash."""
    payload = b"".join(pieces)
    cutting = cutter(len(payload), part_bytes, skip_bytes)
    parts: list[Part] = []
    for piece in [*pieces, b""]:
        cutting.feed(piece)
        while (part := cutting.take()) is not None:
            parts.append(part)
            assert cutting.waiting_bytes >= 0
    assert cutting.is_done
    assert cutting.take() is None
    last_at = max(0, (len(payload) - 1) // part_bytes * part_bytes)
    skipped = min(skip_bytes // part_bytes * part_bytes, last_at)
    assert b"".join(part.data for part in parts) == payload[skipped:]
    assert [part.offset for part in parts] == list(range(skipped, len(payload) or 1, part_bytes))
    assert [part.trailer for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].trailer == Trailer(sha256(payload).digest(), b"\0")
    assert all((part.qos, part.retain, part.message_id) == (2, True, ID) for part in parts)


def test_a_part_is_a_slice_of_what_came() -> None:
    """A payload that comes in one piece is not copied."""
    payload = bytes(10)
    cutting = cutter(10, 4)
    cutting.feed(payload)
    part = cutting.take()
    assert part is not None
    assert isinstance(part.data, memoryview)
    assert part.data.obj is payload
