from __future__ import annotations

import pytest

from benchmarks.queue_kills import QUICK_KILLS, QUICK_LIFE_SECONDS, Server, run

pytestmark = pytest.mark.usefixtures("forks")


@pytest.mark.parametrize("kind", QUICK_KILLS)
def test_kills_at_random_moments_break_no_promise(kind: Server) -> None:
    """What was acknowledged is delivered to each group, in order by key, and stored once."""
    findings = run(kind, QUICK_KILLS[kind], 1, QUICK_LIFE_SECONDS)
    assert not [each for each in findings if each.is_met is False]
    found = {each.name: each.value for each in findings}
    assert found["messages acknowledged to their publishers"] > 0
    assert found["kills of the server"] > 0
    assert found["kills of consumers"] > 0
