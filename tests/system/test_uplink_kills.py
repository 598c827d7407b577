from __future__ import annotations

import pytest

from benchmarks.uplink_kills import CLOUDS, Cloud, run

LIFE_SECONDS = 0.5

KILLS = 2
SEED = 1
"""The first kill is of the edge, the second of the cloud."""


@pytest.mark.parametrize("cloud", CLOUDS)
def test_kills_of_both_ends_break_no_promise(cloud: Cloud) -> None:
    """What was acknowledged on one side reaches the other in order, and at QoS 2 once."""
    findings = run(cloud, KILLS, SEED, LIFE_SECONDS)
    assert not [each for each in findings if each.is_met is False]
