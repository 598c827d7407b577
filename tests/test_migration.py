"""What docs/migration.md shows and says."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from penstock import __main__ as command_line
from penstock.broker.config.policy import parse_policy
from penstock.broker.import_mosquitto.directives import DIRECTIVES
from penstock.broker.plugin_loader import load_plugins

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "migration.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_the_policy_shown_is_one_that_loads() -> None:
    """Its keys are there."""
    for text in blocks("yaml"):
        load_plugins(parse_policy(text, "migration.md"), clock=time.monotonic)


@pytest.mark.parametrize("line", [line for text in blocks("sh") for line in text.splitlines()])
def test_every_command_shown_has_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A program and each of its options are there."""
    _, program, *arguments = line.split()
    assert command_line.main([program, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in arguments if word.startswith("-"))


def test_every_directive_of_the_table_is_carried_over() -> None:
    """And every one that is carried over stands in it."""
    table = TEXT.partition("| mosquitto.conf |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {words.split()[0] for cell in cells for words in re.findall("`([^`]+)`", cell)}
    carried = {name for name, known in DIRECTIVES.items() if not known.note}
    assert named == carried - {"include_dir"}
