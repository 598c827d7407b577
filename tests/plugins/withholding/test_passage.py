from __future__ import annotations

import math

import pytest

from penstock.plugins.withholding.policy import MOST_PAUSE_SECONDS, RECENT_SECONDS, Passage

EXPOSURE = 2.0
THRESHOLD_L = 0.5
CALM, BAD = 0.1, 1.0
BYTES = 1_000_000


def passage() -> Passage:
    """Return one without a large message."""
    return Passage(EXPOSURE)


def sample(of: Passage, rtt: float, sent_at: float) -> None:
    """Let a packet be answered an RTT after it left."""
    of.observe(rtt, sent_at, THRESHOLD_L, sent_at + rtt)


def is_bad(of: Passage, now: float, unanswered_since: float | None = None) -> bool:
    """Say whether the path is bad."""
    return of.is_bad(THRESHOLD_L, unanswered_since, now)


def pass_one(of: Passage, sent_at: float, took: float, *, was_bad: bool = False) -> None:
    """Let one large message pass."""
    of.sent(BYTES, is_bad=was_bad, now=sent_at)
    of.acknowledged(sent_at + took)


def test_what_a_message_took_is_without_the_round_trip() -> None:
    """A far path is not a slow one."""
    of = passage()
    sample(of, 0.4, 9.0)
    pass_one(of, 10.0, 1.4)
    assert of.seconds_per_byte == pytest.approx(1.0 / BYTES)
    assert of.last_seconds == pytest.approx(1.4)
    assert of.bytes_on_way == 0


def test_a_message_behind_another_takes_its_own_time() -> None:
    """The second one had to wait for the first, which is none of what it took."""
    of = passage()
    of.sent(BYTES, is_bad=False, now=10.0)
    of.sent(BYTES, is_bad=False, now=10.1)
    assert (of.bytes_on_way, of.oldest_at) == (2 * BYTES, 10.0)
    of.acknowledged(11.0)
    assert (of.bytes_on_way, of.oldest_at) == (BYTES, 10.1)
    of.acknowledged(11.5)
    assert of.seconds_per_byte == pytest.approx(0.5 / BYTES)


def test_a_slow_message_is_followed_by_a_pause_as_long() -> None:
    """Above the exposure; one that took long is followed by no longer pause than the most."""
    of = passage()
    pass_one(of, 10.0, EXPOSURE)
    assert of.pause_until == -math.inf
    pass_one(of, 20.0, 3.0)
    assert of.pause_until == pytest.approx(26.0)
    pass_one(of, 30.0, 60.0)
    assert of.pause_until == pytest.approx(90.0 + MOST_PAUSE_SECONDS)
    pass_one(of, 100.0, 1.0)
    assert of.pause_until == -math.inf


def test_a_pause_ends_as_the_path_turns_good() -> None:
    """A message that was slow as the path was bad says nothing of the good path."""
    of = passage()
    sample(of, BAD, 8.0)
    pass_one(of, 10.0, 4.0, was_bad=True)
    assert of.pause_until > 14.0
    sample(of, CALM, 14.1)
    assert of.pause_until == -math.inf
    assert of.bad_seconds_per_byte is None


def test_a_bad_path_takes_at_least_what_a_message_took_at_its_end() -> None:
    """The bad time ended while it passed; what was known before may have been less."""
    of = passage()
    for sent_at, took, rtt, seconds in ((10, 5, BAD, 5), (30, 4, CALM, 5), (50, 8, CALM, 8)):
        pass_one(of, sent_at, took, was_bad=True)
        sample(of, rtt, sent_at + took + 0.1)
        assert of.bad_seconds_per_byte == pytest.approx(seconds / BYTES)
    assert of.bad_seconds_per_byte == pytest.approx(8 / BYTES)


def test_a_pause_stays_where_the_path_looked_good_all_the_time() -> None:
    """A link whose rate has fallen has a good RTT as soon as the message is through."""
    of = passage()
    sample(of, CALM, 9.0)
    pass_one(of, 10.0, 4.0)
    sample(of, CALM, 14.1)
    assert of.pause_until > 14.0
    assert of.bad_seconds_per_byte is None


@pytest.mark.parametrize(
    ("was_bad", "took", "rtt_after", "is_learned"),
    [
        (True, 1.5, BAD, True),
        (True, 1.5, CALM, False),
        (True, 4.0, BAD, True),
        (True, 4.0, CALM, False),
        (False, 4.0, BAD, True),
        (False, 4.0, CALM, False),
        (False, 1.5, BAD, False),
    ],
)
def test_a_message_says_what_the_bad_path_takes_if_it_met_it(
    *, was_bad: bool, took: float, rtt_after: float, is_learned: bool
) -> None:
    """The path has to be bad after it, and bad before it or the message slow."""
    of = passage()
    pass_one(of, 10.0, took, was_bad=was_bad)
    assert of.bad_seconds_per_byte is None
    sample(of, rtt_after, 20.0)
    assert (of.bad_seconds_per_byte is not None) is is_learned


def test_a_slow_message_is_not_forgotten_for_a_quick_one_after_it() -> None:
    """Before the first sample after both, the slow one is what there is to learn from."""
    of = passage()
    pass_one(of, 10.0, 4.0, was_bad=True)
    pass_one(of, 15.0, 1.0, was_bad=True)
    sample(of, BAD, 17.0)
    assert of.bad_seconds_per_byte == pytest.approx(4.0 / BYTES)


def test_a_sample_behind_a_large_message_says_nothing_of_the_path() -> None:
    """Its packet waited for the message: before and after that has passed."""
    of = passage()
    sample(of, CALM, 9.0)
    of.sent(BYTES, is_bad=False, now=10.0)
    sample(of, 5.0, 10.1)
    assert not is_bad(of, 15.2)
    of.acknowledged(16.0)
    of.observe(5.0, 11.5, THRESHOLD_L, 16.5)
    assert not is_bad(of, 16.6)
    sample(of, BAD, 16.6)
    assert is_bad(of, 17.7)


def test_a_sample_of_before_the_message_counts() -> None:
    """Its answer comes while the message is on its way."""
    of = passage()
    of.sent(BYTES, is_bad=False, now=10.0)
    of.observe(BAD, 9.5, THRESHOLD_L, 10.5)
    assert is_bad(of, 10.6)


def test_a_sample_counts_for_a_while() -> None:
    """An old one may be of congestion that has ended."""
    of = passage()
    sample(of, BAD, 9.0)
    assert is_bad(of, 10.0 + RECENT_SECONDS)
    assert not is_bad(of, 10.1 + RECENT_SECONDS)


def test_the_kernel_may_show_a_bad_path_and_never_a_good_one() -> None:
    """Its RTT ends at a load balancer, where all is well."""
    of = passage()
    of.observe_hint(BAD, 9.0, 10.0)
    assert is_bad(of, 10.0 + RECENT_SECONDS)
    assert not is_bad(of, 10.1 + RECENT_SECONDS)
    sample(of, BAD, 30.0)
    of.observe_hint(CALM, 31.0, 31.1)
    assert is_bad(of, 31.2)
    pass_one(of, 32.0, 4.0, was_bad=True)
    of.observe_hint(BAD, 37.0, 37.1)
    assert of.bad_seconds_per_byte is None


def test_an_answer_of_the_client_is_news_over_the_kernels() -> None:
    """The kernel's RTT is smoothed, and stays high for a while."""
    of = passage()
    of.observe_hint(BAD, 9.0, 10.0)
    sample(of, CALM, 10.5)
    assert not is_bad(of, 10.7)
    of.observe_hint(BAD, 10.8, 11.0)
    assert is_bad(of, 11.1)


def test_a_hint_of_what_was_behind_a_large_message_is_none() -> None:
    """It is smoothed over what came since the look before."""
    of = passage()
    pass_one(of, 10.0, 4.0)
    of.observe_hint(BAD, 13.0, 14.5)
    assert not is_bad(of, 14.6)
    of.sent(BYTES, is_bad=False, now=15.0)
    of.observe_hint(BAD, 15.5, 16.5)
    assert not is_bad(of, 16.6)


def test_an_overdue_answer_makes_the_path_bad() -> None:
    """The best sample does not hide it."""
    of = passage()
    sample(of, CALM, 9.0)
    assert not is_bad(of, 10.4, unanswered_since=10.0)
    assert is_bad(of, 10.6, unanswered_since=10.0)


def test_an_answer_is_not_overdue_behind_a_large_message() -> None:
    """While that is on its way, and for as long as any packet may take after it."""
    of = passage()
    of.sent(BYTES, is_bad=False, now=10.0)
    assert not is_bad(of, 30.0, unanswered_since=10.1)
    assert is_bad(of, 30.0, unanswered_since=9.9)  # it left before
    of.acknowledged(30.0)
    assert not is_bad(of, 30.4, unanswered_since=10.1)
    assert is_bad(of, 30.6, unanswered_since=10.1)


def test_the_end_of_a_connection_ends_what_was_on_its_way() -> None:
    """What the path takes stays known; an answer to nothing is none."""
    of = passage()
    pass_one(of, 10.0, 1.0)
    of.sent(BYTES, is_bad=False, now=12.0)
    of.connection_lost()
    assert of.bytes_on_way == 0
    before = of.seconds_per_byte
    of.acknowledged(50.0)
    assert of.seconds_per_byte == before


def test_a_message_without_a_payload_is_no_error() -> None:
    """The threshold may be 0 bytes, and an empty message may be what waits."""
    of = passage()
    of.sent(0, is_bad=False, now=10.0)
    of.acknowledged(11.0)
    assert of.seconds_per_byte == 1.0
