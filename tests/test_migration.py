"""docs/reference/mosquitto-directives.md names what the import carries over."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.broker.import_mosquitto.directives import DIRECTIVES, canonical

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "reference" / "mosquitto-directives.md").read_text()


def test_every_directive_of_the_tables_is_carried_over() -> None:
    """And every one that is carried over stands in one of them."""
    tables = [rest.partition("\n\n")[0] for rest in TEXT.split("| mosquitto.conf |")[1:]]
    cells = [line.split("|")[1] for table in tables for line in table.splitlines()[2:]]
    words = [words.split()[0] for cell in cells for words in re.findall("`([^`]+)`", cell)]
    named = {canonical(word) for word in words}
    carried = {name for name, known in DIRECTIVES.items() if not known.note}
    assert carried - named == {"include_dir"}
    # What else stands there is carried over with some values.
    assert all(DIRECTIVES[name].same for name in named - carried)
