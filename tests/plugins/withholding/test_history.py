from __future__ import annotations

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.link import TcpLook
from plugins.withholding.history import MAX_LENGTHS, PRIOR_LENGTHS, CongestionHistory
from plugins.withholding.tcp_rate import seconds_per_byte

THRESHOLD_L = 0.5
CALM, BAD = 0.2, 4.0


def fed(*rtts: float, lag: float = 0.0) -> CongestionHistory:
    """Return a history of one sample a second, from second 0 on."""
    history = CongestionHistory()
    for second, rtt in enumerate(rtts):
        history.observe(rtt, second, second + lag, THRESHOLD_L)
    return history


def own_lengths(history: CongestionHistory) -> list[float]:
    """Return the lengths beside those that are supposed of everybody."""
    lengths = list(history.lengths)
    for prior in PRIOR_LENGTHS:
        lengths.remove(prior)
    return lengths


def test_begins_with_what_is_supposed_of_everybody() -> None:
    """Each prior length is twice the one before: it lasts as long again as it has so far."""
    history = CongestionHistory()
    assert list(history.lengths) == [1, 2, 4, 8, 16, 32]
    assert history.began_at is None
    assert history.after_calm is None


def test_length_is_from_the_first_congested_sample_to_the_first_calm_one() -> None:
    """Three seconds above threshold_l are a length of 3 s."""
    history = fed(CALM, BAD, BAD, BAD, CALM)
    assert own_lengths(history) == [3.0]
    assert history.began_at is None


def test_congestion_that_lasts_has_begun_and_a_level() -> None:
    """The level is the mean of its samples."""
    history = fed(CALM, CALM, 4.0, 4.4, 3.6)
    assert history.began_at == 2.0
    assert history.level == pytest.approx(4.0)
    assert own_lengths(history) == []


def test_another_level_is_another_congestion() -> None:
    """A sample four mean deviations off ends one congestion and begins the next."""
    first = [4.0, 4.1, 3.9] * 5
    history = fed(CALM, *first, 9.0, 9.1)
    assert own_lengths(history) == [15.0]
    assert history.began_at == 16.0
    assert history.level == pytest.approx(9.05)


def test_small_step_of_a_steady_level_is_no_news() -> None:
    """After a long time at exactly 4 s, 4.4 s is the same congestion and 4.6 s another."""
    steady = [4.0] * 200
    assert fed(CALM, *steady, 4.4).began_at == 1.0
    assert fed(CALM, *steady, 4.6).began_at == 201.0


def test_samples_that_scatter_are_one_congestion() -> None:
    """Where each sample has its own amount, none of them is news."""
    history = fed(CALM, *[2.0, 6.0, 3.0, 8.0, 1.0, 5.0] * 10)
    assert history.began_at == 1.0
    assert not history.is_off_level(9.0)


def test_after_calm_is_the_mean_of_what_followed_a_calm_sample() -> None:
    """Of three after calm, and eight supposed; what follows congestion does not count."""
    history = fed(0.2, 0.4, 4.2, 4.2, 0.2, 0.2)
    assert history.after_calm == pytest.approx((8 * 0.2 + 0.4 + 4.2 + 0.2) / 11)


def test_lag_is_that_of_calm_samples() -> None:
    """How late the end of congestion is seen is what a calm answer takes, not a congested one."""
    history = CongestionHistory()
    history.observe(CALM, 0.0, 0.2, THRESHOLD_L)
    history.observe(BAD, 1.0, 5.0, THRESHOLD_L)
    assert history.lag_seconds == 0.2
    assert (history.sampled_at, history.known_at) == (1.0, 5.0)


def test_answers_that_overtake_each_other_never_run_backwards() -> None:
    """An answer that comes later is the news, though its packet was sent before."""
    history = CongestionHistory()
    history.observe(CALM, 3.0, 3.2, THRESHOLD_L)
    history.observe(BAD, 1.0, 5.0, THRESHOLD_L)
    assert history.began_at == 3.0


def test_lone_sample_off_the_level_ends_nothing() -> None:
    """A packet that was lost and sent again; all else is one congestion of 9 s."""
    history = fed(CALM, *[4.0, 4.1, 3.9] * 2, 9.0, 4.0, 4.1)
    assert own_lengths(history) == []
    assert history.began_at == 1.0
    assert history.level == pytest.approx(4.0, rel=0.01)
    history.observe(CALM, 10.0, 10.0, THRESHOLD_L)
    assert own_lengths(history) == [9.0]


def test_lone_sample_counts_until_the_next_one() -> None:
    """It may be another congestion: how bad it is, and that it has just begun, is all there is."""
    history = fed(CALM, *[4.0, 4.1, 3.9] * 2, 9.0)
    assert (history.began_at, history.level) == (7.0, 9.0)
    assert own_lengths(history) == []


def test_calm_ends_what_a_lone_sample_may_have_ended() -> None:
    """Six seconds of one level and one of another."""
    history = fed(CALM, *[4.0, 4.1, 3.9] * 2, 9.0, CALM)
    assert own_lengths(history) == [1.0, 6.0]


def test_two_lone_samples_in_a_row_end_nothing_either() -> None:
    """Each of another level, and then that of before."""
    history = fed(CALM, *[4.0, 4.1, 3.9] * 2, 9.0, 30.0, 4.0)
    assert (history.began_at, own_lengths(history)) == (1.0, [])


def test_what_was_not_seen_to_end_has_no_length() -> None:
    """After a time without samples nothing is remembered of the congestion that was on."""
    history = fed(CALM, BAD, BAD)
    history.lose_sight()
    history.observe(CALM, 60.0, 60.0, THRESHOLD_L)
    assert own_lengths(history) == []
    assert history.after_calm == pytest.approx((8 * CALM + BAD) / 9)


def test_oldest_lengths_make_way() -> None:
    """A subscriber whose network has changed is judged by what it is now."""
    history = fed(CALM)
    second = 1.0
    for length in [3.0] * MAX_LENGTHS + [7.0] * MAX_LENGTHS:
        history.observe(BAD, second, second, THRESHOLD_L)
        second += length
        history.observe(CALM, second, second, THRESHOLD_L)
        second += 1
    assert list(history.lengths) == [7.0] * MAX_LENGTHS


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 100)), max_size=300))
def test_takes_whatever_comes_in_constant_memory(samples: list[tuple[float, float]]) -> None:
    """Lengths stay ascending, above 0 and few; a thousand subscribers take a megabyte."""
    history = CongestionHistory()
    now = 0.0
    for rtt, gap in samples:
        now += gap
        history.observe(rtt, now - rtt, now, THRESHOLD_L)
        lengths = list(history.lengths)
        assert lengths == sorted(lengths)
        assert lengths[0] >= 0
        assert len(lengths) <= MAX_LENGTHS
    held = [getattr(history, name) for name in CongestionHistory.__slots__]
    assert sys.getsizeof(history) + sum(map(sys.getsizeof, held)) <= 1000
    assert sum(isinstance(value, array) for value in held) == 2


def look(
    at: float, rate: int = 500, *, is_full: bool = False, lost: float | None = None
) -> TcpLook:
    """Return what a kernel with an RTT of 0.2 s said."""
    told = TcpLook(at)
    told.rtt, told.rttvar = 0.2, 0.05
    told.delivery_rate, told.is_app_limited, told.retransmit_ratio = rate, not is_full, lost
    return told


SUPPOSED = seconds_per_byte(BAD, 0.05, 0.03)
FIFTH_LOST = seconds_per_byte(0.2, 0.05, 0.2)


def test_bytes_are_as_slow_as_in_congestion_so_far() -> None:
    """Looks of calm do not count, and congestion begins with what the one before ended with."""
    history = fed(CALM)
    history.observe_look(look(0.5, lost=0.2))
    assert history.slowness(0.5, 1.0) == 0.0
    for second in range(1, 41):
        history.observe(BAD, second, second, THRESHOLD_L)
        history.observe_look(look(second, lost=0.2))
    assert history.slowness(40.0, 1.0) == pytest.approx(FIFTH_LOST, rel=0.01)
    for second in range(41, 60):
        history.observe(CALM, second, second, THRESHOLD_L)
        history.observe_look(look(second, lost=0.0))
    assert history.slowness(60.0, 1.0) == pytest.approx(FIFTH_LOST, rel=0.01)


def test_congestion_without_loss_soon_weighs_less() -> None:
    """Where nothing is lost in six looks more, it is less than half."""
    history = fed(CALM, BAD)
    history.observe_look(look(1.0, lost=0.2))
    once = history.seconds_per_byte
    for second in range(5, 11):
        history.observe_look(look(second))
    assert 0 < history.seconds_per_byte < once / 2


def test_looks_at_the_begin_of_a_congestion_cannot_have_seen_a_loss() -> None:
    """Three seconds without one tell nothing: what was known of earlier ones stays."""
    history = fed(CALM, BAD)
    history.observe_look(look(1.0, lost=0.2))
    once = history.seconds_per_byte
    for second in (2.0, 3.0, 4.0):
        history.observe_look(look(second))
    assert history.seconds_per_byte == once
    history.observe_look(look(5.0))
    assert history.seconds_per_byte < once


def test_first_congestion_is_supposed_to_lose_a_little() -> None:
    """Three packets in a hundred, as one look would say it; those that follow outweigh it."""
    history = fed(CALM, BAD)
    history.observe_look(look(1.0))
    assert history.seconds_per_byte == SUPPOSED
    for second in range(5, 12):
        history.observe_look(look(second))
    assert history.seconds_per_byte == pytest.approx(SUPPOSED / 8)


def test_a_look_counts_once() -> None:
    """Acknowledgements between two looks tell nothing new of the kernel."""
    history = fed(CALM, BAD)
    history.observe_look(look(1.0, lost=0.2))
    once = history.seconds_per_byte
    history.observe_look(look(1.0, lost=0.2))
    assert history.seconds_per_byte == once == pytest.approx((SUPPOSED + FIFTH_LOST) / 2)


def test_rate_of_what_is_being_sent_counts_before_losses() -> None:
    """For a period after the look that found it new; the kernel repeats it for ever."""
    history = fed(CALM, BAD)
    history.observe_look(look(1.0, lost=0.2))
    history.observe_look(look(2.0, 125_000, is_full=True))
    assert history.slowness(3.0, 1.0) == 1 / 125_000
    history.observe_look(look(3.5, 125_000, is_full=True, lost=0.2))
    assert history.slowness(3.5, 1.0) == history.seconds_per_byte > 1 / 125_000


def test_slow_rates_are_remembered_and_fast_ones_are_no_congestion() -> None:
    """A large message is slow in congestion; one that is as fast as ever fills its own queue."""
    history = fed(CALM)
    history.observe_look(look(0.5, 2_500_000, is_full=True))
    for second in range(1, 41):
        history.observe(BAD, second, second, THRESHOLD_L)
        history.observe_look(look(second, 10_000 + second, is_full=True))
    assert history.seconds_per_byte == pytest.approx(1 / 10_000, rel=0.02)
    for second in range(41, 81):
        history.observe(BAD, second, second, THRESHOLD_L)
        history.observe_look(look(second, 2_000_000 + second, is_full=True))
    assert history.seconds_per_byte == pytest.approx(1 / 10_000, rel=0.02)


def test_best_rate_is_that_of_a_full_pipe_and_forgotten_slowly() -> None:
    """Small messages say nothing of it; a lower one counts little, a higher one at once."""
    history = fed(CALM)
    history.observe_look(look(1.0, 500))
    assert history.best_rate is None
    history.observe_look(look(2.0, 100_000, is_full=True))
    assert history.best_rate == 100_000
    history.observe_look(look(4.0, 2_500_000, is_full=True))
    assert history.best_rate == 2_500_000
    history.observe_look(look(5.0, 100_000, is_full=True))
    assert history.best_rate == pytest.approx(2_490_625)
