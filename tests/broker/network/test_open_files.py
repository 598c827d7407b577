from __future__ import annotations

import resource
import subprocess
import sys

from penstock.broker.network.open_files import FEWEST, RESERVE
from tests.helpers.process import ROOT


def most_connections(soft: int, hard: int = 4096, options: str = "") -> tuple[int, int]:
    """Return what a process that begins with limits of files makes of them, and its new limit."""
    program = (
        "import resource; from penstock.broker.network.open_files import most_connections;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, min(hard, {hard})));"
        f"print(most_connections({options}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    most, limit = run.stdout.split()
    return int(most), int(limit)


def test_limit_of_files_is_raised_and_leaves_a_reserve() -> None:
    """A shell's low limit does not keep a fleet out, where the system allows more."""
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
    assert most_connections(256) == (hard - RESERVE, hard)


def test_connections_of_two_files_each_beside_files_for_others() -> None:
    """As in the proxy, and as beside an HTTP API."""
    options = "files_each=2, files_elsewhere=100"
    assert most_connections(64, 1000, options) == ((1000 - RESERVE - 100) // 2, 1000)


def test_a_low_limit_keeps_half_for_everything_else() -> None:
    """The reserve for a fleet would leave nothing; a few are tried in any case."""
    assert most_connections(100, 200)[0] == 100
    assert most_connections(20, 20)[0] == FEWEST
