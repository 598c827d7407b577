from __future__ import annotations

import json
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.queue.batch_format import (
    SEGMENT_MAX_BYTES,
    SEGMENT_MAX_MESSAGES,
    cut_frame,
    properties_json,
    split_for_segments,
    write_batch,
    write_deliveries,
)
from penstock.plugins.queue.wire.frames import (
    Batch,
    ReceivedMessage,
    join_batches,
    read_batch,
    read_deliveries,
    read_offsets,
)
from tests.helpers.effort import examples

ROW = st.tuples(
    st.integers(0, 2**63 - 1),
    st.text(max_size=8),
    st.binary(max_size=40),
    st.integers(0, 2),
    st.text(max_size=4),
    st.floats(allow_nan=False),
    st.text(max_size=4),
)


def batch_of(rows: list[tuple[int, str, bytes, int, str, float, str]]) -> Batch:
    """Return rows as columns."""
    return Batch(*(list(column) for column in zip(*rows, strict=True)))


BATCHES = st.lists(ROW, min_size=1, max_size=12).map(batch_of)
THREE = batch_of([(5, "a", b"x", 0, "p", 1.5, ""), (6, "b", b"", 1, "", 2.5, "{}"),
                  (9, "a", b"yz", 2, "p", 3.5, "")])  # fmt: skip


@settings(max_examples=examples(40))
@given(st.lists(BATCHES, max_size=4))
def test_frames_read_back_as_written(batches: list[Batch]) -> None:
    """A row of frames reads back as one batch with the same messages in the same order."""
    assert read_batch(b"".join(map(write_batch, batches))) == join_batches(batches)


@given(st.lists(st.builds(
    ReceivedMessage, st.text(max_size=20), st.integers(1, 9), st.integers(0, 1023),
    st.integers(0, 2**62), st.text(max_size=8), st.binary(max_size=40), st.integers(0, 2),
    st.text(max_size=4), st.floats(allow_nan=False), st.text(max_size=4),
), max_size=8))  # fmt: skip
def test_deliveries_read_back_as_written(deliveries: list[ReceivedMessage]) -> None:
    """Deliveries come over the wire with handle, receive count and place."""
    assert read_deliveries(write_deliveries(deliveries)) == deliveries


def test_frame_has_the_documented_layout() -> None:
    """A reader written from the documentation alone finds every column."""
    frame = write_batch(
        batch_of([(7, "ab", b"xyz", 1, "", 2.0, ""), (8, "ab", b"", 0, "", 3.0, "")])
    )
    magic, kind, n, length = struct.unpack_from("<4sB3xIQ", frame)
    assert (magic, kind, n, length) == (b"PQB1", 0, 2, len(frame))
    columns = struct.unpack_from("<2q2d2BI I2s2I I I2I I I2I 2I3s", frame, 20)
    assert columns == (
        *(7, 8), *(2.0, 3.0), *(1, 0),
        1, 2, b"ab", 0, 0,
        1, 0, 0, 0,
        1, 0, 0, 0,
        3, 0, b"xyz",
    )  # fmt: skip


@pytest.mark.parametrize("length", range(1, len(write_batch(THREE))))
def test_truncated_frame_is_refused(length: int) -> None:
    """A frame that was cut anywhere raises ValueError and nothing else."""
    for read in (read_batch, read_offsets):
        with pytest.raises(ValueError, match="at byte 0"):
            read(write_batch(THREE)[:length])


@settings(max_examples=examples(300))
@given(st.integers(0, len(write_batch(THREE)) - 1), st.integers(0, 255))
def test_changed_frame_is_read_or_refused(position: int, value: int) -> None:
    """Whatever one byte becomes, only ValueError escapes; the readers of frames agree on it."""
    frame = bytearray(write_batch(THREE))
    frame[position] = value
    try:
        read = read_batch(bytes(frame))
    except ValueError as refusal:
        with pytest.raises(ValueError, match=re.escape(str(refusal)[:15])):
            read_offsets(bytes(frame))
        return
    assert len({len(column) for column in read}) == 1
    assert read_offsets(bytes(frame)) == read.offset


def test_kinds_are_not_mixed_up() -> None:
    """Records are not read as deliveries, which have more columns."""
    with pytest.raises(ValueError, match="kind"):
        read_deliveries(write_batch(THREE))


def test_cut_frame_keeps_what_is_wanted() -> None:
    """A cut frame holds the wanted records, no more than asked for."""
    frame = write_batch(THREE)
    assert read_batch(cut_frame(frame, 0b101, 10)).offset == [5, 9]
    assert read_batch(cut_frame(frame, 0b111, 2)).offset == [5, 6]
    assert read_batch(cut_frame(frame, 0b100, 1)) == batch_of([(9, "a", b"yz", 2, "p", 3.5, "")])


def test_properties_become_json_with_binary_values_in_base64() -> None:
    """MQTT 5 properties are readable without MQTT: user properties as pairs, binary as base64."""
    properties = {"user_property": [("unit", "°C")], "correlation_data": b"\x00\xff"}
    assert json.loads(properties_json(properties)) == {
        "user_property": [["unit", "°C"]],
        "correlation_data": "AP8=",
    }


@given(st.lists(st.integers(0, SEGMENT_MAX_BYTES + 9), max_size=30), st.integers(0, 600))
def test_segments_are_bounded(sizes: list[int], n_small: int) -> None:
    """No segment has too many messages or bytes, but for one message that is long alone."""
    sizes = [*sizes, *[1] * n_small]
    runs = list(split_for_segments(sizes))
    assert [size for run in runs for size in sizes[run]] == sizes
    for run in runs:
        part = sizes[run]
        assert 1 <= len(part) <= SEGMENT_MAX_MESSAGES
        assert len(part) == 1 or sum(part) <= SEGMENT_MAX_BYTES
