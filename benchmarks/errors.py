"""What stops a benchmark, told to whoever started it."""

from __future__ import annotations


class BenchmarkError(Exception):
    """A peer or a load did not work; the text names it and what it said."""
