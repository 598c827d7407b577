"""The provenance of figures: the machine, the commit and the Python that made them."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

import psutil

from penstock.netem.links.network import FOLDER

CPU_INFO: Final = Path("/proc/cpuinfo")


def python() -> str:
    """Return the implementation of Python, and its version."""
    return f"{platform.python_implementation()} {platform.python_version()}"


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
