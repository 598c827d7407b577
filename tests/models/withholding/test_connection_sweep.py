from __future__ import annotations

from typing import Any

import pytest

from penstock.models.withholding import connection_sweep
from penstock.models.withholding.connection import CASES
from penstock.models.withholding.connection_sweep import (
    CONSTANTS,
    TARGETS,
    Effort,
    connection_tables,
    sensitivity_tables,
)

TINY = Effort(1, 20.0)


def test_every_case_and_policy_has_a_row_and_every_target_a_verdict() -> None:
    """One link shows nothing: there is no interval."""
    told: list[str] = []
    tables = connection_tables(TINY, told.append)
    assert told == list(CASES)
    assert len(tables["connections"].rows) == 3 * len(CASES)
    assert [row[-1] for row in tables["targets"].rows] == ["not shown"] * len(TARGETS)


def test_constants_are_varied_one_at_a_time_and_stand_again() -> None:
    """Each in its module while it is varied, and no more after it."""
    before = [getattr(module, name) for module, name, _ in CONSTANTS]
    tables = sensitivity_tables(TINY, lambda _: None)
    assert len(tables["sensitivity"].rows) == 2 + 2 * len(CONSTANTS)
    assert [getattr(module, name) for module, name, _ in CONSTANTS] == before


def test_a_constant_that_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven links have an interval, and where no sample counts no bad path is seen."""
    recent = next(each for each in CONSTANTS if each.name == "RECENT_SECONDS")
    monkeypatch.setattr(connection_sweep, "CONSTANTS", (recent._replace(values=(0.0, 10.0)),))
    shown = (("bbr", "small p90"), ("bbr", "large mean"))
    monkeypatch.setattr(connection_sweep, "SENSITIVE_FIGURES", shown)
    rows: list[Any] = list(sensitivity_tables(Effort(7, 200.0), lambda _: None)["sensitivity"].rows)
    assert rows[1][:2] == ["± (95 %)", ""]
    assert float(rows[1][3]) > 0
    assert rows[2][3].endswith("*")
    assert rows[3][2:] == rows[0][2:]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1 / 512, "1/512"), (0.75, "3/4"), (0.01, "0.01"), (1e6, "1,000,000")],
)
def test_values_of_constants_are_shown_as_they_are_written(
    value: Any, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of two as fractions, and thousands apart."""
    wait = next(each for each in CONSTANTS if each.name == "WAIT_RATIO")
    monkeypatch.setattr(connection_sweep, "CONSTANTS", (wait._replace(values=(value, 2.0)),))
    monkeypatch.setattr(connection_sweep, "SENSITIVE_FIGURES", ())
    rows = sensitivity_tables(TINY, lambda _: None)["sensitivity"].rows
    assert rows[2][1] == shown
