"""Latency by message size: converts an RTT from one size to another (paper 002, figure 3)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

MOST_RELATIVE: Final = 1e9
"""Upper bound of a relative latency: two rows that lie close together could extrapolate to an
overflow."""

_LOG_MOST_RELATIVE: Final = math.log(MOST_RELATIVE)


class LatencyProfile:
    """Relative latency by payload size.

    Between two rows of the table it is interpolated on logarithmic axes, where measured latency is
    close to straight: a fixed part for small messages, in proportion to the size for large ones.
    Below the first row the first row's value applies, since a path has a least latency. Above the
    last row the line through the last two rows is extended.
    """

    __slots__ = ("_log_latencies", "_log_sizes", "_slopes", "reference_bytes")

    def __init__(self, table: Mapping[int, float]) -> None:
        """Take a table.

        Args:
            table: payload bytes to latency in any unit: only ratios are used.

        Raises:
            ValueError: the table is not of that form.
        """
        if not table:
            raise ValueError("at least one row of payload bytes: latency")
        rows = sorted(table.items())
        latencies = [latency for _, latency in rows]
        if rows[0][0] < 1:
            raise ValueError("payload bytes of at least 1")
        if not all(latency > 0 and math.isfinite(latency) for latency in latencies):
            raise ValueError("latencies above 0 and finite")
        if latencies != sorted(latencies):
            raise ValueError("latencies that never fall as payload bytes grow")
        self.reference_bytes = rows[0][0]
        self._log_sizes = [math.log(size) for size, _ in rows]
        self._log_latencies = [math.log(latency) - math.log(latencies[0]) for latency in latencies]
        self._slopes = [
            (self._log_latencies[i + 1] - self._log_latencies[i])
            / (self._log_sizes[i + 1] - self._log_sizes[i])
            for i in range(len(rows) - 1)
        ]

    def relative(self, payload_bytes: int) -> float:
        """Return the latency of a size over that of the first row; at least 1."""
        if payload_bytes <= self.reference_bytes or not self._slopes:
            return 1.0
        log_size = math.log(payload_bytes)
        row = min(bisect_right(self._log_sizes, log_size), len(self._slopes)) - 1
        beyond = log_size - self._log_sizes[row]
        log_relative = self._log_latencies[row] + self._slopes[row] * beyond
        return math.exp(min(log_relative, _LOG_MOST_RELATIVE))
