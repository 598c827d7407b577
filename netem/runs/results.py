"""The folder of a result: what may be replaced, and what is written into it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.records import Tables
from penstock.netem.figures.tables import NAMES, Format, write_table
from penstock.netem.runs.run_file import RunInfo, read_run_info, write_run_info


def make_folder(folder: Path) -> None:
    """Make the folder of a result, or see that what is in it is an earlier one.

    Raises:
        NetemError: it holds something else, or cannot be made or written into.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            read_run_info(folder)
        # That nothing can be written is to be known before the run, not after it.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise NetemError(f"--out: {folder}: {error}") from error
    except NetemError as error:
        raise NetemError(
            f"--out: {folder} holds something else; allowed: a new or an empty folder, or that "
            "of an earlier result"
        ) from error


def write_result(folder: Path, rows: Tables, info: RunInfo, form: Format) -> None:
    """Write all that a report is made from; an earlier result is replaced.

    Raises:
        RunError: it cannot be written, such as on a disk that has become full.
    """
    write_run_info(folder, info)
    try:
        for kind, name in NAMES.items():
            for each in Format:
                (folder / f"{name}.{each}").unlink(missing_ok=True)
            write_table(folder, kind, getattr(rows, name), form)
    except OSError as error:
        raise RunError(f"{folder}: {error}") from error
