from __future__ import annotations

from pathlib import Path

import pytest

from penstock.models.planner import delivery, link_policies
from penstock.models.planner.fleet import read_fleet
from penstock.models.planner.planning import make_plan
from penstock.models.recording.advice import tables
from penstock.models.recording.observed_fleet import observe
from tests.models.recording.small_recording import small_recording


def test_changes_stand_beside_the_present_settings_with_their_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is enough is kept; a gain is the planner's own prediction."""
    monkeypatch.setattr(delivery, "MESSAGES", 1_500)
    monkeypatch.setattr(link_policies, "LINKS", 2)
    monkeypatch.setattr(link_policies, "MOST_SECONDS", 300.0)
    seen = observe(small_recording(tmp_path))
    seen.write(tmp_path / "fleet.yaml")
    plan = make_plan(read_fleet(tmp_path / "fleet.yaml"), print)
    found = tables(seen, plan)
    changes = {row[0]: row[1:] for row in found["changes"].rows}
    assert changes["`limits.connections`"] == ["no limit", "19 at least", "nothing: keep it"]
    assert changes["`limits.queued_bytes`"][0::2] == ["95.4 MiB", "nothing: keep it"]
    now, planned, gain = changes["`limits.queued_messages`"]
    assert (now, planned) == ("3", "1,000 at least")
    assert "sensors-temp to operator: " in gain
    assert "delivered in place of" in gain
    assert changes["`withholding.policy`"][:2] == ["none", plan.policy]
    assert "operator: p90 of small messages" in changes["`withholding.policy`"][2]
    assert changes["`withholding.threshold_s`"][:2] == ["no message is large", "10000"]
    assert changes["`probing.probe_period`"][:2] == ["5 s", "1 s"]
    assert "p99 of small messages" in changes["connections of operator"][2]
    measured = {row[0]: row[1:] for row in found["measured"].rows}
    assert measured["of a core"][0] == "2.0%"
    assert measured["memory"][0] == "76.3 MiB"
    assert measured["dropped since its start: queue_full"] == ["7", "-"]
    assert measured["sojourn of released messages, mean"] == ["1.5 s", "-"]
    assert [row[0] for row in found["assumed"].rows] == seen.notes
