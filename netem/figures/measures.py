"""Figures of a run by name, with their intervals, and the verdicts on its targets.

Latencies are those of the subscribers in focus, from the time at which a message was due at its
publisher to its last byte at the subscriber; promises are those to all subscribers. A message that
never arrived is not left out: its latency is infinite, so that a broker does not look faster for
the messages that it lost.

An independent unit is a link, or links with common random values, of one seed. Figures of latencies
and of withholding have an interval over these units; figures of a broker's process have one over
seeds. Brokers are compared unit by unit. Counts, and the greatest latency, are exact. Where a seed
has no data, the figure is not a number, and meets no target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.netem.errors import NetemError
from penstock.netem.figures.estimates import (
    Estimate,
    Standing,
    Statistic,
    all_of,
    at_least,
    at_most,
    bootstrap,
    exact,
    mean_of,
    pooled_mean,
    pooled_quantile,
    ratio,
    sum_of,
)
from penstock.netem.figures.intervals import Interval, union
from penstock.netem.figures.outcomes import MessageOutcome, Promises, join, keep_account
from penstock.netem.figures.table_rows import MemoryRow, Tables
from penstock.netem.figures.withheld_times import Accuracy, find_impaired, judge_withholding
from penstock.netem.runs.scenario import Scenario, Target

TOLERANCE_SECONDS: Final = 0.005
"""A message counts as equally fast if it is later by at most this time, seconds: a busy machine
of two cores adds as much to a process that wakes up."""

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LATENCIES: Final = (*QUANTILES, "mean", "max")
"""The figures in seconds, which follow the name of a stream."""

SHARE_AS_FAST: Final = "share_as_fast"
"""The share of a stream's messages that are at least as fast as under another broker; this
follows the name of a stream."""

COUNTS: Final = ("lost", "not_delivered", "reordered", "duplicated", "repeated")
"""The figures of `Promises`."""

MEMORY: Final = ("memory", "memory_left")
"""Bytes of resident set beyond what it was before the traffic: at most, and at the end."""

WITHHELD: Final = ("withheld_outside", "withheld_share")
"""Seconds of withholding that no impairment explains, of all subscribers in focus and seeds; and
the share of impaired time in which something was withheld."""

WAN_BYTES: Final = "wan_bytes"
"""Bytes that the links of `Scenario.wan_links` carried in both directions, the mean of seeds."""

Seconds = NDArray[np.float64]

Unit: TypeAlias = tuple[str, int]
"""An independent unit: its name, as in `ExpectedRow`, and the seed of the run."""


class Figure(NamedTuple):
    """A figure of a broker, before its interval is known.

    Attributes:
        n_units: the number of units; 0 where data is missing.
        is_exact: whether no random value has a part in it.
    """

    statistic: Statistic
    n_units: int
    is_exact: bool = False

    def estimate(self) -> Estimate:
        """Return its value, with its interval where it has one."""
        if not self.n_units:
            return Estimate(math.nan, math.nan, math.nan, 0)
        if self.is_exact:
            return exact(self.statistic(range(self.n_units)), self.n_units)
        return bootstrap(self.n_units, self.statistic)


class TargetVerdict(NamedTuple):
    """The verdict on a target.

    Attributes:
        is_judged: whether the verdict counts: that of a timing does not in a short run.
    """

    figure: str
    found: str
    bounds: str
    standing: Standing
    is_judged: bool

    @property
    def word(self) -> str:
        """Return ``met``, ``missed``, ``not shown`` or ``not judged``."""
        return self.standing if self.is_judged else "not judged"

    @property
    def is_missed(self) -> bool:
        """Return whether it is judged, and missed."""
        return self.is_judged and self.standing is Standing.MISSED

    @property
    def line(self) -> str:
        """Return all of that in a line."""
        return f"{self.word}: {self.figure}: {self.found} ({self.bounds})"


def quantile(latencies: Seconds, share: float) -> float:
    """Return the least latency that a share of all latencies do not exceed; nan of none.

    The result is one of the latencies: there is no value between two of them if one is infinite.
    """
    if not len(latencies):
        return math.nan
    return float(latencies[math.ceil(share * len(latencies)) - 1])


class Measures:
    """Figures of a run."""

    def __init__(self, scenario: Scenario, tables: Tables) -> None:
        self.scenario = scenario
        self.tables = tables
        self._promises: dict[tuple[str, int], Promises] = {}
        self._accuracy: dict[tuple[str, int, str], Accuracy] = {}
        self._estimates: dict[tuple[str, str, str | None, bool], Estimate] = {}
        self._figures: dict[tuple[str, str, str | None], Figure] = {}

    @cached_property
    def outcomes(self) -> dict[tuple[str, int], list[MessageOutcome]]:
        """The outcome of each message, by broker and seed."""
        return join(self.tables)

    @cached_property
    def _places(self) -> dict[tuple[str, int, str], tuple[str, str]]:
        """Group and unit of each subscriber, by broker, seed and Client Identifier."""
        return {
            (row.broker, row.seed, row.subscriber): (row.group, row.unit)
            for row in self.tables.expected
        }

    @cached_property
    def _in_units(self) -> dict[tuple[str, str, str | None], dict[Unit, list[MessageOutcome]]]:
        """Outcomes by broker, stream and group, which is None for all in focus, and by unit."""
        found: dict[tuple[str, str, str | None], dict[Unit, list[MessageOutcome]]] = {}
        for (broker, seed), outcomes in self.outcomes.items():
            for each in outcomes:
                group, unit = self._places[broker, seed, each.subscriber]
                key = (broker, each.message.stream, None if each.is_focus else group)
                found.setdefault(key, {}).setdefault((unit, seed), []).append(each)
        return found

    @cached_property
    def _units(self) -> dict[tuple[str | None, str | None], list[Unit]]:
        """Units by stream, which is None for all, and by group, as in `_in_units`."""
        found: dict[tuple[str | None, str | None], dict[Unit, None]] = {}
        for row in self.tables.expected:
            for stream in (None, row.stream):
                key = (stream, None if row.is_focus else row.group)
                found.setdefault(key, {})[row.unit, row.seed] = None
        return {key: sorted(units, key=lambda unit: unit[1]) for key, units in found.items()}

    def units(self, stream: str | None = None, group: str | None = None) -> list[Unit]:
        """Return the independent units, the same for all brokers: by seed, then as they stand."""
        return self._units.get((stream, group), [])

    def in_unit(self, broker: str, unit: Unit) -> list[MessageOutcome]:
        """Return what came to the subscribers in focus of a unit."""
        name, seed = unit
        return [
            each
            for each in self.outcomes.get((broker, seed), [])
            if each.is_focus and self._places[broker, seed, each.subscriber][1] == name
        ]

    def by_unit(
        self, broker: str, stream: str, group: str | None = None
    ) -> list[list[MessageOutcome]]:
        """Return the outcomes of a stream, a list for each of `units`.

        Returns:
            An empty list where one of the runs has none.
        """
        found = self._in_units.get((broker, stream, group), {})
        if {seed for _, seed in found} != set(self.scenario.seeds):
            return []
        return [found.get(unit, []) for unit in self.units(stream, group)]

    def samples(self, broker: str, stream: str, group: str | None = None) -> list[list[float]]:
        """Return the latencies of a stream, a list for each of `units`; arguments as `by_unit`.

        Returns:
            Seconds, infinite for what never came; an empty list where one of the runs has none.
        """
        return [
            [each.latency for each in of_unit] for of_unit in self.by_unit(broker, stream, group)
        ]

    def latencies(self, broker: str, stream: str) -> Seconds:
        """Return the latencies of a stream to the subscribers in focus, ascending.

        Returns:
            ``(n_messages,)``, seconds, infinite for what never came; none where one of the runs has
            none.
        """
        return np.sort([each for of_unit in self.samples(broker, stream) for each in of_unit])

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

    def impaired(self, broker: str, seed: int, unit: str | None = None) -> list[Interval]:
        """Return the times at which any subscriber in focus could not be reached as usual."""
        groups = {
            row.group
            for row in self.tables.expected
            if row.is_focus
            and (row.broker, row.seed) == (broker, seed)
            and unit in (None, row.unit)
        }
        return union(
            each
            for group in groups
            for each in find_impaired(self.scenario, self.tables, broker, seed, group)
        )

    @cached_property
    def _runs_with_links(self) -> set[tuple[str, int]]:
        return {(row.broker, row.seed) for row in self.tables.links}

    def withholding(self, broker: str) -> list[Accuracy] | None:
        """Return how withholding fits to impairments, for each of `units`.

        Returns:
            None where the links' states are unknown in one of the runs.
        """
        if not all((broker, seed) in self._runs_with_links for seed in self.scenario.seeds):
            return None
        found = []
        for unit, seed in self.units():
            key = (broker, seed, unit)
            if key not in self._accuracy:
                judged = judge_withholding(self.scenario, self.tables, broker, seed, unit)
                self._accuracy[key] = judged
            found.append(self._accuracy[key])
        return found

    def figure(self, name: str, broker: str, *, over: str | None = None) -> float:
        """Return the value of a figure; nan where data is missing. Otherwise as `estimate`."""
        found = self._figure(name, broker, over)
        return found.statistic(range(found.n_units)) if found.n_units else math.nan

    def estimate(self, name: str, broker: str, *, over: str | None = None) -> Estimate:
        """Return a figure with its interval.

        Raises:
            NetemError: there is no such figure or broker, or a share has nothing to compare with.
        """
        key = (name, broker, over, False)
        if key not in self._estimates:
            self._estimates[key] = self._figure(name, broker, over).estimate()
        return self._estimates[key]

    def ratio(self, name: str, broker: str, over: str) -> Estimate:
        """Return a figure of a broker over that of another, paired by unit, with its interval.

        Raises:
            NetemError: as `estimate` says.
        """
        key = (name, broker, over, True)
        if key not in self._estimates:
            ours, theirs = (self._figure(name, each, None) for each in (broker, over))
            both = ratio(ours.statistic, theirs.statistic)
            n_units = min(ours.n_units, theirs.n_units)
            self._estimates[key] = Figure(both, n_units, ours.is_exact).estimate()
        return self._estimates[key]

    def _figure(self, name: str, broker: str, over: str | None) -> Figure:
        key = (name, broker, over)
        if key not in self._figures:
            found = self._find(name, broker, over)
            # A ratio needs the same resamples of both sides again.
            self._figures[key] = found._replace(statistic=cache(found.statistic))
        return self._figures[key]

    def _find(self, name: str, broker: str, over: str | None) -> Figure:
        for each in (broker, over):
            if each is not None and each not in self.scenario.brokers:
                allowed = ", ".join(self.scenario.brokers)
                raise NetemError(f"figure {name}: broker {each!r}; allowed: {allowed}")
        seeds = self.scenario.seeds
        if name in COUNTS:
            accounts = [self.promises(broker, seed) for seed in seeds]
            counts = [math.nan if a is None else float(getattr(a, name)) for a in accounts]
            return Figure(sum_of(counts), len(seeds), is_exact=True)
        if name in MEMORY:
            grown = [self._grown(broker, seed, name) for seed in seeds]
            return Figure(mean_of(grown), len(seeds))
        if name == WAN_BYTES:
            return Figure(mean_of([self._wan_bytes(broker, seed) for seed in seeds]), len(seeds))
        if name in WITHHELD:
            return self._withheld(name, self.withholding(broker) or [])
        stream, _, kind = name.rpartition(" ")
        if stream not in self.scenario.traffic or kind not in (*LATENCIES, SHARE_AS_FAST):
            raise NetemError(
                f"figure: read {name!r}; allowed: {', '.join(self.scenario.figures())}"
            )
        if kind == SHARE_AS_FAST:
            if over is None:
                raise NetemError(f"figure {name}: no broker to compare with; allowed: over")
            return self._share_as_fast(stream, broker, over)
        samples = self.samples(broker, stream)
        return Figure(latency_statistic(samples, kind), len(samples), kind == "max")

    def _grown(self, broker: str, seed: int, name: str) -> float:
        grown = [each for _, each in self.growth(broker, seed)]
        if not grown:
            return math.nan
        return max(grown) if name == "memory" else grown[-1]

    def _wan_bytes(self, broker: str, seed: int) -> float:
        links = self.scenario.wan_links()
        carried = [
            row.carried_bytes
            for row in self.tables.packets
            if (row.broker, row.seed) == (broker, seed) and row.link in links
        ]
        return float(sum(carried)) if carried else math.nan

    @staticmethod
    def _withheld(name: str, found: list[Accuracy]) -> Figure:
        if name == "withheld_outside":
            return Figure(sum_of([each.outside for each in found]), len(found))
        both = sum_of([each.both for each in found])
        return Figure(ratio(both, sum_of([each.impaired for each in found])), len(found))

    def _share_as_fast(self, stream: str, broker: str, over: str) -> Figure:
        ours, theirs = (self.by_unit(name, stream) for name in (broker, over))
        fast, pairs = [], []
        # Both are empty where there is no data; units are the same, in the same order.
        for one, other in zip(ours, theirs, strict=False):
            latency, latency_of_other = (
                {
                    (each.message.publisher, each.message.number, each.subscriber): each.latency
                    for each in of_unit
                }
                for of_unit in (one, other)
            )
            both = latency.keys() & latency_of_other.keys()
            pairs.append(len(both))
            fast.append(
                sum(
                    math.isfinite(latency[key])
                    and latency[key] <= latency_of_other[key] + TOLERANCE_SECONDS
                    for key in both
                )
            )
        return Figure(ratio(sum_of(fast), sum_of(pairs)), len(pairs))

    def judge(self, target: Target, length: Literal["full", "short"]) -> TargetVerdict:
        """Return what came out for a target.

        Raises:
            NetemError: as `estimate` says.
        """
        figure, broker, over = target.figure, target.broker, target.over
        held = self.estimate(figure, broker, over=over)
        found = f"{broker} {show_estimate(figure, held)}"
        put: Callable[[float], str] = partial(show, figure)
        # Two known figures without a ratio, such as two infinite ones, show nothing.
        without_value = Standing.MISSED
        if over is not None and figure.endswith(f" {SHARE_AS_FAST}"):
            found += f" against {over}"
        elif over is not None:
            value, over_value = held.value, self.figure(figure, over)
            held = self.ratio(figure, broker, over)
            found = f"{broker} {put(value)}, {over} {put(over_value)}"
            found += ", no ratio" if math.isnan(held.value) else f": {show_ratio(held)} of it"
            put = "{:g}".format
            if not math.isnan(value + abs(over_value)):
                without_value = Standing.NOT_SHOWN
        if not math.isnan(held.value) and not _is_exact(figure):
            found += f", {count_units(held.n_units)}"
        bounds, standings = [], []
        for word, stand, bound in (
            ("at most", at_most, target.at_most),
            ("at least", at_least, target.at_least),
        ):
            if bound is not None:
                bounds.append(f"{word} {put(bound)}")
                standings.append(stand(held, bound))
        standing = without_value if math.isnan(held.value) else all_of(standings)
        is_judged = not (target.is_timing and length == "short")
        return TargetVerdict(figure, found, ", ".join(bounds), standing, is_judged)


def latency_statistic(samples: list[list[float]], kind: str) -> Statistic:
    """Return a figure of latencies as a statistic of units."""
    if kind in QUANTILES:
        return pooled_quantile(samples, QUANTILES[kind])
    if kind == "mean":
        return pooled_mean(samples)
    greatest = [max(each, default=-math.inf) for each in samples]
    return lambda units: max(greatest[unit] for unit in units)


def percent(share: float) -> float:
    """Return per cent with one decimal, rounded down: 100 % is said of all alone."""
    # 0.57 is less by as much as it cannot be written.
    return math.floor(1000 * share + 1e-9) / 10


def show_bytes(size: float) -> str:
    """Return a payload's size in words: ``100 B``, ``10 kB``, ``1 MB``."""
    for unit, least in (("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:g} {unit}"
    return f"{size:g} B"


def show(figure: str, value: float) -> str:
    """Return a figure in words, with its unit; a dash for what is not known."""
    kind = figure.rpartition(" ")[2]
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞"
    if kind in LATENCIES:
        return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
    if kind in (*MEMORY, WAN_BYTES):
        megabytes = value / 1e6
        # Nothing has no sign.
        return f"{megabytes:.0f} MB" if megabytes >= 100 else f"{round(megabytes, 1) + 0:.1f} MB"
    if kind in (SHARE_AS_FAST, "withheld_share"):
        return f"{percent(value):.1f} %"
    if kind == "withheld_outside":
        return f"{value:.1f} s"
    return f"{value:.0f}"


def _is_exact(figure: str) -> bool:
    return figure.rpartition(" ")[2] in (*COUNTS, "max")


def show_estimate(figure: str, found: Estimate) -> str:
    """Return a figure in words, with its interval where it depends on chance and has one."""
    if _is_exact(figure):
        return show(figure, found.value)
    return found.show(partial(show, figure))


def show_ratio(found: Estimate) -> str:
    """Return a ratio with its interval, where it has one."""
    return found.show(lambda value: "∞" if math.isinf(value) else f"{value:.2f}")


def count_units(n_units: int) -> str:
    """Return ``12 units``."""
    return f"{n_units} unit{'s' * (n_units != 1)}"
