"""What a result needs to be believed: machine, versions, commit, date, command."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from benchmarks.peers import ROOT, Peer

CPU_INFO: Final = Path("/proc/cpuinfo")


def _cpu_model() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    try:
        shown = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return shown.stdout.strip()


def _commit() -> str:
    commit = _git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit} and changes" if changed else commit


def describe_run(command: str, peers: Iterable[Peer]) -> dict[str, str]:
    """Return everything by name, as text.

    Args:
        command: as the user would write it again.
        peers: those measured.
    """
    gibibytes = psutil.virtual_memory().total / (1 << 30)
    versions = ", ".join(
        f"{peer.name} {peer.version()} ({peer.about})" for peer in peers if not peer.is_ceiling
    )
    return {
        "command": command,
        "commit": _commit(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {_cpu_model()}, {gibibytes:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": versions,
    }
