"""The memory that the process may use: that of the machine, or of its control group."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

_GROUPS: Final = Path("/proc/self/cgroup")
_MOUNT: Final = Path("/sys/fs/cgroup")


def machine_memory_bytes(
    physical_bytes: int | None = None, groups: Path = _GROUPS, mount: Path = _MOUNT
) -> int:
    """Return the memory that this process may use at most, in bytes.

    A container, or a service with `MemoryMax`, has less than the machine. The limit of a control
    group applies to all groups below it, so each group on the path to the root is read.

    Args:
        physical_bytes: the machine's memory; None to ask the system.
        groups: file that names the process's control groups.
        mount: the folder where control groups are mounted.
    """
    found = [psutil.virtual_memory().total if physical_bytes is None else physical_bytes]
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _limits(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits(mount / "memory", path, "memory.limit_in_bytes")
    return min(found)


def _limits(mount: Path, path: str, name: str) -> list[int]:
    """Return the limits of a control group and of those above it.

    Inside a container, the container's own group is often mounted as the root while the path is
    that of the host.
    """
    group = Path(path)
    limits = []
    for parent in (group, *group.parents):
        try:
            text = (mount / str(parent).lstrip("/") / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():  # else it is "max"
            limits.append(int(text))
    return limits
