from __future__ import annotations

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.delivery_path import PUBLISHER, compose
from penstock.models.kernels.delivery_simulation import DeliveryRuns
from penstock.models.planner.path_tables import path_tables


def test_a_path_is_told_stage_by_stage() -> None:
    """What arrives how fast, and at each stage the closed form where there is one."""
    path = compose(
        publisher_is_reliable=True, subscriber_is_reliable=True, peers={PUBLISHER: OnOff(40, 40)}
    )
    found = path_tables(path, DeliveryRuns(2, 2000).run(path))
    assert found["path"].rows[0] == ["success", "1.000", "1"]
    assert [row[0] for row in found["path"].rows[2:]] == [
        "response at 0.5, s",
        "response at 0.9, s",
        "response at 0.99, s",
    ]
    first, second = found["stages"].rows[:2]
    assert first[:2] == ["publisher's application", "0.062"]
    assert first[-2:] == ["21.4", "0"]
    assert second[-2:] == ["-", "-"]
