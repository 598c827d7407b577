from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.config import key_types
from penstock.netem.links import channel as channel_module
from penstock.netem.links.channel import Channel
from penstock.netem.links.profiles import (
    BAD,
    GOOD,
    LOSSY,
    OPEN,
    PROFILES,
    STRICT,
    Bursts,
    Direction,
)

PACKET = bytes(1_000)


def make(direction: Direction, seed: int = 1) -> Channel:
    """Return a channel with chance of its own."""
    return Channel(direction, random.Random(seed))  # noqa: S311 (no secret)


def numbered(count: int) -> list[bytes]:
    """Return packets that can be told apart."""
    return [number.to_bytes(1_000, "big") for number in range(count)]


def drain(channel: Channel) -> list[tuple[float, bytes]]:
    """Come back at each next event until nothing is under way; return what came and when."""
    arrived = []
    while (now := channel.next_event) < math.inf:
        arrived += [(now, packet) for packet in channel.due(now)]
    return arrived


def test_a_packet_arrives_after_its_length_over_the_rate_and_the_delay() -> None:
    """1,000 bytes at 500 bytes/s have left after 2 s and arrive half a second later."""
    channel = make(Direction(delay=0.5, rate=500))
    channel.take(PACKET, now=10.0)
    assert channel.due(12.4) == []
    assert drain(channel) == [(12.5, PACKET)]


def test_packets_wait_for_each_other_and_lateness_does_not_add_up() -> None:
    """100 packets at a packet a second take 100 s, though the caller is always late."""
    channel = make(Direction(rate=1_000))
    packets = numbered(15)
    for packet in packets:
        channel.take(packet, now=0.0)
    arrived = []
    last = 0.0
    while channel.next_event < math.inf:
        last = channel.next_event
        arrived += channel.due(last + 0.3)
    assert arrived == packets
    assert last == pytest.approx(15.0)


def test_bytes_are_carried_that_use_the_link() -> None:
    """Lost ones too; not those that wait, nor those for which the queue had no room."""
    channel = make(Direction(delay=5.0, rate=1_000, queue_bytes=3_000, loss=1.0))
    for packet in numbered(4):
        channel.take(packet, now=0.0)
    channel.due(1.0)
    assert (channel.counts.dropped, channel.counts.lost) == (1, 1)
    assert channel.counts.carried_bytes == 1_000
    drain(channel)
    assert channel.counts.carried_bytes == 3_000


def test_a_full_queue_drops_the_newest() -> None:
    """With room for three packets a fourth is dropped and counted."""
    channel = make(Direction(rate=1_000, queue_bytes=3_000))
    packets = numbered(5)
    for packet in packets:
        channel.take(packet, now=0.0)
    assert [packet for _, packet in drain(channel)] == packets[:3]
    assert channel.counts.dropped == 2


def test_what_is_delayed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound of what is under way, packets are dropped and counted."""
    monkeypatch.setattr(channel_module, "MAX_UNDER_WAY_BYTES", 2_500)
    channel = make(Direction(delay=1.0))
    for packet in numbered(4):
        channel.take(packet, now=0.0)
    assert (channel.under_way, channel.counts.overflowed) == (2, 2)


@pytest.mark.parametrize("loss", [0.01, 0.2, 0.9])
def test_so_many_packets_are_lost(loss: float) -> None:
    """The channel loses the share that was asked for, of 20,000 packets."""
    channel = make(Direction(loss=loss))
    for _ in range(20_000):
        channel.take(PACKET, now=0.0)
        channel.due(0.0)
    deviation = math.sqrt(loss * (1 - loss) / 20_000)
    assert channel.counts.lost / 20_000 == pytest.approx(loss, abs=5 * deviation)


def test_bursts_lose_in_runs() -> None:
    """Bursts of 10 packets on average that begin every 100: lost share and length of runs."""
    channel = make(Direction(loss=Bursts(begin=0.01, end=0.1)))
    runs, run = [], 0
    for _ in range(100_000):
        channel.take(PACKET, now=0.0)
        if channel.due(0.0):
            runs += [run] if run else []
            run = 0
        else:
            run += 1
    assert channel.counts.lost / 100_000 == pytest.approx(0.01 / 0.11, rel=0.15)
    assert sum(runs) / len(runs) == pytest.approx(10, rel=0.15)


def test_bursts_may_lose_some_inside_and_some_outside() -> None:
    """The long-run share is that of both states, each for its part of the time."""
    channel = make(Direction(loss=Bursts(begin=0.05, end=0.05, inside=0.5, outside=0.1)))
    for _ in range(100_000):
        channel.take(PACKET, now=0.0)
        channel.due(0.0)
    assert channel.counts.lost / 100_000 == pytest.approx(0.3, rel=0.1)


def test_jitter_spreads_the_delay_evenly_and_keeps_the_order() -> None:
    """Packets far apart arrive within the jitter, on average after the delay; close ones stay."""
    channel = make(Direction(delay=0.1, jitter=0.05))
    delays = []
    for second in range(2_000):
        channel.take(PACKET, now=float(second))
        delays += [at - second for at, _ in drain(channel)]
    assert 0.05 <= min(delays) < 0.055
    assert 0.145 < max(delays) <= 0.15
    assert sum(delays) / len(delays) == pytest.approx(0.1, rel=0.02)

    packets = numbered(200)
    for number, packet in enumerate(packets):
        channel.take(packet, now=5_000 + number / 1_000)
    assert [packet for _, packet in drain(channel)] == packets


def test_some_packets_overtake() -> None:
    """The share that was asked for is not delayed, and arrives before those ahead of it."""
    channel = make(Direction(delay=0.1, reorder=0.25))
    packets = numbered(4_000)
    for number, packet in enumerate(packets):
        channel.take(packet, now=number * 1e-6)
    arrived = [packet for _, packet in drain(channel)]
    assert sorted(arrived) == packets
    assert arrived != packets
    early = arrived[: channel.counts.overtaking]
    assert early == sorted(early)
    assert channel.counts.overtaking / 4_000 == pytest.approx(0.25, rel=0.15)


def test_some_packets_arrive_twice() -> None:
    """Duplicates come beside their originals, as many as were asked for."""
    channel = make(Direction(duplicate=0.1))
    for packet in (packets := numbered(5_000)):
        channel.take(packet, now=0.0)
    arrived = [packet for _, packet in drain(channel)]
    assert sorted(set(arrived)) == packets
    assert len(arrived) - 5_000 == channel.counts.duplicated
    assert channel.counts.duplicated / 5_000 == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    ("rate", "free_at"),
    [(2_000.0, 10.25), (500.0, 11.0), (None, 10.0)],
    ids=["faster", "slower", "any"],
)
def test_the_rest_of_a_packet_goes_at_the_new_rate(rate: float | None, free_at: float) -> None:
    """A change in the middle of a packet counts for the bytes that have not left."""
    channel = make(Direction(rate=1_000))
    channel.take(PACKET, now=9.5)
    channel.change(Direction(delay=1.0, rate=rate), now=10.0)
    assert [at for at, _ in drain(channel)] == [pytest.approx(free_at + 1.0)]


def test_what_is_under_way_keeps_its_time_and_its_place() -> None:
    """After a change to a shorter delay, later packets do not pass those of the longer one."""
    channel = make(Direction(delay=1.0))
    first, second = numbered(2)
    channel.take(first, now=0.0)
    channel.change(Direction(), now=0.1)
    assert not channel.is_open
    channel.take(second, now=0.1)
    assert drain(channel) == [(1.0, first), (1.0, second)]
    assert channel.is_open


def test_the_same_seed_has_the_same_chance() -> None:
    """Two channels of one seed lose the same packets, one of another seed loses others."""

    def survivors(seed: int) -> list[bytes]:
        channel = make(Direction(loss=0.3), seed)
        for packet in numbered(200):
            channel.take(packet, now=0.0)
        return channel.due(0.0)

    assert survivors(1) == survivors(1) != survivors(2)


@given(
    st.builds(
        Direction,
        delay=st.sampled_from([0.01, 0.5]),
        rate=st.sampled_from([None, 1e4, 1e6]),
        jitter=st.sampled_from([0.0, 0.01]),
        loss=st.sampled_from([0.0, 0.3, Bursts(0.1, 0.5)]),
        reorder=st.sampled_from([0.0, 0.2]),
        duplicate=st.sampled_from([0.0, 0.2]),
    ),
    st.lists(
        st.tuples(st.floats(0, 0.2), st.sampled_from(["take", "due", "open", "back"])), max_size=60
    ),
)
def test_every_packet_is_accounted_for(
    direction: Direction, steps: list[tuple[float, str]]
) -> None:
    """Packets taken + duplicated = delivered + lost + dropped + under way, after every step."""
    channel = make(direction)
    now = 0.0
    for pause, step in steps:
        now += pause
        match step:
            case "take":
                channel.take(PACKET, now)
            case "due":
                channel.due(now)
            case "open":
                channel.change(Direction(), now)
            case "back":
                channel.change(direction, now)
        counts = dataclasses.asdict(channel.counts)
        there = counts["delivered"] + counts["lost"] + counts["dropped"] + channel.under_way
        assert counts["taken"] + counts["duplicated"] == there
    drain(channel)
    assert channel.under_way == 0


def test_a_link_is_read_as_strictly_as_any_file() -> None:
    """The setting is written twice, as one of both loads pydantic."""
    assert STRICT == key_types.STRICT


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("delay", {"delay": -0.1}),
        ("delay", {"delay": float("inf")}),
        ("rate", {"rate": 0.0}),
        ("rate", {"rate": -5.0}),
        ("jitter", {"delay": 0.1, "jitter": 0.2}),
        ("jitter", {"delay": 0.1, "jitter": -0.1}),
        ("loss", {"loss": 1.1}),
        ("queue_bytes", {"queue_bytes": 100}),
        ("queue_bytes", {"rate": 100.0, "queue_bytes": 0}),
        ("reorder", {"reorder": 0.1}),
        ("reorder", {"delay": 0.1, "reorder": -0.1}),
        ("duplicate", {"duplicate": 2.0}),
    ],
)
def test_a_direction_that_cannot_be_is_refused(key: str, values: dict[str, Any]) -> None:
    """No time is negative, no share above all, and a link that carries nothing is no link."""
    with pytest.raises(ValueError, match=rf"{key}: read .*; allowed: "):
        Direction(**values)


@pytest.mark.parametrize(
    ("key", "values"), [("begin", (-0.1, 0.5)), ("end", (0.1, 0.0)), ("inside", (0.1, 0.5, 2.0))]
)
def test_bursts_that_cannot_be_are_refused(key: str, values: tuple[float, ...]) -> None:
    """Probabilities are such, and a burst ends some time."""
    with pytest.raises(ValueError, match=rf"{key}: read .*; allowed: "):
        Bursts(*values)


def test_the_queue_before_a_rate_has_a_bound_of_its_own_or_of_time() -> None:
    """0.2 s at the rate, at least ten packets, or what was asked for."""
    assert Direction(rate=1e6).max_queue_bytes == 200_000
    assert Direction(rate=1e3).max_queue_bytes == 15_000
    assert Direction(rate=1e6, queue_bytes=5_000).max_queue_bytes == 5_000
    assert Direction().max_queue_bytes == float("inf")


def test_what_needs_packets_is_told_from_delay_and_rate() -> None:
    """The relay can do without; a queue's bound, loss and the like it cannot do."""
    assert not GOOD.upstream.acts_on_packets
    assert LOSSY.upstream.acts_on_packets
    assert Direction(rate=1e6, queue_bytes=5_000).acts_on_packets


def test_profiles_are_found_by_their_own_name() -> None:
    """The table's keys are the names that profiles say of themselves."""
    assert {name: profile.name for name, profile in PROFILES.items()} == {
        name: name for name in PROFILES
    }


def test_a_profile_says_what_it_is_in_units() -> None:
    """What is printed of a link gives its round trip and its rate."""
    assert str(BAD) == "bad: 2,000 ms round trip, 125 kB/s"
    assert str(OPEN) == "open: 0 ms round trip, any rate"
    assert str(LOSSY) == "lossy: 200 ms round trip, 2,500 kB/s, 20 % lost"


def test_bursts_have_a_mean() -> None:
    """A tenth of the time in bursts that lose half, else a hundredth: 5.9 % in all."""
    bursts = Bursts(begin=0.1, end=0.9, inside=0.5, outside=0.01)
    assert bursts.mean_loss == pytest.approx(0.1 * 0.5 + 0.9 * 0.01)
    assert Direction(loss=bursts).mean_loss == bursts.mean_loss
