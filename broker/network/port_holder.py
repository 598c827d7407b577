"""Which program listens on a TCP port that a listener cannot have."""

from __future__ import annotations

from typing import Final, NamedTuple

import psutil

_MOST_SHOWN: Final = 80
"""Characters of a command line."""


class PortHolder(NamedTuple):
    """A program that listens."""

    pid: int
    command: list[str]


def port_holder(port: int) -> PortHolder | None:
    """Return the program; None if there is none, or this user may not see it."""
    try:
        pids = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
            if each.pid is not None
        }
    except (psutil.Error, OSError):
        return None
    for pid in pids:
        try:
            return PortHolder(pid, psutil.Process(pid).cmdline())
        except psutil.Error:
            continue
    return None


def shown_holder(holder: PortHolder | None) -> str:
    """Return the end of an error about a port in use: by which program."""
    if holder is None:
        return ", and this user may not see by which program"
    return f" by process {holder.pid}: {' '.join(holder.command)[:_MOST_SHOWN]}"
