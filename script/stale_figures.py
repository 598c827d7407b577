"""Figures whose code has changed since they were measured, so that pages may be out of date.

The file of a run holds its command and commit. The command tells what was measured; git tells
which commits have changed that since.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.netem.figures.figure_file import Origin, read_figure_file

_WITHHOLDING: Final = ("plugins/withholding", "plugins/probing")
_BROKER: Final = ("broker", *_WITHHOLDING)
_QUEUE: Final = ("plugins/queue",)

MEASURED: Final = {
    "script/demo": (
        *_BROKER,
        "lanes",
        "policy.example.yaml",
        "script/demo_program",
        "netem/links/relay.py",
    ),
    "penstock bench": (*_BROKER, "plugins", "benchmarks", "policy.example.yaml"),
    "penstock netem run": (*_BROKER, "netem"),
    "penstock netem run links": (*_BROKER, "lanes", "netem"),
    "penstock netem run site-": (*_BROKER, "edge_proxy", "netem"),
    "penstock plan dequeue": (*_QUEUE, "models/papers/dequeue", "models/kernels"),
    "penstock plan fabric": (*_QUEUE, "models/papers/fabric"),
    "penstock plan fleet": ("models", *_WITHHOLDING, *_QUEUE),
    "penstock plan papers": ("models", *_WITHHOLDING, *_QUEUE),
    "penstock plan patterns": ("models/papers/patterns", "models/kernels", *_QUEUE),
    "penstock plan visibility": ("models/papers/visibility", "models/kernels", *_QUEUE),
    "penstock plan withholding": ("models/papers/withholding", *_WITHHOLDING),
    "penstock plan links": ("models/papers/withholding", "models/kernels", *_WITHHOLDING),
    "python -m benchmarks.cluster": (*_BROKER, "plugins/cluster", "benchmarks/cluster.py"),
    "python -m benchmarks.fabric_faults": (*_QUEUE, "models/papers/fabric", "benchmarks"),
    "python -m benchmarks.console_cost": (*_BROKER, "plugins", "benchmarks"),
    "python -m benchmarks.first_minute": ("pyproject.toml", "plugins/access", "broker/__main__.py"),
    "python -m benchmarks.option_costs": (*_BROKER, "plugins", "benchmarks"),
    "python -m benchmarks.queue_strategies": (*_QUEUE, "benchmarks/queue_strategies.py"),
    "python -m benchmarks.redis_store": (*_QUEUE, "benchmarks/redis_store.py"),
    "python -m benchmarks.spark_ingest": (*_QUEUE, "spark_bridge", "benchmarks/spark_ingest.py"),
}
"""The files and folders that decide on a command's figures, by the beginning of the command."""

CHANGED: Final = " and changes"
"""The words that `provenance.commit` adds to a commit with uncommitted changes."""


class UnknownCommandError(Exception):
    """An error: no entry of `MEASURED` says what a command measures."""


@dataclass(frozen=True, slots=True)
class Stale:
    """Figures that may be out of date."""

    file: Path
    why: str


def measured_by(command: str) -> tuple[str, ...]:
    """Return the files and folders, below the root of the repository, that a command measures.

    Raises:
        UnknownCommandError: nothing says so.
    """
    begins = [each for each in MEASURED if command.startswith(each)]
    if not begins:
        allowed = ", ".join(MEASURED)
        raise UnknownCommandError(f"figures of {command!r}: what they measure; known: {allowed}")
    return MEASURED[max(begins, key=len)]


def unfounded(origin: Origin, root: Path) -> str | None:
    """Return in words why figures are of no state of this repository; None where they are.

    A shallow clone, or a folder without git, does not know; None there too.
    """
    if not origin.commit:
        return "made by an installed package, so of no commit"
    commit = origin.commit.removesuffix(CHANGED)
    if commit != origin.commit:
        return f"made with changes that commit {commit} does not have"
    if not _knows_its_history(root):
        return None
    if _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return f"commit {commit} is not in this history"
    return None


def stale(files: Iterable[Path], root: Path) -> Iterator[Stale]:
    """Yield the figures whose code has changed since they were measured.

    Raises:
        UnknownCommandError: nothing says what a command measures.
        NetemError: a file cannot be read.
    """
    for file in files:
        origin, _ = read_figure_file(file)
        paths = measured_by(origin.command)
        why = unfounded(origin, root)
        if why is None:
            since = _git(root, "log", "--format=%h %s", f"{origin.commit}..HEAD", "--", *paths)
            if since is None:
                why = f"commit {origin.commit} is not in this clone"
            elif since:
                newest, *others = since.splitlines()
                why = f"{len(others) + 1} changes since {origin.commit}, the newest {newest}"
        if why is not None:
            yield Stale(file, why)


def _knows_its_history(root: Path) -> bool:
    return _git(root, "rev-parse", "--is-shallow-repository") == "false"


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git says; None where it fails."""
    try:
        return subprocess.run(  # noqa: S603 - the words are ours
            ["git", "-C", str(root), *arguments],  # noqa: S607 - where it is differs
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
