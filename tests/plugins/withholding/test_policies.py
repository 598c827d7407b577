from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.policies import (
    AdaptivePolicy,
    ConservativePolicy,
    HistoricPolicy,
    NonePolicy,
    PaperPolicy,
    ProbabilisticPolicy,
    make_policy,
)
from penstock.plugins.withholding.policy import Policy, Situation

D = 20.0
NAMES = ("none", "conservative", "probabilistic", "historic")

latencies = st.floats(0, 1e4)
sojourns = st.floats(0, 1e4)
situations = st.builds(
    Situation,
    l_now=latencies,
    threshold_l=st.floats(1e-6, 100),
    sojourn=sojourns,
    probe_period=st.floats(0.01, 100),
)


def policy_named(name: str) -> Policy:
    """Return a policy with the paper's parameters."""
    return make_policy(name, max_withhold=D, congestion_rate=1 / 17.5)


def at(l_now: float, sojourn: float = 0.0, *, threshold_l: float = 0.5) -> Situation:
    """Return a situation with T_Q = 5 s, as in the field run of the paper."""
    return Situation(l_now, threshold_l, sojourn, 5.0)


HALF_LIFE_10 = math.log(2) / 10
"""λ at which p halves every 10 s."""


@pytest.mark.parametrize(
    ("name", "l_now", "sojourn", "limit", "release", "delivers"),
    [
        # T_Q = 1 s and threshold_l = 3 s: 0.3 s, ten times for 1 MB. D = 20 s.
        ("none", 1e9, 0, math.inf, math.inf, True),
        ("conservative", 1.49, 0, 1.5, 20, True),
        ("conservative", 1.5, 0, 1.5, 20, False),
        ("conservative", 30, 20, 1.5, 20, False),
        ("conservative", 30, 20.01, 1.5, 20, True),
        # ΔS = 9: p = 2 ** -1, so the limit is 1 + l_now / 2 + 1.5 / 2.
        ("probabilistic", 3.4, 9, 3.45, 20, True),
        ("probabilistic", 3.6, 9, 3.55, 20, False),
        ("probabilistic", 13, 9, 8.25, 20, False),
        # ΔS = 0: p = 2 ** -0.1 = 0.933, near to 1: congestion is expected to last.
        ("probabilistic", 13, 0, 13.230, 20, True),
        ("probabilistic", 30, 0, 29.091, 20, False),
        # ΔS = 19: p = 2 ** -2, so the limit is 1 + l_now / 4 + 3 * 1.5 / 4.
        ("probabilistic", 2.8, 19, 2.825, 20, True),
        ("probabilistic", 3.4, 19, 2.975, 20, False),
        ("probabilistic", 13, 19, 5.375, 20, False),
        # ΔS = 29: p = 2 ** -3 and the limit 1 + l_now / 8 + 7 * 1.5 / 8, but D has passed.
        ("probabilistic", 13, 29, 3.9375, 20, True),
        # The limit is 1 + 1.5 + ΔS, the wait ends at l_now - 2.5.
        ("historic", 2.4, 0, 2.5, -0.1, True),
        ("historic", 2.5, 0, 2.5, 0, False),
        ("historic", 13, 0, 2.5, 10.5, False),
        ("historic", 13, 10.5, 13, 10.5, False),
        ("historic", 13, 10.6, 13.1, 10.5, True),
        ("historic", 200, 150, 152.5, 197.5, False),
    ],
)
def test_table_computed_by_hand(
    name: str, l_now: float, sojourn: float, limit: float, release: float, *, delivers: bool
) -> None:
    """What L_now is held against, when the wait ends, and the decision (equations 2 to 6)."""
    policy = make_policy(name, max_withhold=D, congestion_rate=HALF_LIFE_10)
    assert isinstance(policy, PaperPolicy)
    situation = Situation(l_now, 3.0, sojourn, 1.0)
    judgement = policy.judge(situation)
    assert policy.latency_limit(situation) == pytest.approx(limit, abs=0.0005)
    assert policy.release_sojourn(situation) == pytest.approx(release)
    assert judgement.delivers is delivers
    assert delivers or judgement.release_sojourn == pytest.approx(release)


@pytest.mark.parametrize(
    ("name", "waits"),
    [("none", 0.0), ("conservative", 20.0), ("probabilistic", 20.0), ("historic", 27.5)],
)
def test_wait_in_congestion_that_does_not_end_is_the_one_computed_by_hand(
    name: str, waits: float
) -> None:
    """L_now = 30 s throughout, a decision every second: the first second beyond is the release."""
    policy = make_policy(name, max_withhold=D, congestion_rate=HALF_LIFE_10)
    second = 0
    while not policy.judge(Situation(30.0, 3.0, float(second), 1.0)).delivers:
        second += 1
    assert second == math.floor(waits) + 1 if waits else second == 0


@given(situations)
def test_none_always_delivers(situation: Situation) -> None:
    """The baseline withholds nothing."""
    assert NonePolicy().judge(situation).delivers


@given(situations)
def test_each_policy_delivers_below_half_threshold_l(situation: Situation) -> None:
    """A path as good as uncongested never causes a wait."""
    calm = situation._replace(l_now=situation.threshold_l / 2 * 0.999)
    assert all(policy_named(name).judge(calm).delivers for name in NAMES)


@given(situations, latencies)
def test_a_lower_latency_never_causes_a_wait(situation: Situation, lower: float) -> None:
    """Each policy is monotone in L_now."""
    better = situation._replace(l_now=min(lower, situation.l_now))
    for name in NAMES:
        policy = policy_named(name)
        if policy.judge(situation).delivers:
            assert policy.judge(better).delivers, name


@given(situations, sojourns)
def test_conservative_and_historic_only_soften_with_time(
    situation: Situation, longer: float
) -> None:
    """What would go now would go later too, if nothing else changes."""
    later = situation._replace(sojourn=max(longer, situation.sojourn))
    for policy in (ConservativePolicy(D), HistoricPolicy()):
        if policy.judge(situation).delivers:
            assert policy.judge(later).delivers, policy.name


@given(situations)
def test_release_sojourn_is_where_the_wait_ends(situation: Situation) -> None:
    """A withheld message waits until its release sojourn and goes right after it."""
    for name in NAMES:
        policy = policy_named(name)
        if policy.judge(situation).delivers:
            continue
        release = policy.judge(situation).release_sojourn
        # Margins are above the rounding of numbers up to 1e4.
        assert release >= situation.sojourn - 1e-9, name
        assert policy.judge(situation._replace(sojourn=release + 1e-6)).delivers, name
        before = situation._replace(sojourn=max(situation.sojourn, release - 1e-6))
        assert not policy.judge(before).delivers, name


@pytest.mark.parametrize(
    ("name", "situation", "cause", "why"),
    [
        ("none", at(9.0), "no_limit", "L_now 9 s, no limit"),
        ("none", at(0.2), "calm", "L_now 0.2 s, no limit"),
        ("conservative", at(0.2), "calm", "L_now 0.2 s < 0.25 s"),
        ("conservative", at(9.0), "congested", "L_now 9 s >= 0.25 s"),
        ("conservative", at(9.0)._replace(is_overdue=True), "overdue", "L_now 9 s >= 0.25 s"),
        ("conservative", at(9.0, 21.0), "bound", "withheld 21 s > 20 s; L_now 9 s"),
        ("historic", at(5.0), "cost", "L_now 5 s < 5.25 s"),
    ],
)
def test_each_judgement_says_why(name: str, situation: Situation, cause: str, why: str) -> None:
    """In a word, which is counted, and in the numbers that were compared."""
    assert policy_named(name).judge(situation)[1:3] == (cause, why)


@pytest.mark.parametrize("name", NAMES)
def test_policies_are_made_by_their_name(name: str) -> None:
    """The name in a policy file is the name that reports show."""
    assert policy_named(name).name == name


def test_parameters_reach_the_policy() -> None:
    """max_withhold and congestion_rate are those given."""
    policy = make_policy("probabilistic", max_withhold=3.0, congestion_rate=0.5)
    assert policy == ProbabilisticPolicy(3.0, 0.5)
    assert make_policy("conservative", max_withhold=3.0, congestion_rate=0.5).max_withhold == 3.0
    made = make_policy("adaptive", max_withhold=3.0, congestion_rate=0.5, exposure=1.5)
    assert made == AdaptivePolicy(3.0, 1.5)


def test_unknown_policy_names_what_is_allowed() -> None:
    """A wrong name says which ones there are."""
    with pytest.raises(ValueError, match="'fast'; allowed: none, conservative"):
        make_policy("fast", max_withhold=D, congestion_rate=1.0)


def test_pure_modules_load_without_clock_chance_and_io() -> None:
    """Policies, classes, thresholds and profile import with asyncio, time and the like blocked."""
    blocked = ["asyncio", "selectors", "socket", "ssl", "threading", "time", "random"]
    program = (
        f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n"
        "from penstock.plugins.withholding import policies, thresholds\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
