"""How many files the process may have open, and what that leaves for connections."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

if sys.platform != "win32":
    import resource

RESERVE: Final = 192
"""Files for everything that is no client: 64 for listeners, logs, databases and what plugins read,
64 for connections that hear why they are refused, 64 for sockets that linger. Half of a limit that
is lower than twice that."""

_ANY: Final = 2**31

FEWEST: Final = 16
"""Connections that are tried where the limit of files leaves none."""


def most_connections(*, files_each: int = 1, files_elsewhere: int = 0) -> int:
    """Return how many connections the process has files for, with its limit as high as allowed.

    Args:
        files_each: that a connection takes.
        files_elsewhere: that are kept free for others, beside the reserve.
    """
    most = most_files()
    if most == _ANY:
        return most
    return max(FEWEST, (most - min(RESERVE, most // 2) - files_elsewhere) // files_each)


def most_files() -> int:
    """Return how many files the process may have open, once its limit is as high as allowed."""
    if sys.platform == "win32":  # which has no such limit
        return _ANY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ANY
    return soft
