from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.links.channel import Counts
from penstock.netem.links.profiles import LOSSY, OPEN, Bursts, Direction
from penstock.netem.links.tc_commands import (
    count,
    impairment_words,
    needs_netem,
    rate_words,
    read_shown,
)


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        # 2.5 MB/s are 20 Mbit/s; 2 ms of it are 5,000 bytes, and 0.2 s are 500,000.
        (Direction(rate=2_500_000), "rate 20000000bit burst 5000b limit 500000b"),
        # Two packets at the least, and ten in the queue.
        (Direction(rate=1_000), "rate 8000bit burst 3000b limit 15000b"),
        (Direction(rate=125_000.5), "rate 1000004bit burst 3000b limit 25000b"),
        (
            Direction(0.1, 125_000, queue_bytes=64_000, loss=0.5),
            "rate 1000000bit burst 3000b limit 64000b",
        ),
        (Direction(), "rate 80000000000bit burst 1000000b limit 67108864b"),
        (Direction(rate=1e12), "rate 80000000000bit burst 1000000b limit 67108864b"),
    ],
)
def test_a_rate_is_a_token_bucket_of_bits_with_a_queue_of_bytes(
    direction: Direction, expected: str
) -> None:
    """By tc's units; the Ethernet header, which the profile does not count, is taken off."""
    assert " ".join(rate_words(direction)) == f"root handle 1: stab overhead -14 tbf {expected}"


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        (Direction(), "delay 0us"),
        (Direction(rate=2_500_000), "delay 0us"),
        (Direction(0.02), "delay 20000us"),
        (Direction(1.5), "delay 1500000us"),
        (Direction(0.0000126), "delay 13us"),
        (Direction(0.1, jitter=0.025), "delay 100000us 25000us"),
        (Direction(loss=0.2), "delay 0us loss random 20%"),
        (Direction(loss=1.0), "delay 0us loss random 100%"),
        (Direction(loss=0.0001), "delay 0us loss random 0.01%"),
        (Direction(loss=1 / 3), "delay 0us loss random 33.333333333%"),
        (Direction(loss=Bursts(0.01, 0.25)), "delay 0us loss gemodel 1% 25% 100% 0%"),
        (
            Direction(loss=Bursts(0.01, 0.25, inside=0.9, outside=0.001)),
            "delay 0us loss gemodel 1% 25% 90% 0.1%",
        ),
        (
            Direction(0.05, 1e6, jitter=0.01, loss=0.2, reorder=0.25, duplicate=0.05),
            "delay 50000us 10000us loss random 20% duplicate 5% reorder 25%",
        ),
    ],
)
def test_all_but_the_rate_is_netem(direction: Direction, expected: str) -> None:
    """Times in microseconds, shares in percent; the rate is what keeps packets in order."""
    words = " ".join(impairment_words(direction))
    assert words == f"root handle 2: netem limit 44739 {expected} rate 100gbit"


def test_what_tc_cannot_do_is_refused() -> None:
    """Where it would be something else in silence, the text says what is allowed."""
    with pytest.raises(NetemError, match="tc: rate: read 99; allowed: at least 100 bytes"):
        rate_words(Direction(rate=99))
    with pytest.raises(NetemError, match=r"tc: jitter: read 3; allowed: at most 2.147 s"):
        impairment_words(Direction(4.0, jitter=3.0))


def test_a_rate_alone_needs_no_netem() -> None:
    """With its queue; everything else does."""
    assert not needs_netem(OPEN.upstream)
    assert not needs_netem(Direction(rate=1e6, queue_bytes=20_000))
    for direction in (
        Direction(0.001),
        Direction(loss=0.1),
        Direction(loss=Bursts(0.1, 0.1)),
        Direction(duplicate=0.1),
        LOSSY.upstream,
    ):
        assert needs_netem(direction)


def shown(kind: str, packets: int, drops: int = 0, qlen: int = 0) -> dict[str, Any]:
    """Return what tc shows of a queueing discipline."""
    counters = {"packets": packets, "bytes": 1_000 * packets, "drops": drops, "qlen": qlen}
    return {"kind": kind, "root": True, **counters}


def test_what_tc_shows_is_read_device_by_device() -> None:
    """A line for each command; what stands at the ingress is no queue."""
    ingress = {"kind": "ingress", "parent": "ffff:fff1", "packets": 7, "drops": 0, "qlen": 0}
    lines = [[shown("tbf", 5), ingress], [ingress, shown("netem", 4)]]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    assert [each["kind"] for each in read_shown(text)] == ["tbf", "netem"]


@pytest.mark.parametrize(
    ("rate", "impairment", "expected"),
    [
        (
            shown("tbf", 90, 8, 2),
            None,
            Counts(taken=100, delivered=90, dropped=8, carried_bytes=90_000),
        ),
        (
            shown("tbf", 90, 8, 2),
            shown("netem", 70, 15, 5),
            Counts(taken=100, delivered=70, lost=15, dropped=8, carried_bytes=90_000),
        ),
        # 90 went in, 95 have left, are lost or wait: five are second ones.
        (
            shown("tbf", 90),
            shown("netem", 80, 10, 5),
            Counts(taken=90, delivered=80, lost=10, duplicated=5, carried_bytes=90_000),
        ),
        # What went in since netem was read is under way.
        (
            shown("tbf", 90),
            shown("netem", 60, 10),
            Counts(taken=90, delivered=60, lost=10, carried_bytes=90_000),
        ),
    ],
)
def test_packets_are_counted_as_the_other_engine_counts_them(
    rate: dict[str, Any], impairment: dict[str, Any] | None, expected: Counts
) -> None:
    """Each is delivered, lost, dropped or under way; duplicates come on top."""
    assert count(rate, impairment) == expected
