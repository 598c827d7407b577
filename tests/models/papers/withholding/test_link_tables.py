"""What the default policy does on each kind of bad link, in virtual time.

The bounds are those that a change of the policy has to keep. A simulation has no chance in it but
that of its seeds, so each is close to what is reached.
"""

from __future__ import annotations

from functools import cache

import pytest

from penstock.models.kernels.link_simulation import Latencies
from penstock.models.papers.withholding import link_tables
from penstock.models.papers.withholding.link_kinds import KINDS
from penstock.models.papers.withholding.link_tables import (
    CELLS,
    GATES,
    Cell,
    Effort,
    gain,
    large_ratio,
    links_tables,
    run,
    sensitivity_tables,
    share,
    small_p90_ratio,
)
from penstock.plugins.withholding import adaptive, passage

EFFORT = Effort(links=6, seconds=240.0)

SHARES = {
    Cell("loss", "cubic", is_relayed=False): 0.6,
    Cell("loss", "cubic", is_relayed=True): 0.55,
    Cell("cliff", "cubic", is_relayed=False): 0.25,
    Cell("cliff", "cubic", is_relayed=True): 0.6,
    Cell("far", "cubic", is_relayed=False): 0.75,
    Cell("far", "cubic", is_relayed=True): 0.75,
    Cell("changing", "cubic", is_relayed=False): 0.15,
    Cell("changing", "cubic", is_relayed=True): 0.4,
    Cell("shared", "cubic", is_relayed=False): 0.85,
    Cell("shared", "cubic", is_relayed=True): 0.8,
    Cell("idle", "cubic", is_relayed=False): 0.2,
    Cell("idle", "bbr", is_relayed=False): 0.45,
    Cell("idle", "bbr", is_relayed=True): 0.7,
}
"""The least share of the oracle's gain that is closed. Below the target of 0.7,
docs/explanation/withholding.md says what limits it."""

PRICES = {
    Cell("loss", "cubic", is_relayed=False): 1.3,
    Cell("loss", "bbr", is_relayed=False): 3.5,
    Cell("cliff", "cubic", is_relayed=False): 1.6,
    Cell("far", "cubic", is_relayed=True): 1.7,
    Cell("changing", "cubic", is_relayed=False): 2.5,
    Cell("outages", "cubic", is_relayed=False): 1.25,
    Cell("shared", "cubic", is_relayed=False): 2.1,
    Cell("bursts", "cubic", is_relayed=False): 0.8,
    Cell("bursts", "bbr", is_relayed=False): 2.4,
    Cell("idle", "cubic", is_relayed=False): 2.2,
    Cell("idle", "bbr", is_relayed=False): 3.4,
}
"""The greatest mean of large messages over that without a policy."""

LATER = {
    # A burst stops small messages, too, and what a policy moves meets another burst by chance: with
    # bbr, the oracle makes small messages later as well.
    Cell("bursts", "bbr", is_relayed=False): 2.7,
    Cell("bursts", "bbr", is_relayed=True): 3.3,
    Cell("idle", "cubic", is_relayed=True): 1.15,
}
"""The p90 of small messages over that without a policy, where it may be above 1.1."""


@cache
def found(cell: Cell, gate: str = "adaptive") -> list[Latencies]:
    """Return the latencies of some links."""
    return run(cell, GATES[gate], EFFORT)


@pytest.mark.parametrize("cell", SHARES, ids=str)
def test_adaptive_closes_its_share_of_what_an_oracle_gains(cell: Cell) -> None:
    """Small messages wait less, where a gate that knows the link could make them."""
    baseline, oracle = found(cell, "none"), found(cell, "oracle")
    assert gain(oracle, baseline).value > 0.2
    assert share(found(cell), oracle, baseline).value >= SHARES[cell]


@pytest.mark.parametrize("cell", PRICES, ids=str)
def test_large_messages_pay_a_bounded_price(cell: Cell) -> None:
    """The mean of large messages over that without a policy."""
    assert large_ratio(found(cell), found(cell, "none")).value <= PRICES[cell]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_small_messages_are_hardly_later(cell: Cell) -> None:
    """The p90 of small messages is at most 1.1 of that without a policy, but for `LATER`."""
    assert small_p90_ratio(found(cell), found(cell, "none")).value <= LATER.get(cell, 1.1)


def test_a_large_message_that_is_quick_on_a_bad_path_is_not_held() -> None:
    """With bbr a lossy path carries a picture in a second or two; in time, that is known."""
    cell = Cell("loss", "bbr", is_relayed=True)
    longer = Effort(links=2, seconds=1500.0)
    baseline, ours, held = (
        run(cell, GATES[name], longer) for name in ("none", "adaptive", "conservative")
    )
    assert large_ratio(ours, baseline).value < large_ratio(held, baseline).value / 2


def test_there_is_a_cell_for_each_kind_and_way() -> None:
    """Direct and behind a relay; both congestion controls where that makes a difference."""
    assert {cell.kind for cell in CELLS} == set(KINDS)
    assert len(set(CELLS)) == len(CELLS) == 22
    assert str(Cell("loss", "bbr", is_relayed=True)) == "loss, bbr, relay"


def test_tables_have_a_row_for_each_cell_and_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all gates close and cost, and what half and double of each constant change."""
    cells = (Cell("cliff", "cubic", is_relayed=False), Cell("cliff", "cubic", is_relayed=True))
    monkeypatch.setattr(link_tables, "CELLS", cells)
    told: list[str] = []
    tables = links_tables(Effort(1, 60.0), told.append)
    assert [row[0] for row in tables["shares"].rows] == list(map(str, cells)) == told
    assert len(tables["prices"].rows) == 2
    rows = sensitivity_tables(Effort(1, 60.0), told.append)["sensitivity"].rows
    assert [row[:2] for row in rows[:3]] == [
        ["as they are", ""],
        ["`WAIT_RATIO`", "1"],
        ["`WAIT_RATIO`", "4"],
    ]
    assert ["`exposure`", "1"] in [row[:2] for row in rows]
    assert adaptive.WAIT_RATIO == 2.0


def test_pauses_are_what_sees_a_cliff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its round trips are good as soon as a picture is through."""
    cell = Cell("cliff", "cubic", is_relayed=False)
    monkeypatch.setattr(passage, "PAUSE_RATIO", 0.0)
    without = run(cell, GATES["adaptive"], EFFORT)
    with_pauses = share(found(cell), found(cell, "oracle"), found(cell, "none")).value
    assert share(without, found(cell, "oracle"), found(cell, "none")).value < with_pauses / 2
