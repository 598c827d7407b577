from __future__ import annotations

import math
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.config import DEFAULT_PROFILE
from penstock.plugins.withholding.learned_profile import (
    ENOUGH_SAMPLES,
    GIVE_UP_SECONDS,
    LARGE_BYTES,
    MAX_RATIO,
    MAX_SAMPLES,
    SMALL_BYTES,
    AckTimes,
    SizeFit,
    weighted_quantile,
)
from penstock.plugins.withholding.profile import LatencyProfile

TABLE = LatencyProfile(DEFAULT_PROFILE)


class SyntheticLink:
    """A path of a fixed part and a rate, with noise, some of whose times are far off."""

    def __init__(self, fixed: float, rate: float, *, noise: float = 0.0, seed: int = 1) -> None:
        self.fixed = fixed
        self.rate = rate
        self._noise = noise
        self._rng = Random(seed)  # noqa: S311 (a simulation has no secrets)

    def seconds(self, payload_bytes: int) -> float:
        """Return the time of one message; one in five is caught by congestion."""
        calm = self.fixed + payload_bytes / self.rate
        if self._noise and self._rng.random() < 0.2:
            return calm * self._rng.uniform(2, 20)
        return calm * (1 + self._rng.uniform(0, self._noise))

    def ratio(self, payload_bytes: int) -> float:
        """Return the true latency of a size over that of the smallest."""
        return 1 + payload_bytes / self.rate / self.fixed


def fed(link: SyntheticLink, sizes: list[int], rounds: int) -> SizeFit:
    """Return what was learned of a link from rounds of a small message and one of each size."""
    fit = SizeFit()
    for _ in range(rounds):
        fit.add(100, link.seconds(100))
        for size in sizes:
            fit.add(size, link.seconds(size))
    return fit


def test_link_without_noise_is_learned_exactly() -> None:
    """100 ms and 1 MB/s, by hand: 1 MB takes 1.1 s, eleven times a small message."""
    fit = fed(SyntheticLink(0.1, 1e6), [1_000_000], ENOUGH_SAMPLES)
    assert fit.fixed == pytest.approx(0.1001, rel=1e-3)
    assert fit.per_byte == pytest.approx(1e-6, rel=1e-3)
    assert fit.relative(1_000_000) == pytest.approx(11.0, rel=1e-2)
    assert fit.relative(0) == 1.0


def test_nothing_is_said_before_there_is_enough_of_both() -> None:
    """The table of the policy file holds so long: a guess could be worse."""
    fit = SizeFit()
    for _ in range(MAX_SAMPLES):
        fit.add(1_000_000, 1.1)
    assert fit.relative(1_000_000) is None
    for _ in range(ENOUGH_SAMPLES - 1):
        fit.add(SMALL_BYTES, 0.1)
    assert fit.relative(1_000_000) is None
    fit.add(SMALL_BYTES, 0.1)
    assert fit.relative(1_000_000) == pytest.approx(11.0)


def test_size_between_small_and_large_says_nothing() -> None:
    """It has something of both parts."""
    fit = SizeFit()
    for _ in range(ENOUGH_SAMPLES):
        fit.add(SMALL_BYTES + 1, 0.1)
        fit.add(LARGE_BYTES, 9.0)
        fit.add(100, 0.1)
        fit.add(LARGE_BYTES + 1, 0.2)
    assert fit.fixed == pytest.approx(0.1)
    assert fit.per_byte == pytest.approx(1e-5, rel=1e-3)


def test_nothing_is_said_of_sizes_far_beyond_the_samples() -> None:
    """What varies by 20 ms in a message of 20 KB would be a second in one of 1 MB."""
    fit = fed(SyntheticLink(0.1, 1e6), [20_000, 30_000], ENOUGH_SAMPLES)
    assert fit.relative(300_000) == pytest.approx(4.0, rel=0.01)
    assert fit.relative(300_001) is None


def test_three_of_five_that_congestion_caught_change_nothing() -> None:
    """Most of the samples may be anything above what they should be."""
    fit = SizeFit()
    for n in range(ENOUGH_SAMPLES):
        is_caught = n in {0, 1, 3}
        fit.add(100, 7.0 if is_caught else 0.1)
        fit.add(1_000_000, 60.0 if is_caught else 1.1)
    assert fit.relative(1_000_000) == pytest.approx(11.0)


@pytest.mark.parametrize(("rate", "ratio", "n_messages"), [(2e5, 51.0, 12), (1e7, 2.0, 4)])
def test_client_on_another_network_is_followed(rate: float, ratio: float, n_messages: int) -> None:
    """To a slower one when most samples are of it, to a faster one when a quarter is."""
    fit = fed(SyntheticLink(0.1, 1e6), [1_000_000], MAX_SAMPLES)
    new = SyntheticLink(0.1, rate)
    for _ in range(n_messages - 1):
        fit.add(1_000_000, new.seconds(1_000_000))
    assert fit.relative(1_000_000) == pytest.approx(11.0, rel=0.01)
    fit.add(1_000_000, new.seconds(1_000_000))
    assert fit.relative(1_000_000) == pytest.approx(ratio, rel=0.01)


def test_local_network_has_a_floor() -> None:
    """1 ms and 1 MB/s: held against 50 ms, where an RTT begins to say something, 21, not 1001."""
    fit = fed(SyntheticLink(0.001, 1e6), [1_000_000], ENOUGH_SAMPLES)
    assert fit.relative(1_000_000, 0.05) == pytest.approx(21.0, rel=0.01)
    assert fit.relative(1_000_000) == MAX_RATIO


def test_size_that_takes_no_longer_counts_as_one() -> None:
    """Large messages that come faster than small ones are no reason to expect them early."""
    fit = fed(SyntheticLink(0.1, 1e12), [50_000], ENOUGH_SAMPLES)
    for _ in range(MAX_SAMPLES):
        fit.add(50_000, 0.05)
    assert fit.relative(500_000) == 1.0


links = st.builds(
    SyntheticLink,
    fixed=st.floats(0.05, 1.0),
    rate=st.floats(2e4, 1e7),
    noise=st.just(0.2),
    seed=st.integers(0, 10**6),
)
large_sizes = st.lists(st.integers(20_000, 5_000_000), min_size=1, max_size=3)


@given(links, large_sizes, st.integers(ENOUGH_SAMPLES, 100))
def test_no_times_make_it_fall_with_size_or_leave_its_bounds(
    link: SyntheticLink, sizes: list[int], rounds: int
) -> None:
    """Whatever was learned, it is a profile: from 1 on, never falling."""
    fit = fed(link, sizes, rounds)
    ratios = [fit.relative(size) for size in (0, 1_000, 20_000, 100_000, 5 * max(sizes))]
    known = [ratio for ratio in ratios if ratio is not None]
    assert len(known) == len(ratios)
    assert known[:4] == sorted(known[:4])
    assert known[-1] >= known[2]
    assert known[0] == 1.0
    assert known[-1] <= MAX_RATIO


def test_once_learned_it_is_nearer_to_the_truth_than_the_table() -> None:
    """By the factor by which the latency of 1 MB is missed; less than a tenth is none.

    500 links, each with noise and one message in five caught by congestion.
    """
    rng = Random(5)  # noqa: S311 (a simulation has no secrets)
    n_links, n_better, worst, total, total_by_table = 500, 0, 1.0, 0.0, 0.0
    for seed in range(n_links):
        fixed, rate = rng.uniform(0.05, 1.0), 10 ** rng.uniform(4.5, 7.0)
        link = SyntheticLink(fixed, rate, noise=0.2, seed=seed)
        fit = fed(link, [200_000, 1_000_000], MAX_SAMPLES)
        truth = min(MAX_RATIO, link.ratio(1_000_000))
        learned = fit.relative(1_000_000)
        assert learned is not None
        missed = max(learned / truth, truth / learned)
        by_table = TABLE.relative(1_000_000)
        missed_by_table = max(by_table / truth, truth / by_table)
        n_better += missed <= max(missed_by_table, 1.1)
        worst = max(worst, missed)
        total += missed - 1
        total_by_table += missed_by_table - 1
    assert total < 0.05 * total_by_table
    assert n_better >= 0.99 * n_links
    assert worst < 2.0


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=1))
def test_weighted_quantile_is_that_of_each_value_as_often_as_its_weight(
    weighted: list[tuple[int, int]],
) -> None:
    """The least with a quarter of all at it or below it."""
    spelt_out = sorted(value for value, weight in weighted for _ in range(weight))
    assert weighted_quantile(weighted) == spelt_out[math.ceil(len(spelt_out) / 4) - 1]


@given(st.lists(st.tuples(st.integers(0, 10**8), st.floats(0, 1e6)), max_size=200))
def test_memory_is_constant(samples: list[tuple[int, float]]) -> None:
    """A thousand subscribers take half a megabyte, whatever they acknowledge."""
    fit = SizeFit()
    for size, seconds in samples:
        fit.add(size, seconds)
    held = [getattr(fit, name) for name in SizeFit.__slots__]
    assert sys.getsizeof(fit) + sum(map(sys.getsizeof, held)) <= 800


# -- what is timed ------------------------------------------------------------------------------


def send(times: AckTimes, packet_id: int, payload_bytes: int, now: float) -> bool:
    """Let a message leave on a calm path; return whether it is timed."""
    is_timed = times.wants(payload_bytes, now)
    times.sent(packet_id, payload_bytes, now, is_timed=is_timed)
    return is_timed


def samples(times: AckTimes) -> tuple[list[float], list[float]]:
    """Return the times of small and of large messages."""
    return [round(s, 3) for s in times.fit._small], [round(s, 3) for s in times.fit._large]


def test_small_messages_are_timed_one_at_a_time_and_not_too_often() -> None:
    """Those between say nothing that the timed ones do not."""
    times = AckTimes()
    assert send(times, 1, 100, 0.0)
    assert not send(times, 2, 100, 0.05)
    times.acknowledged(2, 0.2)
    times.acknowledged(1, 0.25)
    assert not send(times, 3, 100, 0.3)
    assert send(times, 4, 100, 0.36)
    times.acknowledged(4, 0.56)
    assert samples(times) == ([0.25, 0.2], [])


def test_nothing_is_timed_behind_a_large_message() -> None:
    """Its own time would be that of the one before, too."""
    times = AckTimes()
    assert send(times, 1, 1_000_000, 0.0)
    assert not send(times, 2, 1_000_000, 0.5)
    assert not send(times, 3, 100, 0.6)
    times.acknowledged(1, 1.0)
    assert not send(times, 4, 100, 1.1)
    assert not send(times, 5, 1_000_000, 1.2)
    times.acknowledged(2, 2.0)
    assert not send(times, 6, 100, 2.1)
    times.acknowledged(5, 3.0)
    assert send(times, 7, 100, 3.1)
    assert send(times, 8, 1_000_000, 3.2)
    assert samples(times) == ([], [1.0])


def test_message_that_leaves_in_congestion_is_not_timed_and_others_wait_for_it() -> None:
    """It is on its way all the same."""
    times = AckTimes()
    times.sent(1, 1_000_000, 0.0, is_timed=False)
    assert not times.wants(1_000_000, 1.0)
    times.acknowledged(1, 9.0)
    assert samples(times) == ([], [])
    assert times.wants(1_000_000, 9.0)


def test_message_without_answer_makes_way_in_the_end() -> None:
    """A client that never acknowledges one of them is not given up for that."""
    times = AckTimes()
    send(times, 1, 100, 0.0)
    send(times, 2, 1_000_000, 0.0)
    assert not times.wants(100, GIVE_UP_SECONDS)
    assert not times.wants(1_000_000, GIVE_UP_SECONDS)
    assert times.wants(100, GIVE_UP_SECONDS + 1)
    assert times.wants(1_000_000, GIVE_UP_SECONDS + 1)


def test_lost_connection_voids_what_was_on_its_way() -> None:
    """An acknowledgement on the next one is of another transmission."""
    times = AckTimes()
    send(times, 1, 100, 0.0)
    send(times, 2, 1_000_000, 0.0)
    times.void()
    times.acknowledged(1, 5.0)
    times.acknowledged(2, 5.0)
    assert samples(times) == ([], [])
    assert send(times, 3, 1_000_000, 6.0)


def test_run_of_acknowledgements_holds_what_was_timed() -> None:
    """Both may be among them, or neither."""
    times = AckTimes()
    send(times, 5, 100, 0.0)
    send(times, 6, 1_000_000, 0.0)
    times.acknowledged_run(1, 4, 0.5)
    times.acknowledged_run(7, 9, 0.5)
    assert samples(times) == ([], [])
    times.acknowledged_run(4, 3, 1.0)
    assert samples(times) == ([1.0], [1.0])
    times.acknowledged_run(1, 9, 2.0)
    assert samples(times) == ([1.0], [1.0])
