from __future__ import annotations

import resource
import subprocess
import sys

from broker.open_files import FEWEST, RESERVE
from tests.helpers.process import ROOT


def most_connections(soft: int) -> tuple[int, int]:
    """Return what a process that begins with a limit of files makes of it, and its new limit."""
    program = (
        "import resource; from broker.open_files import most_connections;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, min(hard, 4096)));"
        "print(most_connections(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    most, limit = run.stdout.split()
    return int(most), int(limit)


def test_limit_of_files_is_raised_and_leaves_a_reserve() -> None:
    """A shell's low limit does not keep a fleet out, where the system allows more."""
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
    assert most_connections(256) == (max(FEWEST, hard - RESERVE), hard)
