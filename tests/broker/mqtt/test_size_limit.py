from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.mqtt.expiry import EXPIRY, expiry_time, interval_left
from penstock.broker.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
)
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
from penstock.broker.mqtt.size_limit import fit_packet
from penstock.broker.mqtt.writer import write_packet

REASON: dict[str, Any] = {"reason_string": "why"}
USER: dict[str, Any] = {"user_property": [("a", "b")]}

PACKETS = [
    lambda properties: ConnAck(False, 0x87, {"receive_maximum": 3, **properties}),
    lambda properties: PubAck(1, 0x87, properties),
    lambda properties: PubRec(1, 0x87, properties),
    lambda properties: PubRel(1, 0x92, properties),
    lambda properties: PubComp(1, 0x92, properties),
    lambda properties: SubAck(1, (0x87,), properties),
    lambda properties: UnsubAck(1, (0x87,), properties),
    lambda properties: Disconnect(0x87, properties),
]


@pytest.mark.mqtt5(
    "3.2.2-19", "3.2.2-20", "3.4.2-2", "3.4.2-3", "3.5.2-2", "3.5.2-3", "3.6.2-2", "3.6.2-3"
)
@pytest.mark.mqtt5("3.7.2-2", "3.7.2-3", "3.9.2-1", "3.9.2-2", "3.11.2-1", "3.11.2-2")
@pytest.mark.mqtt5("3.14.2-3", "3.14.2-4", "3.1.2-24")
@pytest.mark.parametrize("make", PACKETS)
def test_reasons_go_before_the_packet_is_too_large(make: Any) -> None:
    """User Properties first, then the Reason String; without both it is sent or not at all."""
    whole: Packet = make({**REASON, **USER})
    forms = [write_packet(make(left), 5) for left in ({**REASON, **USER}, REASON, {})]
    sizes = [len(form) for form in forms]
    assert sizes == sorted(sizes, reverse=True)
    for maximum in range(1, sizes[0] + 2):
        fitting = [form for form in forms if len(form) <= maximum]
        expected = fitting[0] if fitting else None
        assert fit_packet(whole, 5, maximum, is_explained=True) == expected


@pytest.mark.mqtt5("3.1.2-29")
@pytest.mark.parametrize("make", PACKETS)
def test_without_request_problem_information_reasons_stay_out(make: Any) -> None:
    """But in CONNACK and DISCONNECT, which end a connection."""
    whole: Packet = make({**REASON, **USER})
    is_end = isinstance(whole, ConnAck | Disconnect)
    expected = write_packet(whole if is_end else make({}), 5)
    assert fit_packet(whole, 5, 1000, is_explained=False) == expected


def test_a_packet_without_properties_is_what_it_is() -> None:
    """PINGRESP has none to leave out."""
    assert fit_packet(PingResp(), 5, 2, is_explained=False) == b"\xd0\0"
    assert fit_packet(PingResp(), 5, 1, is_explained=False) is None


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


def test_a_message_without_the_property_never_expires() -> None:
    """MQTT 5.0, 3.3.2.3.3: if absent, the message does not expire."""
    assert expiry_time({}, 100.0) is None
    assert expiry_time({"content_type": "text"}, 100.0) is None


def test_an_interval_runs_from_the_message_s_arrival() -> None:
    """0 is an interval, too: such a message is for whoever can have it at once."""
    assert expiry_time({EXPIRY: 10}, 100.0) == 110.0
    assert expiry_time({EXPIRY: 0}, 100.0) == 100.0


@pytest.mark.mqtt5("3.3.2-6")
@pytest.mark.parametrize(
    ("waited", "left"),
    [
        (0.0, 10),
        (0.4, 10),
        (0.6, 10),
        (0.99, 10),
        (1.0, 9),
        (1.0 - 1e-9, 9),  # a clock's rounding error is no time
        (1.0 + 1e-9, 9),
        (8.5, 2),
        (9.0, 1),
        (9.9999, 1),  # 0 would say that it has expired
        (10.0, 0),
        (25.0, 0),
    ],
)
def test_the_interval_loses_the_whole_seconds_that_were_waited(waited: float, left: int) -> None:
    """A fraction of a second is not waited yet; what is sent again later than that has 0 left."""
    assert interval_left(1000.0 + 10, 1000.0 + waited) == left


def test_servers_in_a_row_that_do_not_wait_do_not_wear_an_interval_out() -> None:
    """Ten servers that take 0.6 s each hand on ten seconds of ten, and 1 s each takes one each."""
    intervals = {}
    for seconds in (0.6, 1.0):
        now, interval = 0.0, 10
        for _server in range(10):
            expires_at = expiry_time({EXPIRY: interval}, now)
            assert expires_at is not None
            now += seconds
            interval = interval_left(expires_at, now)
        intervals[seconds] = interval
    assert intervals == {0.6: 10, 1.0: 0}
