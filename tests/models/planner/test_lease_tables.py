from __future__ import annotations

import pytest

from penstock.models.kernels.lease_messages import VisibleMessages
from penstock.models.kernels.lease_setting import LeaseSetting
from penstock.models.kernels.lease_simulation import LeaseRuns
from penstock.models.planner.lease_tables import queue_tables


@pytest.mark.parametrize(
    ("setting", "has_network"),
    [
        (LeaseSetting(), True),
        (LeaseSetting("arrived"), False),
        (LeaseSetting(visibility_timeout=5.0), False),
    ],
)
def test_the_analytic_network_stands_where_it_describes_the_queue(
    setting: LeaseSetting,
    has_network: bool,  # noqa: FBT001 - a case
) -> None:
    """Out of order, with failed deliveries visible at once (paper 004, section 5)."""
    rows = queue_tables(setting, LeaseRuns(2, 5.0).run(setting, VisibleMessages))["queue"].rows
    assert len(rows) == 5
    assert all((row[2] != "-") is has_network for row in rows)
    assert all(float(row[1]) >= 0 for row in rows)
