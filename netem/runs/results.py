"""The folder of a result: the files that may be replaced there, and the files that a run writes."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.table_files import NAMES, Format, write_table
from penstock.netem.figures.table_rows import Tables
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


def join_infos(infos: Sequence[RunInfo], names: Sequence[str]) -> RunInfo:
    """Return the description of one run with the seeds of several.

    Raises:
        NetemError: they differ in more than their seeds, or have a seed in common: then units are
            not comparable, or not independent.
    """
    first, *others = infos
    for info, name in zip(others, names[1:], strict=True):
        for what, one, other in (
            ("scenario", replace(first.scenario, seeds=[]), replace(info.scenario, seeds=[])),
            *((key, getattr(first, key), getattr(info, key)) for key in _ALIKE),
        ):
            if one != other:
                told = f": {other}, not {one}" if isinstance(one, str | None) else ""
                raise NetemError(
                    f"{name}: its {what} is not that of {names[0]}{told}; allowed: runs that "
                    "differ in their seeds alone"
                )
    seeds = [seed for info in infos for seed in info.scenario.seeds]
    if several := [seed for seed, times in Counter(seeds).items() if times > 1]:
        raise NetemError(
            f"seed {several[0]} is in more than one of {', '.join(names)}; allowed: each seed once"
        )
    return replace(
        first,
        scenario=replace(first.scenario, seeds=seeds),
        command=_with_seeds(first.command, seeds),
        processor=[each for info in infos for each in info.processor],
        remarks=[each for info in infos for each in info.remarks],
    )


_ALIKE: Final = ("length", "commit", "machine", "python", "versions")
"""The attributes that runs of one report have in common, beside their scenario."""


def _with_seeds(command: str, seeds: Sequence[int]) -> str:
    words = shlex.split(command)
    if "--seeds" in words:
        place = words.index("--seeds")
        del words[place : place + 2]
    return shlex.join([*words, "--seeds", ",".join(map(str, seeds))])
