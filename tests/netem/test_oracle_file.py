from __future__ import annotations

import math
from pathlib import Path

from penstock.netem.oracle_file import State, Told, read_told, write_told

GOOD, BAD = State(10.0, 2.5e6, 0.0, 0.04), State(17.5, None, 0.2, 0.2)


def test_what_is_told_is_read_again(tmp_path: Path) -> None:
    """Of every client; nothing else is left of writing it."""
    told = {"one": Told("cloud-a", "bbr", (GOOD, BAD)), "two": Told("cloud-b", "cubic", ())}
    write_told(tmp_path / "told.json", told)
    assert read_told(tmp_path / "told.json") == told
    assert [file.name for file in tmp_path.iterdir()] == ["told.json"]


def test_the_present_state_is_the_newest_that_has_begun() -> None:
    """Before the first there is none; behind the last nothing changes."""
    told = Told("cloud-a", "bbr", (GOOD, BAD))
    assert told.now(9.9) == (None, 10.0)
    assert told.now(10.0) == (GOOD, 17.5)
    assert told.now(17.4) == (GOOD, 17.5)
    assert told.now(17.5) == (BAD, math.inf)
    assert told.now(1e9) == (BAD, math.inf)
