"""Figures of a run, by name, and whether they are what was to come out.

Latencies are those of the subscribers in focus, from when a message was due at its publisher to
its last byte at the subscriber; promises are those to all subscribers. A message that never came
is not left out: its latency is infinite, so that a broker does not look faster for what it lost.
All seeds of a broker count together; where one has no data, the figure is not a number, and meets
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.netem.errors import NetemError
from penstock.netem.figures.intervals import Interval, union
from penstock.netem.figures.outcomes import Outcome, Promises, join, keep_account
from penstock.netem.figures.records import MemoryRow, Tables
from penstock.netem.figures.withheld_times import Accuracy, find_impaired, judge_withholding
from penstock.netem.runs.scenario import Scenario, Target

TOLERANCE_SECONDS: Final = 0.005
"""By which a message may be later and is still as fast: what a busy machine of two cores adds to a
process that wakes up, and little beside any network that is bad."""

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LATENCIES: Final = (*QUANTILES, "mean", "max")
"""Behind the name of a stream: figures in seconds."""

SHARE_AS_FAST: Final = "share_as_fast"
"""Behind the name of a stream: share of its messages at least as fast as under another broker."""

COUNTS: Final = ("lost", "not_delivered", "reordered", "duplicated", "repeated")
"""Figures of `Promises`."""

MEMORY: Final = ("memory", "memory_left")
"""Bytes of resident set beyond what it was before the traffic: at most, and at the end."""

WITHHELD: Final = ("withheld_outside", "withheld_share")
"""Seconds of withholding that no impairment explains, of all subscribers in focus and seeds; and
the share of impaired time in which something was withheld."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out for a target.

    Attributes:
        target: what was to come out.
        value: the figure of its broker.
        over_value: the figure of the broker that it is divided by or compared with; None where
            there is none.
        is_met: whether the bound holds; not where data is missing.
        is_judged: whether it counts: a timing does not in a short run.
        text: all of that in a line.
    """

    target: Target
    value: float
    over_value: float | None
    is_met: bool
    is_judged: bool
    text: str

    @property
    def line(self) -> str:
        """Return ``met: ...``, ``missed: ...`` or ``not judged: ...``."""
        word = ("met" if self.is_met else "missed") if self.is_judged else "not judged"
        return f"{word}: {self.text}"


def quantile(latencies: Seconds, share: float) -> float:
    """Return the least latency that a share of all do not exceed; nan of none.

    One of the latencies itself: between two of them, one infinite, there is nothing.

    Args:
        latencies: ascending, seconds.
        share: above 0, up to 1.
    """
    if not len(latencies):
        return math.nan
    return float(latencies[math.ceil(share * len(latencies)) - 1])


class Measures:
    """Figures of a run.

    Attributes:
        scenario: as it was run.
        tables: its rows.
    """

    def __init__(self, scenario: Scenario, tables: Tables) -> None:
        self.scenario = scenario
        self.tables = tables
        self._promises: dict[tuple[str, int], Promises] = {}
        self._accuracy: dict[tuple[str, int], Accuracy] = {}

    @cached_property
    def outcomes(self) -> dict[tuple[str, int], list[Outcome]]:
        """By broker and seed."""
        return join(self.tables)

    @cached_property
    def _latencies(self) -> dict[tuple[str, int, str], Seconds]:
        found: dict[tuple[str, int, str], list[float]] = {}
        for (broker, seed), outcomes in self.outcomes.items():
            for outcome in outcomes:
                if outcome.is_focus:
                    key = (broker, seed, outcome.message.stream)
                    found.setdefault(key, []).append(outcome.latency)
        return {key: np.sort(np.array(each)) for key, each in found.items()}

    def latencies(self, broker: str, stream: str, seeds: Iterable[int] | None = None) -> Seconds:
        """Return the latencies of a stream, ascending, infinite for what never came.

        Args:
            broker: name.
            stream: name.
            seeds: which of the runs; None for all.

        Returns:
            ``(n_messages,)``, seconds; none where one of the runs has none.
        """
        keys = [(broker, seed, stream) for seed in (seeds or self.scenario.seeds)]
        if any(key not in self._latencies for key in keys):
            return np.array([])
        return np.sort(np.concatenate([self._latencies[key] for key in keys]))

    def promises(self, broker: str, seed: int) -> Promises | None:
        """Return how promises to all subscribers were kept; None where nothing is known."""
        key = (broker, seed)
        if key not in self.outcomes:
            return None
        if key not in self._promises:
            self._promises[key] = keep_account(self.outcomes[key])
        return self._promises[key]

    def memory(self, broker: str, seed: int) -> list[MemoryRow]:
        """Return the looks at a broker's memory in one run, in their order."""
        rows = self.tables.memory
        of_it = [row for row in rows if (row.broker, row.seed) == (broker, seed)]
        return sorted(of_it, key=lambda row: row.at_s)

    def growth(self, broker: str, seed: int) -> list[tuple[float, float]]:
        """Return seconds and bytes beyond the last look before the traffic; none without that."""
        rows = self.memory(broker, seed)
        before = [row.rss_bytes for row in rows if row.at_s < 0]
        if not before:
            return []
        return [(row.at_s, float(row.rss_bytes - before[-1])) for row in rows if row.at_s >= 0]

    def streams_in_focus(self) -> list[str]:
        """Return the streams whose latencies are reported, the smallest payloads first."""
        focus = {row.stream for row in self.tables.expected if row.is_focus}
        traffic = self.scenario.traffic
        known = [stream for stream in traffic if stream in focus]
        return sorted(known, key=lambda stream: traffic[stream].payload_bytes)

    def impaired(self, broker: str, seed: int) -> list[Interval]:
        """Return when any subscriber in focus could not be reached as usual."""
        groups = {
            row.group
            for row in self.tables.expected
            if row.is_focus and (row.broker, row.seed) == (broker, seed)
        }
        return union(
            each
            for group in groups
            for each in find_impaired(self.scenario, self.tables, broker, seed, group)
        )

    def withholding(self, broker: str, seed: int) -> Accuracy | None:
        """Return how withholding fits to impairments; None where the links' states are unknown."""
        key = (broker, seed)
        if key not in self._accuracy:
            if not any((row.broker, row.seed) == key for row in self.tables.links):
                return None
            self._accuracy[key] = judge_withholding(self.scenario, self.tables, *key)
        return self._accuracy[key]

    def figure(
        self, name: str, broker: str, *, over: str | None = None, seeds: list[int] | None = None
    ) -> float:
        """Return a figure.

        Args:
            name: one of `Scenario.figures`.
            broker: whose.
            over: the broker that a share compares with; no other figure looks at it.
            seeds: which of the runs; None for all. Latencies of several are taken together,
                counts and seconds added, memory is their mean.

        Returns:
            Its value; nan where data is missing.

        Raises:
            NetemError: there is no such figure or broker, or a share has nothing to compare with.
        """
        runs = seeds or self.scenario.seeds
        for each in (broker, over):
            if each is not None and each not in self.scenario.brokers:
                allowed = ", ".join(self.scenario.brokers)
                raise NetemError(f"figure {name}: broker {each!r}; allowed: {allowed}")
        if name in COUNTS:
            accounts = [self.promises(broker, seed) for seed in runs]
            return sum(math.nan if a is None else float(getattr(a, name)) for a in accounts)
        if name in MEMORY:
            return float(np.mean([self._grown(broker, seed, name) for seed in runs]))
        if name in WITHHELD:
            return self._withheld(name, [self.withholding(broker, seed) for seed in runs])
        stream, _, kind = name.rpartition(" ")
        if stream not in self.scenario.traffic or kind not in (*LATENCIES, SHARE_AS_FAST):
            raise NetemError(
                f"figure: read {name!r}; allowed: {', '.join(self.scenario.figures())}"
            )
        if kind == SHARE_AS_FAST:
            if over is None:
                raise NetemError(f"figure {name}: no broker to compare with; allowed: over")
            return self._share_as_fast(stream, broker, over, runs)
        latencies = self.latencies(broker, stream, runs)
        if not len(latencies):
            return math.nan
        if kind in QUANTILES:
            return quantile(latencies, QUANTILES[kind])
        return float(latencies.max() if kind == "max" else latencies.mean())

    def _grown(self, broker: str, seed: int, name: str) -> float:
        grown = [each for _, each in self.growth(broker, seed)]
        if not grown:
            return math.nan
        return max(grown) if name == "memory" else grown[-1]

    @staticmethod
    def _withheld(name: str, found: list[Accuracy | None]) -> float:
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return math.nan
        accuracy = sum(known, Accuracy())
        if name == "withheld_outside":
            return accuracy.outside
        return accuracy.both / accuracy.impaired if accuracy.impaired else math.nan

    def _share_as_fast(self, stream: str, broker: str, over: str, seeds: list[int]) -> float:
        fast = pairs = 0
        for seed in seeds:
            ours, theirs = (
                {
                    (each.message.publisher, each.message.number, each.subscriber): each.latency
                    for each in self.outcomes.get((name, seed), [])
                    if each.is_focus and each.message.stream == stream
                }
                for name in (broker, over)
            )
            both = ours.keys() & theirs.keys()
            if not both:
                return math.nan
            pairs += len(both)
            fast += sum(
                math.isfinite(ours[key]) and ours[key] <= theirs[key] + TOLERANCE_SECONDS
                for key in both
            )
        return fast / pairs

    def judge(self, target: Target, length: Literal["full", "short"]) -> Verdict:
        """Return what came out for a target.

        Raises:
            NetemError: as `figure` says.
        """
        value = self.figure(target.figure, target.broker, over=target.over)
        is_share = target.figure.endswith(f" {SHARE_AS_FAST}")
        over_value = None
        held = value
        if target.over is not None and not is_share:
            over_value = self.figure(target.figure, target.over)
            # Division by nothing is no ratio: two brokers that grew by nothing compare as nan.
            held = value / over_value if over_value > 0 else math.nan
        # No comparison holds for what is not a number.
        is_met = (target.at_most is None or held <= target.at_most) and (
            target.at_least is None or held >= target.at_least
        )
        is_judged = not (target.is_timing and length == "short")
        text = _put(target, value, over_value, held)
        return Verdict(target, value, over_value, is_met, is_judged, text)


def percent(share: float) -> float:
    """Return per cent with one decimal, rounded down: 100 % is said of all alone."""
    # 0.57 is less by as much as it cannot be written.
    return math.floor(1000 * share + 1e-9) / 10


def show(figure: str, value: float) -> str:
    """Return a figure in words, with its unit; a dash for what is not known."""
    kind = figure.rpartition(" ")[2]
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞"
    if kind in LATENCIES:
        return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
    if kind in MEMORY:
        megabytes = value / 1e6
        # Nothing has no sign.
        return f"{megabytes:.0f} MB" if megabytes >= 100 else f"{round(megabytes, 1) + 0:.1f} MB"
    if kind in (SHARE_AS_FAST, "withheld_share"):
        return f"{percent(value):.1f} %"
    if kind == "withheld_outside":
        return f"{value:.1f} s"
    return f"{value:.0f}"


def _put(target: Target, value: float, over_value: float | None, held: float) -> str:
    """Return what came out and what was to, in a line."""
    is_share = target.figure.endswith(f" {SHARE_AS_FAST}")
    text = f"{target.figure}: {target.broker} {show(target.figure, value)}"
    if target.over is not None and is_share:
        text += f" against {target.over}"
    elif over_value is not None:
        text += f", {target.over} {show(target.figure, over_value)}"
        text += ", no ratio" if math.isnan(held) else f": {held:.2f} of it"
    bounds = []
    for word, bound in (("at most", target.at_most), ("at least", target.at_least)):
        if bound is not None:
            as_figure = over_value is None
            bounds.append(f"{word} {show(target.figure, bound) if as_figure else f'{bound:g}'}")
    return f"{text} ({', '.join(bounds)})"
