from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.mqtt.packets import PubAck, PubComp, PubRec, PubRel
from penstock.broker.mqtt.short_packets import (
    ALL_PUBACK,
    ALL_PUBCOMP,
    ALL_PUBREC,
    ALL_PUBREL,
    answers,
    end_of_equal_heads,
    n_equal_packets,
    number_packets,
    packets_from,
)
from penstock.broker.mqtt.writer import write_packet

KINDS = [(ALL_PUBACK, PubAck), (ALL_PUBREC, PubRec), (ALL_PUBREL, PubRel), (ALL_PUBCOMP, PubComp)]


@pytest.mark.parametrize(("packets", "kind"), KINDS)
@pytest.mark.parametrize("first_packet_id", [1, 250, 65_526])
def test_packets_of_a_range_are_what_the_writer_writes(
    packets: bytes, kind: type[PubAck], first_packet_id: int
) -> None:
    """Up to the last Packet Identifier."""
    ids = range(first_packet_id, first_packet_id + 10)
    written = b"".join(write_packet(kind(packet_id), 5) for packet_id in ids)
    assert packets_from(packets, first_packet_id, 10) == written
    packet_ids = b"".join(packet_id.to_bytes(2) for packet_id in ids)
    assert answers(written[0], packet_ids) == written


@given(
    first=st.integers(1, 60_000),
    n_due=st.integers(0, 40),
    n_there=st.integers(0, 40),
    rest=st.binary(max_size=5),
)
def test_as_many_packets_are_equal_as_are_due_and_whole(
    first: int, n_due: int, n_there: int, rest: bytes
) -> None:
    """What comes behind them is of no matter, be it the beginning of another."""
    data = b"before" + packets_from(ALL_PUBACK, first, n_there) + b"\xff" + rest
    assert n_equal_packets(ALL_PUBACK, first, n_due, data, 6) == min(n_due, n_there)
    assert n_equal_packets(ALL_PUBACK, first, n_due, data[: -1 - len(rest)], 6) == min(
        n_due, n_there
    )


def test_an_acknowledgement_out_of_order_ends_the_run() -> None:
    """The identifiers before it are taken."""
    data = packets_from(ALL_PUBACK, 7, 3) + packets_from(ALL_PUBACK, 11, 3)
    assert n_equal_packets(ALL_PUBACK, 7, 9, data, 0) == 3
    assert n_equal_packets(ALL_PUBACK, 6, 9, data, 0) == 0


def test_packets_are_numbered_across_a_change_of_the_first_byte() -> None:
    """Nothing else of them changes."""
    packets = bytearray(b"..ab--ab--ab--")
    number_packets(packets, 4, 14, 4, 255)
    assert packets == b"..ab\x00\xffab\x01\x00ab\x01\x01"


@given(
    head=st.binary(min_size=1, max_size=3),
    payload_bytes=st.integers(0, 3),
    n_like=st.integers(1, 200),
    tail=st.binary(max_size=8),
    before=st.binary(max_size=2),
    end=st.integers(0, 1400),
)
def test_packets_with_equal_heads_are_those_that_a_look_at_each_finds(
    head: bytes, payload_bytes: int, n_like: int, tail: bytes, before: bytes, end: int
) -> None:
    """However many they are, and whatever follows them."""
    size = len(head) + payload_bytes
    data = before + (head + b"p" * payload_bytes) * n_like + tail
    end = max(len(before) + size, min(end, len(data)))
    stop = expected = len(before) + size
    while expected + size <= end and data[expected : expected + len(head)] == head:
        expected += size
    assert end_of_equal_heads(data, head, stop, size, end) == expected
