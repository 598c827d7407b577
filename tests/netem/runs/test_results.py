from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.records import Tables, WithheldRow
from penstock.netem.figures.tables import NAMES, Format, read_table
from penstock.netem.runs.results import make_folder, write_result
from penstock.netem.runs.run_file import RunInfo, read_run_info
from tests.helpers.experiments import scenario

INFO = RunInfo(
    scenario=scenario(),
    length="full",
    command="penstock netem run small",
    commit=None,
    machine="a machine",
    python="3.11",
    date="2026-01-01T00:00:00+00:00",
    versions={"penstock": "penstock 1"},
    processor=[],
)
ROWS = Tables(withheld=[WithheldRow("penstock", 1, "sub", 0.0, 1.0, 1)])


@pytest.mark.parametrize("form", list(Format))
def test_a_result_is_read_as_it_was_written(form: Format, tmp_path: Path) -> None:
    """All tables are there, and what was run."""
    write_result(tmp_path, ROWS, INFO, form)
    assert read_run_info(tmp_path) == INFO
    assert {each: len(read_table(tmp_path, each)) for each in NAMES} == {
        each: int(each is WithheldRow) for each in NAMES
    }


def test_an_earlier_result_is_replaced_whatever_its_format(tmp_path: Path) -> None:
    """No table of it is left to be read; a note of the user's stays."""
    write_result(tmp_path, Tables(), INFO, Format.PARQUET)
    (tmp_path / "note.txt").write_text("mine")
    make_folder(tmp_path)
    write_result(tmp_path, ROWS, INFO, Format.CSV)
    assert len(read_table(tmp_path, WithheldRow)) == 1
    assert not list(tmp_path.glob("*.parquet"))
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_something_else_is_never_overwritten(tmp_path: Path) -> None:
    """A folder with other things is refused, and so is a file; a new folder is made."""
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(NetemError, match="holds something else; allowed: a new or an empty"):
        make_folder(tmp_path)
    with pytest.raises(NetemError, match="--out"):
        make_folder(tmp_path / "thesis.tex")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(NetemError, match="holds something else"):
        make_folder(tmp_path)
    make_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()


def test_a_result_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    """Such as on a full disk, which is no mistake in the arguments."""
    with pytest.raises(RunError, match="none"):
        write_result(tmp_path / "none", ROWS, INFO, Format.CSV)
    (tmp_path / "messages.csv").mkdir()
    with pytest.raises(RunError, match="messages"):
        write_result(tmp_path, ROWS, INFO, Format.CSV)


def test_a_folder_into_which_nothing_can_be_written_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is there already: half an hour later, nothing could be saved any more."""

    def refuse(**_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("penstock.netem.runs.results.tempfile.TemporaryFile", refuse)
    with pytest.raises(NetemError, match=f"^--out: {tmp_path}: .*Read-only file system"):
        make_folder(tmp_path)
