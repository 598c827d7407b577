from __future__ import annotations

import pytest

from benchmarks.uplink_kills import By, Cloud, run

pytestmark = pytest.mark.usefixtures("forks")

LIFE_SECONDS = 0.5

KILLS = 2
SEED = 1
"""The first kill is of the edge, the second of the cloud."""


@pytest.mark.parametrize(("cloud", "lanes"), [("penstock", "size"), ("mosquitto", None)])
def test_kills_of_both_ends_break_no_promise(cloud: Cloud, lanes: By | None) -> None:
    """What was acknowledged on one side reaches the other in order, and at QoS 2 once.

    Each lane is an uplink as one without lanes is.
    """
    findings = run(cloud, KILLS, SEED, LIFE_SECONDS, lanes)
    assert not [each for each in findings if each.is_met is False]
