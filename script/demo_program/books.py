"""Comparisons of the published messages with those that arrived. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", int, str)

SHOWN_KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class Comparison(Generic[Key]):
    """The messages that should be in a place, and those that are there.

    Attributes:
        repeated: the messages that are there more than once.
    """

    expected: int
    missing: Sequence[Key]
    repeated: Sequence[Key]

    @property
    def found(self) -> int:
        """The number of expected messages that are there."""
        return self.expected - len(self.missing)

    def problems(self, where: str, what: str, *, once: bool) -> list[str]:
        """Return the problems, each as a sentence."""
        found = []
        if self.missing:
            found.append(f"{where}: {len(self.missing)} {what} missing: {_some(self.missing)}")
        if once and self.repeated:
            found.append(f"{where}: {len(self.repeated)} {what} twice: {_some(self.repeated)}")
        return found


def _some(keys: Sequence[object]) -> str:
    shown = ", ".join(str(key) for key in keys[:SHOWN_KEYS])
    return shown + (", ..." if len(keys) > SHOWN_KEYS else "")


def compare(expected: AbstractSet[Key], found: Iterable[Key]) -> Comparison[Key]:
    """Compare what should be somewhere with what is."""
    counts = Counter(found)
    return Comparison(
        expected=len(expected),
        missing=sorted(key for key in expected if not counts[key]),
        repeated=sorted(key for key in expected if counts[key] > 1),
    )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The percentiles of the latency of some messages, seconds."""

    n_messages: int
    p50: float
    p90: float
    p99: float


def percentiles(latencies: Sequence[float]) -> Percentiles | None:
    """Return the percentiles of some latencies; None where there are none."""
    if not latencies:
        return None
    if len(latencies) == 1:
        return Percentiles(1, *latencies, *latencies, *latencies)
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    return Percentiles(len(latencies), cuts[49], cuts[89], cuts[98])


@dataclass(frozen=True, slots=True)
class Ledger:
    """The broker's own counts of the messages that its subscribers should get.

    A message that moved to a subscriber's other lane counts as matched again there.
    """

    matched: int
    delivered: int
    inflight: int
    withheld: int
    queued: int
    expired: int
    moved: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def accounted(self) -> int:
        """Messages whose place is known."""
        on_the_way = self.inflight + self.withheld + self.queued
        ended = self.delivered + self.expired + self.moved + sum(self.dropped.values())
        return ended + on_the_way

    @property
    def is_balanced(self) -> bool:
        """Return whether the counts add up to all messages."""
        return self.matched == self.accounted

    @property
    def is_settled(self) -> bool:
        """Return whether no message is under way any more."""
        return self.is_balanced and not (self.inflight or self.withheld or self.queued)


def read_ledger(figures: Mapping[str, int]) -> Ledger:
    """Return the ledger that stands in a broker's figures."""
    names = ("matched", "delivered", "inflight", "withheld", "queued", "expired", "moved")
    return Ledger(
        **{name: figures.get(f"ledger/{name}", 0) for name in names},
        dropped=_below("ledger/dropped/", figures),
    )


@dataclass(frozen=True, slots=True)
class SinkLedger:
    """The broker's own counts of the messages that were published to a queue's topics."""

    matched: int
    stored: int
    queued: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_balanced(self) -> bool:
        """Return whether the place of every message is known."""
        return self.matched == self.stored + self.queued + sum(self.dropped.values())


def read_sink_ledger(figures: Mapping[str, int], sink: str) -> SinkLedger:
    """Return the account of one sink that stands in a broker's figures."""
    root = f"ledger/sinks/{sink}/"
    names = ("matched", "stored", "queued")
    return SinkLedger(
        **{name: figures.get(root + name, 0) for name in names},
        dropped=_below(f"{root}dropped/", figures),
    )


def _below(root: str, figures: Mapping[str, int]) -> dict[str, int]:
    return {
        name.removeprefix(root): value
        for name, value in figures.items()
        if name.startswith(root) and value
    }
