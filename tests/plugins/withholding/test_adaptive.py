from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.adaptive import (
    AdaptivePolicy,
    best_hold,
    best_wait,
)
from penstock.plugins.withholding.history import PRIOR_LENGTHS, CongestionHistory
from penstock.plugins.withholding.policies import make_policy
from penstock.plugins.withholding.policy import Situation

THRESHOLD_L = 0.5
POLICY = AdaptivePolicy(40.0)

ends_lists = st.lists(st.floats(-30, 100), min_size=1, max_size=33).map(sorted)
latencies = st.floats(0, 1000)


def history_of(lengths: list[float]) -> CongestionHistory:
    """Return a history of a subscriber with these lengths alone, calm until second 0."""
    history = CongestionHistory()
    for second in range(-20, 1):
        history.observe(0.2, second, second, THRESHOLD_L)
    history.lengths = array("f", sorted(lengths))
    return history


def congested_at(now: float, history: CongestionHistory, *, sojourn: float = 0.0) -> Situation:
    """Return the situation of a message ten times as slow as the samples, T_Q 1 s."""
    return Situation(20.0, 5.0, sojourn, 1.0, now=now, size_ratio=10.0, history=history)


@pytest.mark.parametrize(
    ("ends", "congested", "calm", "expected"),
    [
        # One end, 5 s away and seen at once: wait 5 s and go for 1 s.
        ([5.0], 20.0, 1.0, (20.0, 6.0, 5.0)),
        # The same where going at once takes 4 s: 6 s of waiting is worse.
        ([5.0], 4.0, 1.0, (4.0, 6.0, 5.0)),
        # 2 s or 30 s. Waiting 2 s at most: (2 + 1 + 2 + 20) / 2; for 30 s: (2 + 1 + 30 + 1) / 2.
        ([2.0, 30.0], 20.0, 1.0, (20.0, 12.5, 2.0)),
        # 2 s or 6 s: (3 + 7) / 2 is better than (3 + 22) / 2.
        ([2.0, 6.0], 20.0, 1.0, (20.0, 5.0, 6.0)),
        # One of two has ended unseen: now (20 + 1) / 2, else (0 + 1 + 8 + 1) / 2.
        ([-1.0, 8.0], 20.0, 1.0, (10.5, 5.0, 8.0)),
        # All have ended: nothing to wait for.
        ([-2.0, -1.0], 20.0, 1.0, (1.0, math.inf, 0.0)),
        # Calm takes as long: nothing to gain.
        ([5.0], 20.0, 20.0, (20.0, math.inf, 0.0)),
    ],
)
def test_best_wait_is_the_hand_computed_one(
    ends: list[float], congested: float, calm: float, expected: tuple[float, float, float]
) -> None:
    """Mean cost of sending now, of the best plan, and its time; ends are seen without lag."""
    assert best_wait(ends, 0.0, congested, calm) == pytest.approx(expected)


def test_lag_delays_what_is_seen_and_not_what_is_sent_blindly() -> None:
    """With a lag of 3 s the end at 2 s is seen at 5 s; the plan of 6 s pays 5 + 1 and 6 + 1."""
    assert best_wait([2.0, 6.0], 3.0, 20.0, 1.0) == pytest.approx((20.0, 6.5, 6.0))


def test_a_moment_that_is_better_than_the_level_is_used() -> None:
    """Level 20 s, half of the distance is left after a second; the end is 5 s away."""
    ends, halved = [5.0, 30.0], 0.5
    better = best_wait(ends, 0.0, 20.0, 1.0, -14.0, halved)
    worse = best_wait(ends, 0.0, 20.0, 1.0, 14.0, halved)
    # Sent now it takes 6 or 34 s; after 5 s, 5 + 1 or 5 + 20 and what is left of the distance.
    assert better == pytest.approx((6.0, (6 + 25 - 14 / 32) / 2, 5.0))
    assert worse == pytest.approx((34.0, (6 + 25 + 14 / 32) / 2, 5.0))


@given(ends_lists, st.floats(0, 20), latencies, latencies, latencies, st.floats(0, 1))
def test_no_end_is_better_than_the_best_wait(
    ends: list[float], lag: float, now: float, congested: float, calm: float, persistence: float
) -> None:
    """Trying every end finds nothing better, and the cost is what the plan's words say."""
    at_once, waiting, wait = best_wait(ends, lag, congested, calm, now - congested, persistence)
    off_level = max(now, calm) - congested

    def cost(latest: float) -> float:
        later = congested + off_level * persistence**latest
        total = 0.0
        for end in ends:
            seen = max(0.0, end + max(lag, 1e-6))
            if seen <= latest:
                total += seen + calm
            else:
                total += latest + (calm if end <= latest else later)
        return total / len(ends)

    if congested <= calm:
        assert waiting == math.inf
        return
    # What is left of the distance is not followed below a millisecond.
    assert at_once == pytest.approx(cost(0.0), abs=1e-5)
    ahead = [end for end in ends if end > 0]
    assert waiting == (pytest.approx(cost(wait), abs=2e-3) if ahead else math.inf)
    assert all(waiting <= cost(end) + 2e-3 for end in ahead)


@given(ends_lists, st.floats(0, 20), latencies, latencies)
def test_no_time_between_the_ends_is_better_at_a_steady_level(
    ends: list[float], lag: float, congested: float, calm: float
) -> None:
    """Trying each sight of an end and times in between finds nothing better."""
    at_once, waiting, wait = best_wait(ends, lag, congested, calm)

    def cost(latest: float) -> float:
        total = 0.0
        for end in ends:
            seen = max(0.0, end + lag)
            if seen <= latest:
                total += seen + calm
            else:
                total += latest + (calm if end <= latest else congested)
        return total / len(ends)

    if congested <= calm:
        assert waiting == math.inf
        return
    n_ended = sum(end <= 0 for end in ends)
    assert at_once == pytest.approx(congested - (congested - calm) * n_ended / len(ends))
    if n_ended < len(ends):
        # A lag of nothing counts as a microsecond.
        assert waiting == pytest.approx(cost(wait), abs=1e-5)
        times = [time for end in ends for time in (end, end + lag, end + 0.5)]
        assert all(waiting <= cost(time) + 1e-5 for time in times if time >= ends[n_ended])


@given(ends_lists, st.floats(0, 20), latencies, latencies, latencies)
def test_a_lower_level_never_causes_a_wait(
    ends: list[float], lag: float, congested: float, lower: float, calm: float
) -> None:
    """The decision is monotone in the latency of the congested path."""
    at_once, waiting, _ = best_wait(ends, lag, congested, calm)
    lower_at_once, lower_waiting, _ = best_wait(ends, lag, min(lower, congested), calm)
    if at_once < waiting:
        assert lower_at_once <= lower_waiting + 1e-9


def test_many_lengths_are_thinned_evenly() -> None:
    """Of 48 lengths every fifth is tried: from 10 to 57 s the best waits are those of all."""
    lengths = [float(length) for length in range(10, 58)]
    history = history_of(lengths)
    for second in (1.0, 2.0):
        history.observe(4.0, second, second, THRESHOLD_L)
    thinned = POLICY.judge(congested_at(2.0, history))
    ends = [length - 1.0 for length in lengths]
    _, waiting, _ = best_wait(ends, 0.0, 20.0, 5 * (history.after_calm or 0.0))
    assert thinned.limit == pytest.approx(waiting, rel=0.1)
    assert thinned.release_sojourn in [length - 1.0 for length in lengths[2::5]]


def test_fuse_is_twice_what_the_user_gives_as_d() -> None:
    """A wait that the lengths speak for outlasts D; nothing outlasts two of it."""
    policy = make_policy("adaptive", max_withhold=20.0, congestion_rate=1.0)
    assert policy == AdaptivePolicy(40.0)


def test_calm_path_delivers() -> None:
    """Nothing is withheld while the last sample was good."""
    judgement = POLICY.judge(congested_at(1.0, history_of([5.0] * 5)))
    assert judgement.delivers
    assert judgement.limit == math.inf


def test_nothing_known_delivers() -> None:
    """A subscriber without history has no congestion that could end."""
    assert POLICY.judge(Situation(20.0, 5.0, 0.0, 1.0)).delivers


def test_waits_until_the_length_that_congestion_always_has() -> None:
    """Begun in second 1, of length 5 five times: at 3 the message waits for second 6."""
    history = history_of([5.0] * 5)
    for second in (1.0, 2.0, 3.0):
        history.observe(4.0, second, second, THRESHOLD_L)
    judgement = POLICY.judge(congested_at(3.0, history))
    assert not judgement.delivers
    assert judgement.release_sojourn == pytest.approx(3.0)
    # Calm after calm was 0.2 s 28 times and 4 s once, so that C is 1.66 s; five lengths end in
    # 3 s, and one in 2 s (as long again), which is seen without lag.
    calm = 5 * (28 * 0.2 + 4.0) / 29
    assert judgement.limit == pytest.approx((2 + 5 * 3) / 6 + calm)


def test_outlived_lengths_say_nothing() -> None:
    """After 12 s of what has never lasted over 5 s, only "as long again" is left, 12 s more."""
    history = history_of([5.0] * 5)
    for second in range(1, 14):
        history.observe(4.0, second, second, THRESHOLD_L)
    calm = 5 * (28 * 0.2 + 4.0) / 29
    judgement = POLICY.judge(congested_at(13.0, history))
    assert judgement.limit == pytest.approx(12.0 + calm)
    assert not judgement.delivers


def test_short_congestion_is_waited_out_and_long_one_is_not() -> None:
    """The same path now, other pasts: the lengths decide."""
    verdicts = []
    for length in (3.0, 60.0):
        history = history_of([length] * 20)
        history.observe(4.0, 1.0, 1.0, THRESHOLD_L)
        verdicts.append(POLICY.judge(congested_at(1.0, history)).delivers)
    assert verdicts == [False, True]


def test_unanswered_packet_is_congestion_before_its_answer() -> None:
    """The last sample was good, but a packet of 2 s ago is overdue."""
    history = history_of([5.0] * 20)
    situation = congested_at(3.0, history)._replace(overdue=2.0)
    judgement = POLICY.judge(situation)
    # Begun in second 1: twenty lengths end in 3 s, and one in 2 s; L is 5 * 2 * 2 s.
    assert not judgement.delivers
    assert judgement.release_sojourn == pytest.approx(3.0)
    assert judgement.latency == pytest.approx(20.0)


def test_age_below_the_level_is_no_news() -> None:
    """In congestion of 4 s a packet without answer for 2 s says that it lasts, and no more."""
    history = history_of([5.0] * 20)
    history.observe(4.0, 1.0, 1.0, THRESHOLD_L)
    judgement = POLICY.judge(congested_at(3.0, history)._replace(overdue=2.0))
    assert judgement.latency == pytest.approx(20.0)
    assert judgement.release_sojourn == pytest.approx(3.0)


def test_more_overdue_than_any_level_is_expected_to_double() -> None:
    """An age of 6 s speaks for an RTT of 12 s: 60 s for a message of ten times the size."""
    history = history_of([5.0] * 20)
    judgement = POLICY.judge(congested_at(6.5, history)._replace(overdue=6.0))
    assert judgement.latency == pytest.approx(60.0)


def test_path_without_memory_is_not_waited_for() -> None:
    """Where good and bad samples alternate, the next is as bad after a good one: send."""
    history = CongestionHistory()
    for second in range(1001):
        history.observe(0.2 if second % 2 else 4.0, second, second, THRESHOLD_L)
    assert POLICY.judge(congested_at(1000.0, history)).delivers


@given(
    st.lists(st.tuples(st.floats(0, 30), st.floats(0.1, 20)), min_size=1, max_size=60),
    st.floats(0, 20),
    st.floats(0, 100),
)
def test_every_hold_ends_by_its_bound(
    samples: list[tuple[float, float]], overdue: float, sojourn: float
) -> None:
    """Whatever was seen: beyond D it goes, before it waits for a time that is ahead."""
    history = CongestionHistory()
    now = 0.0
    for rtt, gap in samples:
        now += gap
        history.observe(rtt, now - rtt, now, THRESHOLD_L)
    judgement = POLICY.judge(congested_at(now, history, sojourn=sojourn)._replace(overdue=overdue))
    if sojourn > 40.0:
        assert judgement.delivers
    if not judgement.delivers:
        assert sojourn <= judgement.release_sojourn <= 40.0
        assert judgement.latency >= judgement.limit


def test_new_subscriber_is_held_as_long_again_as_it_has_been_congested() -> None:
    """With the prior alone, 4 s into congestion, the best wait ends at one of its lengths."""
    history = CongestionHistory()
    history.observe(0.2, 0.0, 0.0, THRESHOLD_L)
    for second in range(1, 6):
        history.observe(8.0, second, second, THRESHOLD_L)
    judgement = POLICY.judge(congested_at(5.0, history))
    assert not judgement.delivers
    assert judgement.release_sojourn + 4.0 in PRIOR_LENGTHS


def slow(history: CongestionHistory, *, bytes_per_second: float) -> CongestionHistory:
    """Let bytes be so slow in the congestion of a history."""
    history.seconds_per_byte = 1 / bytes_per_second
    return history


def with_bytes(situation: Situation, *, small_per_second: float = 2.0) -> Situation:
    """Return the situation of a megabyte on a connection whose kernel is asked."""
    return situation._replace(n_bytes=1_000_000, small_per_second=small_per_second)


@pytest.mark.parametrize(
    ("ends", "transfer", "expected"),
    [
        # It ends in 5 s: sent now, 5 s of 20 pass a quarter, the rest takes 0.75 s of calm. Two
        # small messages a second wait for half of that each: 5.75 ** 2.
        ([5.0], (20.0, 1.0, 1.0), (5.75 + 5.75**2, 5 + 2.0, 5.0)),
        # The same without small messages: waiting costs the difference.
        ([5.0], (20.0, 1.0, 0.0), (5.75, 6.0, 5.0)),
        # It lasts longer than the transfer takes, whenever it ends.
        ([30.0], (4.0, 1.0, 1.0), (20.0, 32.0, 30.0)),
        # 2 s or 30 s: the wait is given up after 2 s, as 4 s of transfer cost 20.
        ([2.0, 2.0, 30.0], (4.0, 1.0, 1.0), ((2 * 8.75 + 20) / 3, 30 / 3, 2.0)),
        # It has ended unseen.
        ([-1.0], (20.0, 1.0, 1.0), (2.0, 2.0, 0.0)),
        # Calm takes as long: nothing to gain.
        ([5.0], (20.0, 20.0, 1.0), (420.0, math.inf, 0.0)),
    ],
)
def test_best_hold_is_the_hand_computed_one(
    ends: list[float],
    transfer: tuple[float, float, float],
    expected: tuple[float, float, float],
) -> None:
    """A transfer goes on after the end of congestion; ends are seen without lag."""
    assert best_hold(ends, 0.0, *transfer, math.inf) == pytest.approx(expected)


@pytest.mark.parametrize(("most_slower", "expected"), [(1.02, 2.0 + 101 / 3), (1.005, math.inf)])
def test_wait_must_not_make_the_message_itself_much_slower(
    most_slower: float, expected: float
) -> None:
    """Losses stop the transfer: a hold costs the message no more than the lag of two ends of three.

    That is a third of a second in 33 seconds.
    """
    _, waiting, _ = best_hold([20.0, 20.0, 60.0], 0.5, 1e9, 0.1, 190.0, most_slower)
    assert waiting == pytest.approx(expected)


def test_path_that_carries_the_message_in_congestion_gets_it() -> None:
    """4 s in congestion of 30 s, with a hundred small messages a second: held at a high price."""
    at_once, waiting, _ = best_hold([30.0], 0.5, 4.0, 1.0, 50.0, 1.25)
    assert at_once < waiting == math.inf
    at_once, waiting, _ = best_hold([30.0], 0.5, 4.0, 1.0, 50.0, 1 + 0.25 * 40)
    assert at_once > waiting


def test_small_weight_is_what_a_user_pays_with() -> None:
    """A path carries a megabyte in 5 s of a congestion of 30: held where small ones weigh more."""
    history = slow(history_of([30.0] * 20), bytes_per_second=200_000)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = with_bytes(congested_at(1.5, history), small_per_second=10.0)
    judged = AdaptivePolicy(1000.0).judge(situation)
    assert (judged.delivers, judged.latency, judged.limit) == (True, situation.l_now, math.inf)
    assert not AdaptivePolicy(1000.0, small_weight=40.0).judge(situation).delivers


@pytest.mark.parametrize(("small_weight", "delivers"), [(1.0, True), (5.0, False)])
def test_control_that_is_not_loss_based_carries_a_large_message(
    small_weight: float, *, delivers: bool
) -> None:
    """What cubic holds in a congestion of 30 s, bbr sends, but where small ones weigh more."""
    history = history_of([30.0] * 20)
    for second in (1.0, 2.0):
        history.observe(0.6, second, second, THRESHOLD_L)
    history.full_rate, history.full_rate_at = 40_000, 2.0
    situation = with_bytes(congested_at(2.5, history), small_per_second=10.0)
    policy = AdaptivePolicy(1000.0, small_weight=small_weight)
    assert not policy.judge(situation).delivers
    history.is_loss_based = False
    assert policy.judge(situation).delivers is delivers


def test_congestion_beyond_a_relay_is_none_of_this_connections_control() -> None:
    """The kernel sees a fast path to the relay: what the relay's own connection does is unknown."""
    history = history_of([30.0] * 20)
    for second in (1.0, 2.0):
        history.observe(8.0, second, second, THRESHOLD_L)
    situation = with_bytes(congested_at(2.5, history), small_per_second=10.0)
    history.is_loss_based = False
    assert AdaptivePolicy(1000.0).judge(situation).delivers
    history.is_seen_by_kernel = False
    assert not AdaptivePolicy(1000.0).judge(situation).delivers


def cost_of_hold(
    ends: list[float], lag: float, transfer: tuple[float, float, float], wait: float
) -> float:
    """Return the mean cost of sending after a wait at the latest, by the definition of a plan."""
    congested, calm, half_rate = transfer

    def cost(end: float) -> float:
        """Return that of a transfer that begins so many seconds before the end."""
        passed = min(1.0, max(0.0, end) / congested)
        seconds = max(0.0, min(end, congested)) + calm * (1 - passed)
        return seconds + half_rate * seconds**2

    waited = [wait if end > wait else min(wait, max(0.0, end + lag)) for end in ends]
    return sum(seconds + cost(end - wait) for seconds, end in zip(waited, ends, strict=True)) / len(
        ends
    )


@given(ends_lists, st.floats(0, 20), latencies, st.floats(0.001, 1000), st.floats(0, 10))
def test_costs_of_a_hold_are_those_of_its_definition(
    ends: list[float], lag: float, calm: float, more: float, rate: float
) -> None:
    """Both that of sending now and that of the wait, and neither wait tried is cheaper."""
    transfer = (calm + more, calm, rate)
    at_once, waiting, wait = best_hold(ends, lag, *transfer, math.inf)
    assert at_once == pytest.approx(cost_of_hold(ends, lag, transfer, 0.0))
    assert waiting == pytest.approx(cost_of_hold(ends, lag, transfer, wait))
    last, middle = max(0.0, ends[-1]), max(0.0, ends[len(ends) // 2])
    assert waiting <= cost_of_hold(ends, lag, transfer, last) * (1 + 1e-6)
    if last - middle > transfer[0] and middle > 0:
        assert waiting <= cost_of_hold(ends, lag, transfer, middle) * (1 + 1e-6)


@given(ends_lists, st.floats(0, 20), latencies, latencies)
def test_a_message_never_gains_by_being_held_itself(
    ends: list[float], lag: float, calm: float, more: float
) -> None:
    """Without small messages, no wait is cheaper than sending now."""
    at_once, waiting, _ = best_hold(ends, lag, calm + more, calm, 0.0, math.inf)
    assert at_once <= waiting + 1e-6


@given(ends_lists, st.floats(0, 20), latencies, latencies, st.floats(0, 10), st.floats(0, 10))
def test_more_small_messages_never_end_a_hold(
    ends: list[float], lag: float, calm: float, more: float, rate: float, additional: float
) -> None:
    """What is held for some small messages is held for more of them."""
    congested = calm + more
    at_once, waiting, _ = best_hold(ends, lag, congested, calm, rate, math.inf)
    if at_once >= waiting:
        at_once, waiting, _ = best_hold(ends, lag, congested, calm, rate + additional, math.inf)
        assert at_once >= waiting - 1e-6 * waiting


def test_connection_without_small_messages_is_not_held() -> None:
    """Lossy for 5 s each time: the same megabyte is held for small messages alone."""
    history = slow(history_of([5.0] * 20), bytes_per_second=10_000)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = congested_at(1.5, history)
    assert POLICY.judge(with_bytes(situation, small_per_second=0.0)).delivers
    assert not POLICY.judge(with_bytes(situation)).delivers


def test_small_weight_decides_for_whom_a_message_is_held() -> None:
    """One small message in 200 s: they do not hold a megabyte by number, and do by weight."""
    history = slow(history_of([5.0] * 10 + [25.0]), bytes_per_second=10_000)
    history.lag_seconds = 1.0
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = with_bytes(congested_at(1.5, history), small_per_second=0.005)
    assert POLICY.judge(situation).delivers
    assert not AdaptivePolicy(40.0, 100.0).judge(situation).delivers
    assert AdaptivePolicy(40.0, 0.0).judge(with_bytes(congested_at(1.5, history))).delivers


def test_small_messages_count_where_the_kernel_is_not_asked() -> None:
    """By the RTT alone 3 s now are less than 4.5 s of waiting, but not for small messages."""
    history = history_of([5.0] * 20)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = congested_at(1.5, history)
    assert POLICY.judge(situation).delivers
    assert not POLICY.judge(situation._replace(small_per_second=2.0)).delivers


def test_lost_packets_are_waited_out_until_the_length_that_congestion_always_has() -> None:
    """At 10 kB/s a megabyte takes longer than congestion, and blocks small ones until its end."""
    history = slow(history_of([5.0] * 20), bytes_per_second=10_000)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    judgement = POLICY.judge(with_bytes(congested_at(1.5, history)))
    assert not judgement.delivers
    # C is 5 times the RTT after calm, 0.21 s; a part of the megabyte passes in the 4.5 s.
    calm = 5 * (history.after_calm or 0.0)
    seconds = calm + 4.5 * (1 - calm / (0.3 + 100.0))
    assert judgement.latency == pytest.approx(seconds + seconds**2)
    assert judgement.release_sojourn == pytest.approx(4.5)


def test_path_that_stays_bad_lets_a_message_go_in_the_end() -> None:
    """Many small messages and a path of 1 kB/s: nothing but the bound ends the hold."""
    history = slow(history_of([1000.0] * 20), bytes_per_second=1_000)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    assert not POLICY.judge(with_bytes(congested_at(1.5, history, sojourn=39.0))).delivers
    assert POLICY.judge(with_bytes(congested_at(1.5, history, sojourn=40.1))).delivers
    unbounded = AdaptivePolicy(math.inf)
    assert not unbounded.judge(with_bytes(congested_at(1.5, history, sojourn=900.0))).delivers


def test_first_packet_that_is_not_answered_holds_a_megabyte() -> None:
    """Before anything is known of losses, a few are supposed: 0.3 s may be the end of a path."""
    situation = congested_at(1.5, history_of(list(PRIOR_LENGTHS)))._replace(overdue=0.3)
    assert POLICY.judge(situation).delivers
    assert not POLICY.judge(with_bytes(situation)).delivers


def test_first_message_explores_where_losses_do_not_slow_a_connection_down() -> None:
    """With bbr nothing is known of the rate in congestion before a transfer: it is tried."""
    history = history_of([10.0] * 20)
    history.calm_seconds_per_byte = 1 / 2_000_000
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = with_bytes(congested_at(1.5, history))
    policy = AdaptivePolicy(40.0, small_weight=5.0)
    assert not policy.judge(situation).delivers
    history.is_loss_based = False
    assert policy.judge(situation).delivers


def test_measured_rate_holds_the_next_message_for_as_long_as_it_would_take() -> None:
    """With bbr at 100 kB/s a megabyte takes 10 s: after 10 s of holding, the next one explores."""
    policy = AdaptivePolicy(40.0, small_weight=5.0)
    history = history_of([60.0] * 20)
    history.calm_seconds_per_byte, history.is_loss_based = 1 / 2_000_000, False
    for second in (1.0, 2.0):
        history.observe(0.6, second, second, THRESHOLD_L)
    history.full_rate, history.full_rate_at = 100_000, 2.0
    history.lengths = array("f", [5.0] * 20)
    assert not policy.judge(with_bytes(congested_at(2.5, history), small_per_second=0.4)).delivers
    for second in range(3, 14):
        history.observe(0.6, second, second, THRESHOLD_L)
    history.lengths = array("f", [20.0] * 20)
    assert not policy.judge(with_bytes(congested_at(11.5, history), small_per_second=0.4)).delivers
    assert policy.judge(with_bytes(congested_at(12.5, history), small_per_second=0.4)).delivers


def test_rate_from_before_a_new_congestion_says_nothing_of_it() -> None:
    """A rate of calm does not speak for congestion; one that was found meanwhile does."""
    history = history_of([5.0] * 20)
    history.full_rate, history.full_rate_at = 2_500_000, 0.9
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    assert not POLICY.judge(with_bytes(congested_at(1.2, history))).delivers
    history.full_rate_at = 1.1
    assert POLICY.judge(with_bytes(congested_at(1.2, history))).delivers


def test_path_that_is_never_faster_is_not_waited_for() -> None:
    """At 10 kB/s and at best 10: there is nothing to wait for."""
    history = slow(history_of([20.0] * 20), bytes_per_second=10_000)
    history.observe(0.6, 1.0, 1.0, THRESHOLD_L)
    situation = with_bytes(congested_at(1.5, history))
    assert not POLICY.judge(situation).delivers
    history.best_rate = 9_900
    assert POLICY.judge(situation).delivers


def test_where_calm_is_seen_late_waiting_pays_less() -> None:
    """The same rate of small messages: with a sample in 40 s, the end is seen too late."""
    verdicts = []
    for gap in (1.0, 40.0):
        history = slow(history_of([]), bytes_per_second=10_000)
        history.lengths = array("f", [5.0] * 10 + [60.0])
        for n in range(1, 20):
            history.observe(0.2, n * gap, n * gap, THRESHOLD_L)
        now = 20 * gap
        history.observe(0.6, now, now, THRESHOLD_L)
        situation = with_bytes(congested_at(now + 0.5, history), small_per_second=0.05)
        verdicts.append(POLICY.judge(situation).delivers)
    assert verdicts == [False, True]


def test_calm_path_delivers_whatever_was_lost_in_congestion() -> None:
    """Slow bytes of the past do not make a congestion."""
    history = slow(history_of([5.0] * 20), bytes_per_second=100)
    judgement = POLICY.judge(with_bytes(congested_at(1.0, history)))
    assert judgement.delivers
    assert judgement.limit == math.inf


def test_beyond_a_relay_only_the_rtt_counts() -> None:
    """The kernel's rate is that to the relay: by the RTT, a megabyte takes 20 s in congestion."""
    history = slow(history_of([5.0] * 20), bytes_per_second=100_000_000)
    history.observe(4.0, 1.0, 1.0, THRESHOLD_L)
    situation = with_bytes(congested_at(1.5, history))
    assert POLICY.judge(situation).delivers
    history.is_seen_by_kernel = False
    judgement = POLICY.judge(situation)
    assert not judgement.delivers
    assert judgement.release_sojourn == pytest.approx(4.5)
