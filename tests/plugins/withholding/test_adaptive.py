from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.policies import (
    DEFAULT_EXPOSURE,
    GIVE_UP_SECONDS,
    WAIT_RATIO,
    AdaptivePolicy,
)
from penstock.plugins.withholding.policy import MOST_PAUSE_SECONDS, Judgement, Passage, Situation

D = 20.0
POLICY = AdaptivePolicy(D)
BYTES = 1_000_000
NOW = 1_000.0


def passage(
    *, seconds: float | None = None, bad_seconds: float | None = None, pause: float = 0.0
) -> Passage:
    """Return one on which a message of `BYTES` takes so long, and on the bad path."""
    found = Passage(DEFAULT_EXPOSURE)
    found.seconds_per_byte = None if seconds is None else seconds / BYTES
    found.bad_seconds_per_byte = None if bad_seconds is None else bad_seconds / BYTES
    found.pause_until = NOW + pause
    return found


def judge(
    of: Passage | None, *, is_bad: bool, sojourn: float = 0.0, n_bytes: int = BYTES
) -> Judgement:
    """Ask about one message."""
    return POLICY.judge(
        Situation(0.0, 0.5, sojourn, 1.0, now=NOW, n_bytes=n_bytes, is_bad=is_bad, passage=of)
    )


def test_good_path_is_no_reason_to_wait() -> None:
    """Whatever the bad one takes."""
    assert judge(passage(bad_seconds=100.0), is_bad=False)[:2] == (True, "calm")


def test_nothing_known_is_no_reason_to_wait() -> None:
    """As in a simulation that has no large messages on their way."""
    assert judge(None, is_bad=True)[:2] == (True, "no_estimate")


def test_unknown_bad_path_is_not_tried_out() -> None:
    """A message is held for D, which is strict."""
    found = judge(passage(seconds=0.1), is_bad=True)
    assert found == (
        False,
        "congested",
        "the path is bad, what it would take is not known: withheld 0 s of 20 s",
        D,
    )
    assert not judge(passage(), is_bad=True, sojourn=D).delivers
    assert judge(passage(), is_bad=True, sojourn=D + 0.1)[:2] == (True, "bound")


@pytest.mark.parametrize(
    ("bad_seconds", "n_bytes", "delivers"),
    [(2.0, BYTES, True), (2.1, BYTES, False), (2.1, BYTES // 2, True), (0.5, 10 * BYTES, False)],
)
def test_what_passes_the_bad_path_within_the_exposure_goes(
    bad_seconds: float, n_bytes: int, *, delivers: bool
) -> None:
    """By the rate at which the last one passed it, and the size of this one."""
    found = judge(passage(bad_seconds=bad_seconds), is_bad=True, n_bytes=n_bytes)
    assert found.delivers is delivers
    assert (found.cause == "exposure") is delivers


def test_a_hold_is_no_longer_than_twice_what_the_message_would_take() -> None:
    """So it takes three times as long at most, and D is still the bound."""
    found = judge(passage(bad_seconds=4.0), is_bad=True)
    assert found.release_sojourn == pytest.approx(WAIT_RATIO * 4.0)
    assert judge(passage(bad_seconds=4.0), is_bad=True, sojourn=8.1)[:2] == (True, "bound")
    assert judge(passage(bad_seconds=60.0), is_bad=True).release_sojourn == D


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_pause_holds_on_any_path(*, is_bad: bool) -> None:
    """Until it ends."""
    found = judge(passage(pause=3.0), is_bad=is_bad, sojourn=10.0)
    assert found[:2] == (False, "pause")
    assert found.release_sojourn == pytest.approx(13.0)
    assert judge(passage(pause=0.0), is_bad=False).delivers


def test_pauses_hold_no_message_for_longer_than_d() -> None:
    """Where more large messages come than pauses leave room for, they would never be through."""
    assert judge(passage(pause=3.0), is_bad=False, sojourn=18.0).release_sojourn == D
    assert judge(passage(pause=3.0), is_bad=False, sojourn=D + 0.1)[:2] == (True, "calm")


def test_one_is_on_its_way_at_a_time_where_nothing_is_known() -> None:
    """The next one is looked at when that is acknowledged, or given up."""
    of = passage()
    of.sent(BYTES, is_bad=False, now=NOW - 1.0)
    found = judge(of, is_bad=False)
    assert found == (False, "on_way", "another is on its way, for 1 s", GIVE_UP_SECONDS - 1.0)


@pytest.mark.parametrize(
    ("seconds", "age", "is_bad", "delivers"),
    [
        (0.4, 0.0, False, True),
        (0.4, 0.4, False, True),
        (0.4, 0.9, False, False),
        (0.7, 0.0, False, False),
        (0.4, 0.0, True, False),
    ],
)
def test_several_are_on_their_way_if_all_pass_within_the_exposure(
    seconds: float, age: float, *, is_bad: bool, delivers: bool
) -> None:
    """Two that have left and this one, from when the oldest left; never on a bad path."""
    of = passage(seconds=seconds)
    of.sent(BYTES, is_bad=False, now=NOW - age)
    of.sent(BYTES, is_bad=False, now=NOW)
    found = judge(of, is_bad=is_bad)
    assert found[:2] == ((True, "exposure") if delivers else (False, "on_way"))


def test_a_client_that_never_acknowledges_holds_up_nothing_for_ever() -> None:
    """After a minute, and D for each message."""
    of = passage(seconds=0.1)
    of.sent(BYTES, is_bad=False, now=NOW - GIVE_UP_SECONDS - 1.0)
    found = judge(of, is_bad=False, sojourn=5.0)
    assert found[:2] == (False, "on_way")
    assert found.release_sojourn == pytest.approx(D)
    assert judge(of, is_bad=False, sojourn=D + 0.1)[:2] == (True, "bound")


def test_exposure_is_the_users() -> None:
    """More of it lets more go, less of it holds more."""
    situation = Situation(
        0.0, 0.5, 0.0, 1.0, now=NOW, n_bytes=BYTES, is_bad=True, passage=passage(bad_seconds=3.0)
    )
    delivers = [AdaptivePolicy(D, exposure).judge(situation).delivers for exposure in (2.9, 3.0)]
    assert delivers == [False, True]


@given(
    seconds=st.none() | st.floats(0, 1000),
    bad_seconds=st.none() | st.floats(0, 1000),
    pause=st.floats(0, MOST_PAUSE_SECONDS),
    ages=st.lists(st.floats(0, 1000), max_size=3),
    sojourn=st.floats(0, 1000),
    is_bad=st.booleans(),
)
def test_each_hold_ends(
    *,
    seconds: float | None,
    bad_seconds: float | None,
    pause: float,
    ages: list[float],
    sojourn: float,
    is_bad: bool,
) -> None:
    """Asked again right after the time that it names, with nothing new, it says yes soon."""
    of = passage(seconds=seconds, bad_seconds=bad_seconds, pause=pause)
    for age in sorted(ages, reverse=True):
        of.sent(BYTES, is_bad=is_bad, now=NOW - age)
    now, began_at = NOW, NOW - sojourn
    for _ in range(4):
        found = POLICY.judge(
            Situation(
                0.0, 0.5, now - began_at, 1.0, now=now, n_bytes=BYTES, is_bad=is_bad, passage=of
            )
        )
        if found.delivers:
            break
        again = began_at + found.release_sojourn
        assert again >= now - 1e-6
        now = max(now, again) + 0.001
    assert found.delivers
    assert now - NOW <= GIVE_UP_SECONDS + D + MOST_PAUSE_SECONDS + 0.1
