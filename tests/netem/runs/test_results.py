from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.table_files import NAMES, Format, read_table
from penstock.netem.figures.table_rows import Tables, WithheldRow
from penstock.netem.runs.results import join_infos, make_folder, write_result
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


def test_runs_with_other_seeds_are_one() -> None:
    """Seeds, remarks and processor times stand together, and the command has all seeds."""
    other = replace(
        INFO,
        scenario=replace(INFO.scenario, seeds=[8, 9]),
        command="penstock netem run small --seeds 8,9 --brokers a,b",
        date="2026-01-02T00:00:00+00:00",
        remarks=["seed 8: busy"],
    )
    both = join_infos([INFO, other], ["one", "other"])
    assert both.scenario == replace(INFO.scenario, seeds=[*INFO.scenario.seeds, 8, 9])
    seeds = ",".join(map(str, both.scenario.seeds))
    assert both.command == f"penstock netem run small --seeds {seeds}"
    assert both.remarks == ["seed 8: busy"]
    assert both.date == INFO.date
    turned = join_infos([other, INFO], ["other", "one"])
    assert turned.command.startswith("penstock netem run small --brokers a,b --seeds 8,9,")
    assert join_infos([INFO], ["one"]).scenario == INFO.scenario


def test_runs_of_other_things_are_not_joined() -> None:
    """What differs is named; a seed that is in two runs would count twice."""
    others = replace(INFO.scenario, seeds=[8])
    alike = replace(INFO, scenario=others)
    with pytest.raises(NetemError, match=r"^b: its commit is not that of a: c0ffee, not None;"):
        join_infos([INFO, replace(alike, commit="c0ffee")], ["a", "b"])
    with pytest.raises(NetemError, match=r"^b: its scenario is not that of a; allowed: runs that"):
        join_infos([INFO, replace(alike, scenario=replace(others, name="big"))], ["a", "b"])
    with pytest.raises(NetemError, match=f"^seed {INFO.scenario.seeds[0]} is in more than one"):
        join_infos([INFO, INFO], ["a", "b"])
