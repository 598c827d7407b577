from __future__ import annotations

from penstock.netem.runs.impairments import RedrawnPlan
from penstock.netem.runs.kinds import Cell, EachKind, Kind, cells

EACH = EachKind("good", ["small"], ["cubic", "bbr"], ["direct", "haproxy"])
KIND = Kind(redrawn=RedrawnPlan("x", 3.0))


def test_each_kind_has_a_cell_for_each_way_and_congestion_control() -> None:
    """In the order of the file, and of its ways."""
    found = cells({"loss": KIND, "cliff": KIND}, EACH)
    assert [cell.name for cell in found[:4]] == [
        "loss-cubic-direct",
        "loss-bbr-direct",
        "loss-cubic-haproxy",
        "loss-bbr-haproxy",
    ]
    assert [cell.kind for cell in found] == ["loss"] * 4 + ["cliff"] * 4
    assert all(cell.receivers == (cell.name,) for cell in found)


def test_receivers_that_share_a_link_have_numbers() -> None:
    """Behind the name of the host that they share it with."""
    (cell,) = cells({"two": Kind(receivers=2)}, EachKind("good", ["small"]))
    assert cell == Cell("two", "cubic", "direct", ("two-cubic-direct-1", "two-cubic-direct-2"))


def test_a_scenario_without_kinds_has_no_cells() -> None:
    """As most have none."""
    assert cells({}, None) == []
