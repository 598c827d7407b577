"""How many files the process may have open, and what that leaves for connections."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

RESERVE: Final = 128
"""Files for everything that is no client: listeners, logs, databases, HTTP."""

FEWEST: Final = 16
"""Connections that are tried where the limit of files leaves none."""


def most_connections() -> int:
    """Return how many connections the process has files for, with its limit as high as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(FEWEST, soft - RESERVE)
