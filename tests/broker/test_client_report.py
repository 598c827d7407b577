from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.broker.client_report import (
    ClientReport,
    DecisionFigures,
    LedgerFigures,
    LinkFigures,
    PassageFigures,
    SmallWaitFigures,
    TcpFigures,
    WithholdingFigures,
    as_json,
)

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "reference" / "console-api.md"

PASSAGE = PassageFigures(1.5, 700_000.0, None, 0.0, 5, 0.25)
DECISION = DecisionFigures("held", "closed", "congested", "cam/1", 1_000_000, 3.25, 0.25)
PARTS: tuple[Any, ...] = (
    ClientReport,
    LinkFigures,
    TcpFigures,
    WithholdingFigures,
    DecisionFigures,
    SmallWaitFigures,
    LedgerFigures,
    PassageFigures,
)


def test_a_report_is_an_object_of_objects() -> None:
    """Its parts keep their names, tuples within tuples too, and JSON takes all of it."""
    figures = WithholdingFigures(
        1, 2, 1, 0.5, DECISION, [DECISION], SmallWaitFigures(412, 1.25, 480.0), PASSAGE
    )
    decision = {
        "outcome": "held",
        "reason": "closed",
        "cause": "congested",
        "topic": "cam/1",
        "payload_bytes": 1_000_000,
        "withheld_seconds": 3.25,
        "age_seconds": 0.25,
    }
    assert json.loads(json.dumps(as_json(figures))) == {
        "withheld": 1,
        "withheld_total": 2,
        "released_total": 1,
        "look_again_in_seconds": 0.5,
        "last_decision": decision,
        "recent": [decision],
        "small_waits": {"messages": 412, "mean_seconds": 1.25, "since_seconds": 480.0},
        "passage": {
            "last_seconds": 1.5,
            "bytes_per_second": 700_000.0,
            "bad_bytes_per_second": None,
            "pause_seconds": 0.0,
            "on_way_bytes": 5,
            "on_way_seconds": 0.25,
        },
    }


def test_every_figure_is_documented() -> None:
    """Who sees a name in the JSON can look up what it is."""
    documented = set(re.findall(r"`(\w+)`", DOCUMENTATION.read_text()))
    assert [name for part in PARTS for name in part._fields if name not in documented] == []
