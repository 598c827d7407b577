from __future__ import annotations

import pytest

from penstock.netem.links.pacer import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, SLACK_BYTES, Pacer
from penstock.netem.links.profiles import Direction


def test_a_chunk_takes_its_length_over_the_rate_and_then_the_delay() -> None:
    """1,000 bytes at 500 bytes/s are sent after 2 s and come out after the delay."""
    pacer = Pacer(Direction(delay=0.5, rate=500))
    pacer.begin(1_000, now=10.0)
    assert pacer.free_at == pytest.approx(12.0, abs=0.003)
    assert pacer.arrives_at == pytest.approx(12.5, abs=0.003)


def test_many_chunks_keep_the_rate_though_each_wake_up_is_late() -> None:
    """A caller that comes 1 ms late each time loses no rate over 100 chunks."""
    pacer = Pacer(Direction(rate=1_000_000))
    now = 10.0
    for _ in range(100):
        pacer.begin(10_000, now)
        now = pacer.free_at + 0.001
    assert pacer.free_at == pytest.approx(11.0, abs=0.003)


def test_an_idle_link_saves_nothing_up() -> None:
    """After an hour without bytes a chunk takes as long as any other."""
    pacer = Pacer(Direction(rate=1_000))
    pacer.begin(1_000, now=10.0)
    pacer.begin(1_000, now=3_600.0)
    assert pacer.free_at == pytest.approx(3_601.0, abs=0.003)


def test_without_a_rate_only_the_delay_is_left() -> None:
    """A link of any rate is free at once."""
    pacer = Pacer(Direction(delay=0.25))
    pacer.begin(1_000_000, now=10.0)
    assert (pacer.free_at, pacer.arrives_at) == (10.0, 10.25)


@pytest.mark.parametrize(
    ("rate", "free_at"),
    [(200.0, 10.5), (50.0, 12.0), (None, 10.0)],
    ids=["faster", "slower", "any"],
)
def test_the_rest_of_a_chunk_goes_at_the_new_rate(rate: float | None, free_at: float) -> None:
    """A change in the middle of a chunk counts for the bytes that are not sent yet."""
    pacer = Pacer(Direction(rate=100))
    pacer.begin(200, now=9.0)  # 100 bytes are left at 10.0
    pacer.change(Direction(delay=3.0, rate=rate), now=10.0)
    assert pacer.free_at == pytest.approx(free_at, rel=0.001)
    assert pacer.arrives_at == pytest.approx(free_at + 3.0, rel=0.001)


def test_a_change_after_a_chunk_was_sent_leaves_it_sent() -> None:
    """A link that is free stays free."""
    pacer = Pacer(Direction(rate=100))
    pacer.begin(100, now=9.0)
    pacer.change(Direction(rate=1), now=20.0)
    assert pacer.free_at <= 10.0


@pytest.mark.parametrize(
    ("rate", "chunk_bytes"),
    [(1.0, MIN_CHUNK_BYTES), (125_000.0, 1_250), (1e12, MAX_CHUNK_BYTES), (None, MAX_CHUNK_BYTES)],
)
def test_a_chunk_is_ten_milliseconds_within_bounds(rate: float | None, chunk_bytes: int) -> None:
    """Chunks are short enough for a change to be felt and long enough to be worth a wake-up."""
    assert Pacer(Direction(rate=rate)).chunk_bytes == chunk_bytes


def test_what_may_be_under_way_is_what_fills_the_link_and_a_little() -> None:
    """A second at 125 kB/s holds 125 kB; a far side that takes nothing stops the link there."""
    assert Pacer(Direction(1.0, 125_000)).max_under_way_bytes == 125_000 + SLACK_BYTES
