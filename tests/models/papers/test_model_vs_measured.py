from __future__ import annotations

import pytest

from penstock.models.papers.model_vs_measured import Compared, Unit, compared_table, is_late
from penstock.netem.figures.estimates import Standing


def compared(by: float, late_seconds: float = 0.0) -> Compared:
    """Return a row whose measured figure is so many times the model's, in each of 8 units."""
    units = [Unit((n, 10.0), (by * n, 10.0)) for n in range(1, 9)]
    return Compared("003", "success", units, late_seconds)


@pytest.mark.parametrize(
    ("by", "standing"),
    [(1.0, Standing.MET), (1.09, Standing.MET), (0.85, Standing.MISSED), (1.2, Standing.MISSED)],
)
def test_a_row_agrees_within_a_tenth(by: float, standing: Standing) -> None:
    """Of the same units: that these differ widely from each other decides nothing."""
    row = compared(by)
    assert row.standing is standing
    assert row.modelled.high - row.modelled.low > 0.1
    assert row.over.low == pytest.approx(by)


def test_a_busy_machine_gives_no_verdict() -> None:
    """Clients that were late have measured it, and not the broker."""
    assert not is_late(compared(1.0, 0.04))
    assert is_late(compared(1.0, 0.06))
    assert compared_table([compared(2.0, 0.06)]).rows[0][-2] == "not shown: busy machine"
    assert compared_table([compared(2.0)]).rows[0][-2] == "missed"
