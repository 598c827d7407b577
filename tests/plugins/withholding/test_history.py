from __future__ import annotations

import math
import random
import statistics
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.link import TcpLook
from penstock.plugins.withholding import history as history_module
from penstock.plugins.withholding.history import MAX_LENGTHS, PRIOR_LENGTHS, CongestionHistory
from penstock.plugins.withholding.tcp_rate import seconds_per_byte

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


def test_persistence_tells_slow_changes_from_fresh_samples() -> None:
    """Distances that last for eight samples persist; those that change sign each time do not."""
    slow = fed(CALM, *([4.0] * 8 + [6.0] * 8) * 8)
    fresh = fed(CALM, *[4.0, 6.0] * 64)
    assert CongestionHistory().persistence() == 0.0
    assert slow.persistence() > 0.5
    assert fresh.persistence() == 0.0
    assert (slow.latest, fresh.latest) == (6.0, 6.0)


def test_persistence_is_that_of_a_second_however_often_samples_come() -> None:
    """Half of a distance is left a second later, whether samples come each second or more often."""
    for spacing in (1.0, 0.5, 0.25):
        rng, history, off = random.Random(1), CongestionHistory(), 0.0  # noqa: S311 (no secrets)
        kept = 0.5**spacing
        found = []
        for number in range(4000):
            off = kept * off + math.sqrt(1 - kept * kept) * rng.gauss(0, 1)
            history.observe(20.0 + off, number * spacing, number * spacing, THRESHOLD_L)
            found.append(history.persistence())
        assert statistics.mean(found) == pytest.approx(0.5, abs=0.12)


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


@pytest.mark.parametrize("prior", [(1.0, 2.0, 4.0), tuple(float(n) for n in range(1, 11))])
def test_any_number_of_prior_lengths_is_forgotten_in_time(
    prior: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sensitivity rows of the model vary it."""
    monkeypatch.setattr(history_module, "PRIOR_LENGTHS", prior)
    history = CongestionHistory()
    for n in range(MAX_LENGTHS):
        begin = 100.0 * n
        history.observe(2.0, begin, begin, 0.5)
        history.observe(0.1, begin + 7.0, begin + 7.0, 0.5)
    assert list(history.lengths) == [7.0] * MAX_LENGTHS


@given(st.lists(st.integers(1, 20), max_size=3 * MAX_LENGTHS))
def test_newest_lengths_are_kept_in_ascending_order(added: list[int]) -> None:
    """Whatever their order was; of what is supposed of everybody, the longest goes first."""
    history = fed(CALM)
    second = 1.0
    for length in added:
        history.observe(BAD, second, second, THRESHOLD_L)
        second += length
        history.observe(CALM, second, second, THRESHOLD_L)
        second += 1
    came = [*reversed(PRIOR_LENGTHS), *added]
    assert list(history.lengths) == sorted(came[-MAX_LENGTHS:])


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 100)), max_size=300))
def test_takes_whatever_comes_in_constant_memory(samples: list[tuple[float, float]]) -> None:
    """Lengths stay ascending, above 0 and few; a thousand subscribers take 1.5 MB."""
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
    assert sys.getsizeof(history) + sum(map(sys.getsizeof, held)) <= 1536
    assert sum(isinstance(value, array | bytes) for value in held) == 2


class Kernel:
    """A kernel that counts segments."""

    def __init__(self, rtt: float = 0.2) -> None:
        self.segments = self.lost = 0
        self._rtt = rtt

    def look(self, at: float, *, sent: int = 0, lost: int = 0, rate: int | None = None) -> TcpLook:
        """Return what it says, after so much was sent and lost; rate is that of a full pipe."""
        self.segments += sent
        self.lost += lost
        told = TcpLook(at, congestion_control="cubic")
        told.rtt, told.rttvar = self._rtt, self._rtt / 4
        told.segments, told.retransmissions = self.segments, self.lost
        told.delivery_rate, told.is_app_limited = rate or 500, rate is None
        return told


def lossy(loss_ratio: float) -> float:
    """Return the seconds for a byte by the throughput equation, at that kernel's RTT."""
    return seconds_per_byte(0.2, 0.05, loss_ratio)


def congested(seconds: range, kernel: Kernel, history: CongestionHistory, **sent: int) -> None:
    """Let there be congestion, a look each second, and so much sent and lost in each."""
    for second in seconds:
        history.observe(BAD, second, second, THRESHOLD_L)
        history.observe_look(kernel.look(second, **sent))


def test_first_congestion_is_supposed_to_lose_a_little() -> None:
    """Three of a hundred at the level of the RTT; what is sent and not lost speaks against it."""
    history, kernel = fed(CALM), Kernel()
    assert history.assumed_slowness(BAD) == seconds_per_byte(BAD, 0.0, 0.03)
    congested(range(1, 2), kernel, history, sent=100)
    assert history.assumed_slowness(BAD) == seconds_per_byte(BAD, 0.05, 0.03)
    congested(range(2, 3), kernel, history, sent=10)
    assert history.assumed_slowness(BAD) == pytest.approx(lossy(0.3 / 20))


def test_losses_are_counted_among_what_was_sent_in_congestion() -> None:
    """A megabyte sent in calm is not counted; the next congestion begins with the last one's."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 41), kernel, history, sent=5, lost=1)
    assert history.assumed_slowness(BAD) == pytest.approx(lossy(0.2), rel=0.05)
    before = history.assumed_slowness(BAD)
    for second in range(41, 61):
        history.observe(CALM, second, second, THRESHOLD_L)
        history.observe_look(kernel.look(second, sent=700))
    congested(range(61, 62), kernel, history, sent=700)
    assert history.assumed_slowness(BAD) == before


def test_losses_are_those_of_the_last_eighty_segments() -> None:
    """A path that no longer loses anything is as fast as any again."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 41), kernel, history, sent=5, lost=1)
    congested(range(41, 61), kernel, history, sent=10)
    assert history.assumed_slowness(BAD) == pytest.approx(lossy(0.2 * (8 / 9) ** 20), rel=0.05)


def test_many_segments_of_one_look_count_for_ten() -> None:
    """A thousand that a backlog sends in a second do not hide the losses of forty seconds."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 41), kernel, history, sent=5, lost=1)
    congested(range(41, 42), kernel, history, sent=1000, lost=100)
    assert history.assumed_slowness(BAD) == pytest.approx(lossy((16 + 1) / 90), rel=0.05)


def test_a_look_counts_once() -> None:
    """Acknowledgements between two looks tell nothing new of the kernel."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 3), kernel, history, sent=10, lost=5)
    once = history.seconds_per_byte
    told = kernel.look(2.0, sent=10, lost=10)
    history.observe_look(told)
    assert history.seconds_per_byte == once == pytest.approx(lossy(5.3 / 20))


def test_a_new_connection_counts_from_the_beginning() -> None:
    """Fewer segments than at the look before: nothing is counted."""
    history = fed(CALM)
    congested(range(1, 3), Kernel(), history, sent=10, lost=5)
    congested(range(3, 4), Kernel(), history, sent=1)
    assert history.seconds_per_byte == pytest.approx(lossy(5.3 / 20))


def test_measured_rate_counts_for_as_long_as_the_message_would_take() -> None:
    """125 kB/s: a megabyte takes 8 s; the kernel repeats a rate until the next transfer."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 3), kernel, history, sent=10, lost=2)
    assert history.measured_slowness(2.0, 1_000_000) == 0.0
    history.observe_look(kernel.look(3.0, rate=125_000))
    assert history.measured_slowness(4.0, 1_000_000) == 1 / 125_000
    history.observe_look(kernel.look(10.0, rate=125_000))
    assert history.measured_slowness(10.9, 1_000_000) == 1 / 125_000
    assert history.measured_slowness(11.1, 1_000_000) == 0.0


def test_rate_of_calm_is_no_measured_rate_of_congestion() -> None:
    """A transfer that was over when congestion began says nothing of it."""
    history, kernel = fed(CALM), Kernel()
    history.observe_look(kernel.look(0.5, rate=125_000))
    congested(range(1, 3), kernel, history)
    assert history.measured_slowness(2.0, 1_000_000) == 0.0


def shared(seconds: range, kernel: Kernel, history: CongestionHistory) -> None:
    """Let there be congestion in which a few packets are lost, and transfers pass at 500 kB/s."""
    for second in seconds:
        history.observe(BAD, second, second, THRESHOLD_L)
        # The kernel tells no rate twice, so it differs a little each time.
        history.observe_look(kernel.look(second, sent=10, lost=1, rate=500_000 + second))


def test_transfers_in_congestion_correct_the_equation() -> None:
    """The equation is the first sample of a plain mean; the last transfer is not proven yet."""
    history, kernel = fed(CALM), Kernel()
    history.observe_look(kernel.look(0.5, rate=2_500_000))
    shared(range(1, 6), kernel, history)
    ratio = history.assumed_slowness(BAD) / history.seconds_per_byte
    assert ratio == history.slowness_ratio
    told = 1 / (500_000 * lossy(0.1))
    assert ratio == pytest.approx((1 + 3 * told) / 4, rel=0.1)
    shared(range(6, 60), kernel, history)
    assert 500_000 * history.assumed_slowness(BAD) == pytest.approx(1.0, rel=0.1)


def test_a_rate_after_which_the_path_is_calm_does_not_correct_the_equation() -> None:
    """The transfer was that fast as congestion had ended, which no sample had shown by then."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 6), kernel, history, sent=10, lost=2)
    history.observe_look(kernel.look(6.0, sent=100, rate=500_000))
    history.observe(CALM, 7, 7, THRESHOLD_L)
    history.observe(BAD, 8, 8, THRESHOLD_L)
    assert history.slowness_ratio == 1.0


def test_a_rate_before_a_long_silence_does_not_correct_the_equation() -> None:
    """Whether congestion had ended then, no sample will tell."""
    history, kernel = fed(CALM), Kernel()
    congested(range(1, 6), kernel, history, sent=10, lost=2)
    history.observe_look(kernel.look(6.0, sent=100, rate=500_000))
    history.lose_sight()
    history.observe(BAD, 900, 900, THRESHOLD_L)
    assert history.slowness_ratio == 1.0


def test_only_loss_based_congestion_control_is_expected_to_be_slow() -> None:
    """Losses slow cubic down; of bbr the rate of calm is expected."""
    slownesses = []
    for name in ("cubic", "reno", "bbr", ""):
        history, kernel = fed(CALM), Kernel()
        calm = kernel.look(0.5, rate=2_000_000)
        calm.congestion_control = name
        history.observe_look(calm)
        history.observe(BAD, 1.0, 1.0, THRESHOLD_L)
        slownesses.append(history.assumed_slowness(BAD))
    assert slownesses[0] == slownesses[1] > 1e-4
    assert slownesses[2] == slownesses[3] == 1 / 2_000_000


def test_transfer_as_fast_as_in_calm_ends_congestion() -> None:
    """High RTTs are those of its own queue; a rate below half of calm's leaves it congested."""
    history, kernel = fed(CALM), Kernel()
    history.observe_look(kernel.look(0.5, rate=2_500_000))
    congested(range(1, 5), kernel, history, sent=5, lost=1)
    history.observe_look(kernel.look(5.0, rate=1_200_000))
    assert history.began_at == 1.0
    history.observe_look(kernel.look(6.0, rate=1_300_000))
    assert history.began_at is None
    assert own_lengths(history) == [5.0]


def test_own_large_messages_take_their_time_in_calm() -> None:
    """A packet behind a megabyte at 2 MB/s waits half a second for it, one before it does not."""
    history, kernel = fed(CALM), Kernel()
    history.observe_look(kernel.look(0.5, rate=2_000_000))
    history.observe_large(1_000_000, 0.2, 10.0)
    assert history.own_seconds(9.9) == 0.0
    assert history.own_seconds(10.1) == pytest.approx(0.4)
    history.observe_large(1_000_000, 0.2, 10.4)
    assert history.own_seconds(10.2) == pytest.approx(0.3)
    assert history.own_seconds(10.5) == pytest.approx(0.4)
    history.observe_large(100_000, 0.2, 20.0)
    assert history.own_seconds(20.0) == pytest.approx(0.2)


def test_rate_of_small_messages_is_a_mean_of_five_minutes() -> None:
    """The plain mean at first; a burst or a pause of some seconds changes little."""
    history = CongestionHistory()
    n_messages = 0
    for second in range(601):
        history.observe_small(n_messages, float(second))
        n_messages += 2
    assert history.small_per_second == pytest.approx(2.0, rel=0.02)
    history.observe_small(n_messages, 610.0)
    assert 1.9 < history.small_per_second < 2.0
    history.observe_small(n_messages, 2410.0)
    assert history.small_per_second < 0.01


def test_new_subscriber_is_supposed_to_get_a_small_message_in_each_congestion() -> None:
    """Of 10.5 s, the mean of what is supposed; without any, one in that and all the time since."""
    history = CongestionHistory()
    history.observe_small(0, 0.0)
    assert history.small_per_second == pytest.approx(1 / 10.5)
    history.observe_small(0, 10.0)
    assert history.small_per_second == pytest.approx(1 / 20.5)
    for second in range(11, 111):
        history.observe_small(0, float(second))
    assert history.small_per_second == pytest.approx(1 / 120.5)


def test_next_sample_is_expected_by_the_interval_of_any_moment() -> None:
    """Samples each second are half a second away; pairs each 30 s are 15 s away."""
    assert fed(*[CALM] * 60).until_next_sample() == pytest.approx(0.5)
    history = CongestionHistory()
    for n in range(60):
        history.observe(CALM, 30.0 * n, 30.0 * n, THRESHOLD_L)
        history.observe(CALM, 30.0 * n + 0.1, 30.0 * n + 0.1, THRESHOLD_L)
    assert 13 < history.until_next_sample() < 16


def test_what_is_waited_for_is_as_fast_as_calm_was() -> None:
    """A lucky second of a lossy path says little; before calm was seen, the best rate must do."""
    history, kernel = fed(CALM, BAD), Kernel()
    assert history.calm_slowness() == 0.0
    history.observe_look(kernel.look(1.0, rate=125_000))
    assert history.calm_slowness() == 1 / 125_000
    history.observe(CALM, 2.0, 2.0, THRESHOLD_L)
    history.observe_look(kernel.look(2.0, rate=20_000))
    assert history.calm_slowness() == 1 / 20_000
    history.observe_look(kernel.look(3.0, rate=80_000))
    assert 1 / history.calm_slowness() == pytest.approx(22_857, rel=1e-3)
    for second in range(4, 40):
        history.observe_look(kernel.look(second, rate=80_000 + second))
    assert 1 / history.calm_slowness() == pytest.approx(80_000, rel=1e-2)
    history.observe_look(kernel.look(50.0, rate=5_000))
    assert 1 / history.calm_slowness() > 70_000


def test_best_rate_is_that_of_a_full_pipe_and_forgotten_slowly() -> None:
    """Small messages say nothing of it; a lower one counts little, a higher one at once."""
    history, kernel = fed(CALM), Kernel()
    history.observe_look(kernel.look(1.0))
    assert history.best_rate is None
    history.observe_look(kernel.look(2.0, rate=100_000))
    assert history.best_rate == 100_000
    history.observe_look(kernel.look(4.0, rate=2_500_000))
    assert history.best_rate == 2_500_000
    history.observe_look(kernel.look(5.0, rate=100_000))
    assert history.best_rate == pytest.approx(2_495_312.5)


def test_congestion_beyond_a_relay_is_not_the_kernels() -> None:
    """Its RTT stays low and nothing is lost, whatever acknowledgements of MQTT take."""
    history, kernel = fed(CALM), Kernel(rtt=0.001)
    congested(range(1, 11), kernel, history, sent=5)
    assert not history.is_seen_by_kernel
    congested(range(11, 13), kernel, history, sent=5, lost=2)
    assert history.is_seen_by_kernel


def test_fast_first_hop_does_not_end_congestion_behind_a_relay() -> None:
    """What the kernel hands to a relay as fast as ever has not arrived."""
    history, kernel = fed(CALM), Kernel(rtt=0.001)
    history.observe_look(kernel.look(0.5, rate=80_000_000))
    congested(range(1, 5), kernel, history, sent=5, rate=70_000_000)
    assert history.began_at == 1.0


def test_rtt_that_the_kernel_sees_is_its_congestion() -> None:
    """Nothing is lost, but its own RTT is more than an eighth of the level."""
    history, kernel = fed(CALM), Kernel()
    for second in range(1, 11):
        history.observe(0.6, second, second, THRESHOLD_L)
        history.observe_look(kernel.look(second, sent=5))
    assert history.is_seen_by_kernel
