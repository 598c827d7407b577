from __future__ import annotations

import io

from rich.console import Console

from penstock.spark_bridge.pipelines.progress import LINE_SECONDS, Display, describe, to_table
from penstock.spark_bridge.pipelines.running import Summary

FULL = Summary(
    rows=1_200,
    micro_batches=3,
    seconds=4.5,
    late_groups=4,
    observed={"messages": 1_200, "expired": 2, "malformed": 3, "incomplete": 0},
    rate=400.0,
    lag={"q/0": 5, "q/1": 6},
)
PLAIN = Summary(1_200, 2, 3.25, 0, {}, 0.0, {"q/0": 0})


def test_a_line_names_only_what_happened() -> None:
    """Zeros are left out."""
    assert describe("all", PLAIN) == "all: 1,200 messages in 2 micro-batches, 3.2 s"
    assert describe("windows", FULL) == (
        "windows: 1,200 messages in 3 micro-batches, 4.5 s, late 4, expired 2, malformed 3, 11 wait"
    )


def test_a_terminal_has_a_table_of_the_queries() -> None:
    """Rows, rate, lag, time of a batch, and what was not used."""
    file = io.StringIO()
    with Display(Console(file=file, force_terminal=True, width=100), lambda _: None) as display:
        display.show({"windows": FULL})
    shown = file.getvalue()
    for figure in ("windows", "1,200", "400", "11", "1.50", "3", "2", "4"):
        assert figure in shown
    assert to_table({"windows": FULL, "all": PLAIN}).row_count == 2


def test_elsewhere_there_is_a_line_at_times() -> None:
    """The first at once, then not more than one in some seconds for each query."""
    told: list[str] = []
    now = [0.0]
    with Display(Console(file=io.StringIO()), told.append, lambda: now[0]) as display:
        for second in (0.0, 1.0, LINE_SECONDS, LINE_SECONDS + 1):
            now[0] = second
            display.show({"windows": FULL, "none": Summary(0, 0, 0.0, 0, {}, 0.0, {})})
    assert len(told) == 2
