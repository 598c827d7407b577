from __future__ import annotations

import dataclasses

import pytest

from penstock.plugins.withholding.policies import make_policy
from penstock.plugins.withholding.policy import Situation

NAMES = ("none", "conservative", "probabilistic", "historic", "adaptive")


@pytest.mark.parametrize("name", NAMES)
def test_policies_are_frozen_and_equal_by_value(name: str) -> None:
    """A policy has no state: two of the same values are the same, and none can change."""
    policy = make_policy(name, max_withhold=20.0, congestion_rate=1.0)
    assert policy == make_policy(name, max_withhold=20.0, congestion_rate=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_withhold = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_calm_path_is_no_reason_to_wait(name: str) -> None:
    """Without anything but a good RTT every policy delivers."""
    policy = make_policy(name, max_withhold=20.0, congestion_rate=1.0)
    assert policy.judge(Situation(0.1, 0.5, 0.0, 1.0)).delivers


def test_only_adaptive_learns() -> None:
    """For the others nothing of large messages has to be kept."""
    made = [make_policy(name, max_withhold=20.0, congestion_rate=1.0) for name in NAMES]
    assert [policy.learns for policy in made] == [False] * 4 + [True]
