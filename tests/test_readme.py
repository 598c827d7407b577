"""README.md is short, and its figures are those of runs of code that is in the history."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.netem.figures.figure_file import CELL, SHOWN, figure_files, read_figure_file
from penstock.plugins.withholding.config import WithholdingConfig
from script.stale_figures import measured_by, unfounded

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "README.md"
README = PAGE.read_text()

MOST_LINES = 90
"""What somebody who has a minute reads."""

CODE = re.compile(r"^```.*?^```$|`[^`]*`", re.MULTILINE | re.DOTALL)
"""What is typed or printed: blocks and words."""

FIGURE = re.compile(
    r"\d[\d,]*\.\d[\d.]*\b|\d[\d.,]*\s?(?:µs|ms|s|kB|KB|MB|GB|%|\u00d7|times|messages)(?!\w)"
)
"""A number with a fraction, or with the unit of something that is measured."""

SETTINGS = {
    "20 s",  # max_withhold
    *("3.1", "3.1.1", "5.0", "3.11", "2.0"),  # of MQTT, Python, mosquitto and the licence
}
"""What was chosen, not measured."""


def test_it_is_short() -> None:
    """The rest stands in docs/."""
    assert len(README.splitlines()) <= MOST_LINES


def test_each_figure_comes_from_a_file() -> None:
    """No number that was measured is typed: `python -m script.fill_pages` writes it."""
    typed = CODE.sub("", CELL.sub("", SHOWN.sub("", README)))
    assert set(FIGURE.findall(typed)) <= SETTINGS


@pytest.mark.parametrize("file", sorted(figure_files(PAGE)), ids=lambda file: file.stem)
def test_each_file_is_of_a_commit_in_the_history(file: Path) -> None:
    """With the command that wrote it; `--stale` says whether the code has changed since."""
    origin, _ = read_figure_file(file)
    assert measured_by(origin.command)
    assert unfounded(origin, ROOT) is None


def test_every_row_that_is_lost_is_shown() -> None:
    """The rows in which mosquitto is ahead are named, as the run of the figures found them."""
    assert "docs/figures/benchmarks.json lost; mosquitto is ahead; rows" in README


def test_mistake_shown_is_what_is_said() -> None:
    """A mistake in a policy file is told as docs/how-to/operations.md tells it."""
    page = (ROOT / "docs" / "how-to" / "operations.md").read_text()
    shown = page.partition("$ penstock broker -c policy.yaml\npenstock broker: ")[2]
    keys = {"threshold_s": "ten", "polcy": "historic"}
    with pytest.raises(ConfigError) as caught:
        validate_config(WithholdingConfig, keys, "policy.yaml", "plugins.withholding")
    assert shown.partition("\n```")[0] == str(caught.value)
