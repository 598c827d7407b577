"""How many files the process may have open, and what that leaves for connections."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

if sys.platform != "win32":
    import resource

RESERVE: Final = 128
"""Files for everything that is no client: listeners, logs, databases, HTTP."""

_ANY: Final = 2**31

FEWEST: Final = 16
"""Connections that are tried where the limit of files leaves none."""


def most_connections() -> int:
    """Return how many connections the process has files for, with its limit as high as allowed."""
    if sys.platform == "win32":  # which has no such limit
        return _ANY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ANY
    return max(FEWEST, soft - RESERVE)
