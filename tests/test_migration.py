"""What docs/migration.md shows and says."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.broker.import_mosquitto.directives import DIRECTIVES

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "migration.md").read_text()


def test_every_directive_of_the_table_is_carried_over() -> None:
    """And every one that is carried over stands in it."""
    table = TEXT.partition("| mosquitto.conf |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    named = {words.split()[0] for cell in cells for words in re.findall("`([^`]+)`", cell)}
    carried = {name for name, known in DIRECTIVES.items() if not known.note}
    assert named == carried - {"include_dir"}
