"""The folder of a result: what may be replaced, and what is written into it."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psutil

from penstock.netem.errors import NetemError, RunError
from penstock.netem.figures.records import Tables
from penstock.netem.figures.tables import NAMES, Format, write_table
from penstock.netem.links.network import FOLDER
from penstock.netem.runs.run_file import RunInfo, read_run_info, write_run_info

CPU_INFO: Final = Path("/proc/cpuinfo")


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


def machine() -> str:
    """Return cores, model, memory and kernel of this machine."""
    gibibytes = psutil.virtual_memory().total / (1 << 30)
    kernel = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {_model()}, {gibibytes:.0f} GiB, {kernel}"


def commit() -> str | None:
    """Return the commit of this checkout, and whether it was changed; None where it is none."""
    if not (FOLDER / ".git").exists():
        return None
    short = _git("rev-parse", "--short", "HEAD")
    if not short:
        return None
    is_changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{short} and changes" if is_changed else short


def _model() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    try:
        shown = subprocess.run(  # noqa: S603 - the words are ours
            ["git", "-C", str(FOLDER), *arguments],  # noqa: S607 - where it is differs
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return shown.stdout.strip()
