"""Adds up Spark's progress reports of one streaming query. Importable without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Tally:
    """Counts of one query since it was started.

    Spark reports a micro-batch once when it is done, and may report the next batch several times
    while nothing waits for it; the last report of a batch counts.

    Attributes:
        observation: name of the observed metrics that are added up.
        batch_id: the newest micro-batch reported; -1 before the first.
    """

    def __init__(self, observation: str = "") -> None:
        self.observation = observation
        self.batch_id = -1
        self._finished: Counter[str] = Counter()
        self._newest: Counter[str] = Counter()
        self._end: dict[str, Any] | None = None

    def add(self, report: Mapping[str, Any]) -> bool:
        """Add one report.

        Args:
            report: a ``StreamingQueryProgress`` as JSON values; one of an older batch is ignored.

        Returns:
            Whether it reported new rows.
        """
        batch_id = report["batchId"]
        if batch_id < self.batch_id:
            return False
        if batch_id > self.batch_id:
            self._finished += self._newest
            self._newest = Counter()
            self.batch_id = batch_id
        before = self._newest["rows"]
        counts: Counter[str] = Counter()
        counts["rows"] = report.get("numInputRows", 0)
        if counts["rows"]:
            counts["batches"] = 1
            counts["milliseconds"] = report.get("durationMs", {}).get("triggerExecution", 0)
        for state in report.get("stateOperators", []):
            counts["late"] += state.get("numRowsDroppedByWatermark", 0)
        for name, value in report.get("observedMetrics", {}).get(self.observation, {}).items():
            counts[f"{self.observation}.{name}"] += value
        self._newest = counts
        self._end = _position(report["sources"][0].get("endOffset"))
        return counts["rows"] > before

    def __getitem__(self, name: str) -> int:
        """Return a count.

        Args:
            name: ``rows``; ``batches`` and ``milliseconds`` of those that had any; ``late``; or
                ``<observation>.<metric>``.
        """
        return self._finished[name] + self._newest[name]

    @property
    def end(self) -> dict[str, Any] | None:
        """The first source's position after the newest batch; None where none was reported."""
        return self._end


def _position(value: Any) -> dict[str, Any] | None:
    """Return a position, which Spark reports as JSON inside JSON or as it is."""
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else None
