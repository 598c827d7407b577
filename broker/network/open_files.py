"""The files that the process may have open, and how many connections that allows."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

if sys.platform != "win32":
    import resource

RESERVE: Final = 192
"""Descriptors for everything but connections: 64 for listeners, logs, databases and files of
plugins, 64 for connections that stay to be refused, 64 for lingering sockets. It is half of the
limit where the limit is lower than twice this."""

BACKLOG: Final = 4096
"""So many connections of a listener may wait to be accepted, as a fleet reconnects all at once: the
most that Linux allows (net.core.somaxconn). A client's kernel tries a further one again after 1, 3,
7, 15 and 31 seconds. They take no descriptor."""

_ANY: Final = 2**31

FEWEST: Final = 16
"""So many connections are allowed even where the limit of files leaves none."""


def most_connections(*, files_each: int = 1, files_elsewhere: int = 0) -> int:
    """Return how many connections the process has files for, with its limit raised as allowed.

    Args:
        files_each: descriptors that a connection takes.
        files_elsewhere: descriptors to keep free beside the reserve.
    """
    most = most_files()
    if most == _ANY:
        return most
    return max(FEWEST, (most - min(RESERVE, most // 2) - files_elsewhere) // files_each)


def most_files() -> int:
    """Raise the process's limit of open files as far as allowed, and return it."""
    if sys.platform == "win32":  # there is no such limit
        return _ANY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ANY
    return soft
