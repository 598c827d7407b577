"""The error of a benchmark that cannot be run."""

from __future__ import annotations

from penstock.netem.errors import RunError


class BenchmarkError(RunError):
    """An error: a broker or a program did not do what is measured; the text says what."""
