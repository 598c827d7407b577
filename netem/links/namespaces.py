"""Network namespaces of hosts: made, entered and removed with iproute2's `ip`.

A name holds the process id and the start time of the process that made the namespace. Leftovers of
a killed process can thus be told from namespaces in use, even if its process id is used again.
Temporary folders of runs have such names too.

pyroute2 0.9.7 starts a process in a namespace in 12.7 ms, as the child of a helper process, and
leaves the machine's /sys in place. ``ip netns exec`` takes 2.1 ms, becomes the process, and mounts
the namespace's own /sys.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from penstock.netem.errors import NetemError

NAME_PREFIX: Final = "penstock-"
FOLDER: Final = Path("/run/netns")
"""The folder in which iproute2 keeps the names of namespaces."""

TUN_DEVICE: Final = Path("/dev/net/tun")

CLONE_NEWNET: Final = 0x40000000
"""The flag of a network namespace, from linux/sched.h."""

CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""The capabilities that namespaces and their devices need, by bit (linux/capability.h)."""

END_SECONDS: Final = 5.0
"""How long killed processes of a namespace may take to end."""

MOST_AT_ONCE: Final = 200
"""The most namespaces that are held open for removal: a process may have 1,024 files, and the
forwarder has two for each link."""

DEAD: Final = frozenset({"Z", "X", "x"})
"""The states of a process that has ended, in /proc/PID/stat."""


def enter(namespace: str) -> None:
    """Enter a named namespace: sockets that this thread makes are of that host from now on.

    Raises:
        OSError: there is none, or this process may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is of Python 3.12
    with (FOLDER / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"{namespace}: {os.strerror(number)}")


def require_root() -> None:
    """Check that networks can be made here.

    Raises:
        NetemError: something is missing; the text names it.
    """
    if os.geteuid() != 0:
        raise NetemError("network namespaces need root; run it with sudo")
    if missing := _missing_capabilities():
        raise NetemError(
            f"network namespaces need {' and '.join(missing)}, which root has not here; run a "
            "container as privileged"
        )
    if shutil.which("ip") is None:
        raise NetemError("the program ip is missing; install iproute2")
    if not TUN_DEVICE.exists():
        raise NetemError(f"{TUN_DEVICE} is missing; load the kernel module tun")


def _missing_capabilities() -> list[str]:
    """Return the needed capabilities that root lacks, as in most containers."""
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]


def run_ip(*arguments: str, lines: str | None = None) -> str:
    """Run `ip`; as `run_tool`."""
    return run_tool("ip", *arguments, lines=lines)


def run_tool(*words: str, lines: str | None = None) -> str:
    """Run a program of iproute2.

    Returns:
        Its standard output.

    Raises:
        NetemError: the program failed; the text holds its standard error.
    """
    done = subprocess.run(  # noqa: S603 - the words are ours
        words, input=lines, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NetemError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def start_time_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if it does not exist."""
    try:
        # The name may hold spaces and brackets; state is field 3 and the time field 22: proc(5).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in DEAD else int(fields[19])


def own_prefix() -> str:
    """Return the prefix of the names of this process's namespaces and folders."""
    return f"{NAME_PREFIX}{os.getpid()}-{start_time_of(os.getpid())}-"


def remove_namespaces(prefix: str) -> None:
    """Remove the namespaces whose names have a prefix, and kill the processes in them.

    Returns when all of the processes have ended. May be repeated, and called by two processes at a
    time.
    """
    _remove([name for name in _names() if name.startswith(prefix)])


def remove_leftovers() -> None:
    """Remove the namespaces of processes that ended without removing them."""
    _remove([name for name in _names() if is_leftover(name)])


def is_leftover(name: str) -> bool:
    """Return whether the process that made a name with `own_prefix` has ended."""
    pid, _, rest = name.removeprefix(NAME_PREFIX).partition("-")
    began = rest.partition("-")[0]
    if not (name.startswith(NAME_PREFIX) and pid.isdecimal() and began.isdecimal()):
        return False
    return start_time_of(int(pid)) != int(began)


def _names() -> list[str]:
    try:
        return [each.name for each in FOLDER.iterdir()]
    except FileNotFoundError:
        return []


def _remove(names: list[str]) -> None:
    for begin in range(0, len(names), MOST_AT_ONCE):
        _remove_at_once(names[begin : begin + MOST_AT_ONCE])


def _remove_at_once(names: list[str]) -> None:
    with contextlib.ExitStack() as held:
        # A process keeps its namespace alive after the name is gone. An open file reserves the
        # namespace's number: otherwise a new namespace of another program could get it.
        files = set()
        for name in names:
            with contextlib.suppress(OSError):  # another process has removed it
                descriptor = os.open(FOLDER / name, os.O_RDONLY)
                held.callback(os.close, descriptor)
                files.add(_identity(os.fstat(descriptor)))
        files.discard(_identity(Path("/proc/self/ns/net").stat()))  # never this process's own
        _end_processes(files, names)
        lines = "".join(f"netns delete {name}\n" for name in names)
        with contextlib.suppress(NetemError):  # another process has removed some
            run_ip("-force", "-batch", "-", lines=lines)
        # A process that opened the name earlier may still enter; no other process can.
        _end_processes(files, names)


def _end_processes(files: set[tuple[int, int]], names: list[str]) -> None:
    """Kill the processes in namespaces, and those about to enter, and wait for their end.

    The search repeats until it finds none, because a process that was found may have started one
    that was not. Processes that the kernel does not end are left after `END_SECONDS`.
    """
    enters = {_entering(name) for name in names}
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        with contextlib.ExitStack() as held:
            killed = set()
            # One pass over all processes; `ip netns pids` would take a pass for each host.
            for process in Path("/proc").iterdir():
                if process.name.isdecimal() and _is_of(process, files, enters):
                    with contextlib.suppress(OSError):  # it has ended
                        # A signal to a process id could reach a later process with the same id.
                        descriptor = os.pidfd_open(int(process.name))
                        held.callback(os.close, descriptor)
                        if _is_of(process, files, enters):
                            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                            killed.add(descriptor)
            if not killed:
                return
            ends = select.poll()
            for descriptor in killed:
                ends.register(descriptor, select.POLLIN)
            while killed and (rest := deadline - time.monotonic()) > 0:
                for descriptor, _ in ends.poll(rest * 1000):
                    ends.unregister(descriptor)
                    killed.remove(descriptor)


def _entering(name: str) -> bytes:
    """Return the prefix of the command of a process that has not entered its namespace yet."""
    return f"ip\0netns\0exec\0{name}\0".encode()


def _is_of(process: Path, files: set[tuple[int, int]], enters: set[bytes]) -> bool:
    """Return whether a running process of /proc belongs to one of the namespaces.

    `ip` starts some milliseconds before it enters the namespace, more on a busy machine.
    """
    try:
        if _identity((process / "ns/net").stat()) in files:
            return True
        command = (process / "cmdline").read_bytes()
    except OSError:
        return False
    return command.startswith(b"ip\0") and any(command.startswith(each) for each in enters)


def _identity(found: os.stat_result) -> tuple[int, int]:
    """Return the identity of a namespace: device and inode number (namespaces(7))."""
    return found.st_dev, found.st_ino
