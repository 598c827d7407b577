from __future__ import annotations

import pytest

from benchmarks.uplink_kills import CLOUDS, QUICK_KILLS, Cloud, run

LIFE_SECONDS = 0.5


@pytest.mark.parametrize("cloud", CLOUDS)
def test_kills_of_both_ends_break_no_promise(cloud: Cloud) -> None:
    """What was acknowledged on one side reaches the other in order, and at QoS 2 once."""
    findings = run(cloud, QUICK_KILLS, 1, LIFE_SECONDS)
    assert not [each for each in findings if each.is_met is False]
