"""Totals of one streaming query, from Spark's progress reports. Importable without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

OBSERVATION: Final = "penstock"
"""The name in Spark's progress reports of the counts of payloads."""

MESSAGES: Final = "messages"
EXPIRED: Final = "expired"
"""Two of these counts: all messages, and those that were dropped after their lifetime. The others
are messages for the quarantine, by reason."""


class ProgressTotals:
    """Totals of one query since it was started.

    Spark reports a micro-batch once when it is done, and may report the next batch several times
    while nothing waits for it. The last report of a batch counts.

    Attributes:
        batch_id: the newest micro-batch reported; -1 before the first.
        rate: the rows a second of the newest micro-batch that had any.
        lag: the number of messages that wait behind the newest micro-batch, by ``QUEUE/NUMBER``.
    """

    def __init__(self) -> None:
        self.batch_id = -1
        self.rate = 0.0
        self.lag: dict[str, int] = {}
        self._finished: Counter[str] = Counter()
        self._newest: Counter[str] = Counter()
        self._ends: list[dict[str, Any]] = []

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
            self.rate = report.get("processedRowsPerSecond", 0.0)
        counts["late"] = late_rows(report)
        for name, value in observed_counts(report).items():
            counts[f"{OBSERVATION}.{name}"] = value
        self._newest = counts
        self.lag = lag_of(report)
        ends = [_position(source.get("endOffset")) for source in report["sources"]]
        self._ends = [end for end in ends if end is not None and _offsets(end)]
        return counts["rows"] > before

    def __getitem__(self, name: str) -> int:
        """Return a count.

        Args:
            name: ``rows``; ``batches`` and ``milliseconds`` of those that had any; or ``late``.
        """
        return self._finished[name] + self._newest[name]

    def observed(self) -> dict[str, int]:
        """Return the counts of payloads by name; {} where the query decodes none."""
        names = {*self._finished, *self._newest}
        begin = f"{OBSERVATION}."
        return {
            name.removeprefix(begin): self[name] for name in sorted(names) if name.startswith(begin)
        }

    @property
    def ends(self) -> list[dict[str, Any]]:
        """The position of each source of Penstock's after the newest batch."""
        return self._ends


def late_rows(report: Mapping[str, Any]) -> int:
    """Return how many rows came to an aggregate after their window was complete."""
    states = report.get("stateOperators", [])
    return sum(state.get("numRowsDroppedByWatermark", 0) for state in states)


def observed_counts(report: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of payloads in a report by name."""
    return dict(report.get("observedMetrics", {}).get(OBSERVATION, {}))


def lag_of(report: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of messages that wait behind a micro-batch.

    Returns:
        The number for each physical queue, by ``QUEUE/NUMBER``; {} where the source does not report
        it.
    """
    lag: dict[str, int] = {}
    for source in report["sources"]:
        end = _offsets(_position(source.get("endOffset")))
        for name, offset in _offsets(_position(source.get("latestOffset"))).items():
            lag[name] = max(lag.get(name, 0), offset - end.get(name, offset))
    return lag


def _offsets(position: Mapping[str, Any] | None) -> dict[str, int]:
    """Return ``QUEUE/NUMBER`` to offset; {} for a position of another source."""
    if position is None:
        return {}
    return {
        f"{queue}/{number}": offset
        for queue, place in position.items()
        if isinstance(place, dict)
        for number, offset in place.get("next", {}).items()
    }


def _position(value: Any) -> dict[str, Any] | None:
    """Return a position, which Spark reports as JSON inside JSON or as it is."""
    if isinstance(value, str):
        value = json.loads(value)
    return value if isinstance(value, dict) else None
