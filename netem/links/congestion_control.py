"""The congestion control of a host's TCP connections."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.netem.errors import NetemError
from penstock.netem.links.namespaces import FOLDER

SYSCTL: Final = "/proc/sys/net/ipv4/tcp_congestion_control"
"""The file with the default congestion control of the opening process's namespace."""

AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
"""The machine-wide list of congestion controls that unprivileged processes and other network
namespaces may choose (ip-sysctl)."""


def check_congestion_control(name: str) -> None:
    """Check that the kernel has a congestion control.

    Raises:
        NetemError: it does not; the text names those that it has.
    """
    available = AVAILABLE.read_text().split()
    if name not in available:
        raise NetemError(f"congestion control: read {name!r}; allowed here: {', '.join(available)}")


def set_congestion_control(name: str, run: Callable[[list[str]], str]) -> None:
    """Make a congestion control the default of a namespace.

    Raises:
        NetemError: the kernel does not have this congestion control.
    """
    check_congestion_control(name)
    with _allowed(name):
        run(["sh", "-ec", f'echo "$0" > {SYSCTL}', name])


@contextmanager
def _allowed(name: str) -> Iterator[None]:
    """Allow namespaces to choose it for a moment: the choice stays, the machine's list does not."""
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # other processes change the same list
        before = ALLOWED.read_text()
        if name in before.split():
            yield
            return
        ALLOWED.write_text(f"{before.strip()} {name}")
        try:
            yield
        finally:
            ALLOWED.write_text(before)
    finally:
        os.close(folder)
