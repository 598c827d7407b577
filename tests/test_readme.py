"""README.md is short, and its figures and the mistake it leads to are those of docs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()

MOST_LINES = 120
"""What somebody who has a minute reads."""


def test_it_is_short() -> None:
    """The rest stands in docs/."""
    assert len(README.splitlines()) <= MOST_LINES


def figures(text: str) -> list[tuple[str, ...]]:
    """Return the figures of each row of a table: ours, the peer's and their ratio."""
    rows = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)[2:]
    return [tuple(cell.strip() for cell in row.split("|")[1:4]) for row in rows]


def test_speed_is_that_of_the_whole_table() -> None:
    """Each row stands in docs/performance.md, and mixed messages come first in both."""
    shown = figures(README.partition("<!-- speed -->")[2].partition("<!-- /speed -->")[0])
    page = (ROOT / "docs" / "performance.md").read_text()
    known = figures(page.partition("<!-- benchmarks -->")[2].partition("\n\n")[2])
    assert len(shown) >= 10
    assert set(shown) <= set(known)
    assert shown[0] == known[0]


def test_every_row_that_is_lost_is_shown() -> None:
    """A ratio on mosquitto's side in docs/performance.md is not left out."""
    page = (ROOT / "docs" / "performance.md").read_text()
    table = page.partition("<!-- benchmarks -->")[2].partition("\n\n")[2].partition("\n\n")[0]
    shown = figures(README.partition("<!-- speed -->")[2])
    for row in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[1:]:
        name, *values, target = (cell.strip() for cell in row.split("|"))
        ratio = float(values[2])
        is_lost = ratio < 1 if target.startswith("at least") else ratio > 1
        if is_lost:
            assert tuple(values) in shown, name


def test_mistake_shown_is_what_is_said() -> None:
    """A mistake in a policy file is told as docs/operations.md tells it."""
    page = (ROOT / "docs" / "operations.md").read_text()
    shown = page.partition("$ penstock broker -c policy.yaml\npenstock broker: ")[2]
    keys = {"threshold_s": "ten", "polcy": "historic"}
    with pytest.raises(ConfigError) as caught:
        validate_config(WithholdingConfig, keys, "policy.yaml", "plugins.withholding")
    assert shown.partition("\n```")[0] == str(caught.value)


def test_the_reason_shown_is_what_the_gate_says() -> None:
    """`penstock why` prints the gate's words; the numbers are those of one run."""
    shown = README.partition("  because ")[2].partition("\n")[0]
    gate = WithholdingGate(WithholdingConfig(threshold_l=0.5))
    link = Link("dashboard")
    for second in (2, 3, 4):  # a small message in each
        link.rtt_latest, link.rtt_updated_at = 2.001, second + 0.1
        gate.observe(link)
    verdict = gate.decide(Message("pictures/gate", bytes(1_000_000)), link, 0.0, 4.2)
    assert not verdict.deliver
    number = re.compile(r"\d+(\.\d+)?")
    assert number.sub("N", shown) == number.sub("N", verdict.reason)
