"""The whole program at a glance, computed once for all who look, from what `/metrics` shows.

Theory of operation. While somebody looks, the metrics are read once a second, and each reading is
kept for ten minutes. A rate is the difference of two readings, and a percentile that of the values
between one and the newest. While nobody looks, nothing is read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.counters import Histogram, Metric

HISTORY_SECONDS: Final = 600.0

LOOKED_SECONDS: Final = 15.0
"""Readings go on for so long after the last look; a page looks every second or two."""

WINDOW_SECONDS: Final = 60.0
"""Percentiles are those of so long."""

_RATES: Final = {
    "received_messages": "received_messages_total",
    "sent_messages": "sent_messages_total",
    "received_bytes": "received_bytes_total",
    "sent_bytes": "sent_bytes_total",
    "connections": "connections_total",
    "dropped": "messages_dropped_total",
    "held": "withheld_messages_total",
}
"""A rate to the counter whose rate it is."""

_MESSAGES: Final = {
    "matched": "messages_matched_total",
    "delivered": "messages_delivered_total",
    "inflight": "messages_inflight",
    "withheld": "messages_withheld",
    "queued": "messages_queued",
    "queued_bytes": "queued_bytes",
    "expired": "messages_expired_total",
    "oldest_seconds": "oldest_message_age_seconds",
    "crowded_sessions": "crowded_sessions",
}

_LATENCY: Final = "withholding_latency_seconds"
_LAG: Final = "event_loop_lag_seconds"
_COMMITS: Final = "persistence_commit_seconds"

Counts = tuple[int, ...]


class Figures:
    """Metrics by their names."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._by_name = {metric.name: metric for metric in metrics}

    def samples(self, name: str) -> list[tuple[Mapping[str, str], float]]:
        """Return labels and value of each sample of a metric that has no histograms."""
        metric = self._by_name.get(name)
        samples = () if metric is None else metric.samples
        return [(labels, value) for labels, value in samples if not isinstance(value, Histogram)]

    def total(self, name: str) -> float | None:
        """Return the sum of a metric's samples; None where there is no such metric."""
        if name not in self._by_name:
            return None
        return sum(value for _, value in self.samples(name))

    def by_label(self, name: str, label: str, **others: str) -> dict[str, float]:
        """Return the sums of a metric's samples by one of their labels; `others` are as here."""
        found: dict[str, float] = {}
        for labels, value in self.samples(name):
            if label in labels and others.items() <= labels.items():
                found[labels[label]] = found.get(labels[label], 0) + value
        return found

    def histograms(self, name: str) -> Sequence[tuple[Mapping[str, str], Histogram]]:
        """Return the histograms of a metric, each with its labels."""
        metric = self._by_name.get(name)
        samples = () if metric is None else metric.samples
        return [(labels, value) for labels, value in samples if isinstance(value, Histogram)]


def percentile(bounds: Sequence[float], counts: Sequence[int], ratio: float) -> float | None:
    """Return a percentile of a histogram's values, linear within a bucket; None of no values.

    Args:
        bounds: of the buckets; values above the last one count as that.
        counts: values in each bucket, and above all.
        ratio: 0.5 for the median.
    """
    n_wanted, n_values = ratio * sum(counts), 0
    if not n_wanted:
        return None
    for index, n_more in enumerate(counts):
        if n_more and n_values + n_more >= n_wanted:
            if index == len(bounds):
                break
            low = bounds[index - 1] if index else 0.0
            return low + (bounds[index] - low) * (n_wanted - n_values) / n_more
        n_values += n_more
    return bounds[-1]


class Reading(NamedTuple):
    """What is kept of the metrics of one moment.

    Attributes:
        monotonic: monotonic seconds.
        counts: of the histograms, by metric and labels: bounds and the values in each bucket.
    """

    at: float
    monotonic: float
    totals: Mapping[str, float | None]
    counts: Mapping[tuple[str, ...], tuple[Sequence[float], Counts]]
    gauges: Mapping[str, float | None]


def read(figures: Figures, at: float, monotonic: float) -> Reading:
    """Keep what rates, percentiles and graphs need."""
    counts: dict[tuple[str, ...], tuple[Sequence[float], Counts]] = {}
    for name in (_LATENCY, _LAG, _COMMITS):
        for labels, value in figures.histograms(name):
            # A latency ends at an acknowledgement or, at QoS 0, when a message is sent.
            key = (name, *(labels[label] for label in ("size", "path") if label in labels))
            _, before = counts.get(key, (value.bounds, (0,) * len(value.counts)))
            added = tuple(map(sum, zip(before, value.counts, strict=True)))
            counts[key] = (value.bounds, added)
    return Reading(
        at,
        monotonic,
        {key: figures.total(name) for key, name in _RATES.items()},
        counts,
        {
            "withheld": figures.total("messages_withheld"),
            "queued": figures.total("messages_queued"),
            "used_bytes": figures.total("memory_process_bytes"),
        },
    )


def rates(newer: Reading, older: Reading | None) -> dict[str, float | None]:
    """Return the rates per second between two readings; unknown without an older one."""
    if older is None or newer.monotonic <= older.monotonic:
        return dict.fromkeys(_RATES)
    seconds = newer.monotonic - older.monotonic
    found: dict[str, float | None] = {}
    for key, total in newer.totals.items():
        before = older.totals[key]
        if total is None or before is None:
            found[key] = None
        else:
            found[key] = max(0.0, (total - before) / seconds)
    return found


def between(newer: Reading, older: Reading | None, *key: str) -> tuple[Sequence[float], Counts]:
    """Return bounds and counts of what a histogram has got since an older reading, or in all.

    Args:
        newer: a reading.
        older: an older one, or None for the start of the program.
        key: name of the metric and the values of its labels; of labels left out, all values.
    """
    bounds: Sequence[float] = ()
    total: Counts = ()
    for name, (found_bounds, counts) in newer.counts.items():
        if name[: len(key)] != key:
            continue
        before = older.counts.get(name) if older is not None else None
        since = (
            counts
            if before is None
            else tuple(now - then for now, then in zip(counts, before[1], strict=True))
        )
        bounds = found_bounds
        total = since if not total else tuple(map(sum, zip(total, since, strict=True)))
    return bounds, total


def point(newer: Reading, older: Reading | None) -> dict[str, float | None]:
    """Return the values of the graphs at one reading."""
    found = {"at": newer.at, **rates(newer, older), **newer.gauges}
    for size in ("small", "large"):
        since = between(newer, older, _LATENCY, size) if older is not None else ((), ())
        found[f"p99_{size}_seconds"] = percentile(*since, 0.99)
    return found


def _percentiles(bounds: Sequence[float], counts: Counts) -> dict[str, float | None]:
    return {
        "p50_seconds": percentile(bounds, counts, 0.5),
        "p99_seconds": percentile(bounds, counts, 0.99),
    }


class Overview:
    """The overview, and the readings of the last ten minutes."""

    def __init__(
        self,
        metrics: Callable[[], Awaitable[Sequence[Metric]]],
        clock: Callable[[], float],
        more: Callable[[], Awaitable[Mapping[str, Any]]],
        log_fault: Callable[[Exception], None],
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._more = more
        self._log_fault = log_fault
        self._readings: deque[Reading] = deque()
        self._points: deque[Mapping[str, float | None]] = deque()
        self._newest: tuple[Figures, Reading] | None = None
        self._read_last: Sequence[Metric] | None = None
        self._looked_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def answer(self, *, with_history: bool) -> dict[str, Any]:
        """Return the overview; see docs/reference/console-api.md."""
        self._looked_at = self._clock()
        if self._reading is None or self._reading.done():
            await self._read()
            if self._reading is None or self._reading.done():  # nobody else has asked meanwhile
                self._reading = asyncio.create_task(self._go_on(), name="console overview")
        newest = self._newest
        assert newest is not None  # noqa: S101 (`_read` has set it)
        found: dict[str, Any] = {**self._of(*newest), **await self._more()}
        if with_history:
            found["history"] = self._history()
        return found

    async def _go_on(self) -> None:
        while self._clock() - self._looked_at < LOOKED_SECONDS:
            await asyncio.sleep(1.0)
            try:
                await self._read()
            except Exception as error:  # noqa: BLE001 (the next reading may succeed)
                self._log_fault(error)

    async def _read(self) -> None:
        """Take a reading, unless the metrics are still those of the last one."""
        metrics = await self._metrics()
        if metrics is self._read_last:
            return
        self._read_last = metrics
        figures = Figures(metrics)
        now = self._clock()
        reading = read(figures, time.time(), now)
        self._newest = (figures, reading)
        self._points.append(point(reading, self._readings[-1] if self._readings else None))
        self._readings.append(reading)
        while self._readings[0].monotonic < now - HISTORY_SECONDS:
            self._readings.popleft()
            self._points.popleft()

    def _before(self, seconds: float) -> Reading | None:
        """Return the oldest reading of the last seconds, except the newest one; or None."""
        newest = self._readings[-1]
        for reading in self._readings:
            if reading is not newest and reading.monotonic >= newest.monotonic - seconds:
                return reading
        return None

    def _of(self, figures: Figures, newest: Reading) -> dict[str, Any]:
        previous = self._readings[-2] if len(self._readings) > 1 else None
        window = self._before(WINDOW_SECONDS) or previous
        lag = between(newest, window, _LAG)
        return {
            "at": newest.at,
            "rates": rates(newest, previous),
            "latency": self._latency(newest, window),
            "clients": {
                "connected": figures.total("clients_connected"),
                "sessions": figures.total("sessions"),
                "maximum": figures.total("clients_connected_maximum"),
            },
            "messages": {key: figures.total(name) for key, name in _MESSAGES.items()},
            "dropped": figures.by_label("messages_dropped_total", "reason"),
            "held": figures.by_label("withholding_decisions_total", "cause", outcome="held"),
            "memory": _memory(figures),
            "loop": _percentiles(*lag),
            "persistence": self._persistence(newest, window),
            "queues": _queues(figures),
        }

    def _latency(self, newest: Reading, window: Reading | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for size in ("small", "large"):
            for path in ("calm", "congested"):
                bounds, counts = between(newest, window, _LATENCY, size, path)
                row = {"size": size, "congested": path == "congested", "messages": sum(counts)}
                rows.append(row | _percentiles(bounds, counts))
        return rows

    def _persistence(self, newest: Reading, window: Reading | None) -> dict[str, Any] | None:
        bounds, counts = between(newest, window, _COMMITS)
        if not bounds:
            return None
        per_second = None
        if window is not None:
            per_second = sum(counts) / (newest.monotonic - window.monotonic)
        return {"commits_per_second": per_second} | _percentiles(bounds, counts)

    def _history(self) -> dict[str, list[float | None]]:
        return {name: [one[name] for one in self._points] for name in self._points[-1]}

    async def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))


def _queues(figures: Figures) -> list[dict[str, Any]]:
    """Return the queues, each with the lag of the group that is behind most."""
    lags: dict[str, float] = {}
    for labels, value in figures.samples("queue_lag_messages"):
        lags[labels["queue"]] = max(value, lags.get(labels["queue"], 0))
    dead = figures.by_label("queue_dead_letter_messages", "queue")
    return [
        {
            "name": name,
            "messages": messages,
            "lag": lags.get(name),
            "dead_letters": dead.get(name, 0),
        }
        for name, messages in sorted(figures.by_label("queue_depth_messages", "queue").items())
    ]


def _memory(figures: Figures) -> dict[str, Any]:
    """Return what takes memory, beside its limits."""
    parts = {}
    for name in ("queued", "retained", "received", "subscriptions", "wills"):
        used = figures.total(f"memory_{name}_bytes")
        if used is not None:
            limit = figures.total(f"memory_{name}_limit_bytes")
            parts[name] = {"used_bytes": used, "limit_bytes": limit}
    return {
        "used_bytes": figures.total("memory_process_bytes"),
        "limit_bytes": figures.total("memory_process_limit_bytes"),
        "payload_bytes": figures.total("memory_queued_bytes"),
        "parts": parts,
    }
