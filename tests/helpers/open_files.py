"""Processes that may open no more files, or few, as the kernel has it."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def no_free_files(pid: int) -> Iterator[None]:
    """Let a process open no file and accept no connection for a while; what it has open stays."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def limit_of_files(soft: int, hard: int) -> Callable[[], None]:
    """Return what `preexec_fn` of `subprocess.Popen` is to be for a process with these limits."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
