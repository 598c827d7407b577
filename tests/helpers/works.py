"""Pieces of work for `penstock.plugins.web.cooperative_work.Slicer`, without a loop."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finished(work: Generator[None, None, T]) -> tuple[T, int]:
    """Run a work to its end; return its result and the number of steps."""
    n_steps = 0
    try:
        while True:
            next(work)
            n_steps += 1
    except StopIteration as end:
        result: T = end.value
        return result, n_steps


def result_of(work: Generator[None, None, T]) -> T:
    """Run a work to its end; return its result."""
    return finished(work)[0]
