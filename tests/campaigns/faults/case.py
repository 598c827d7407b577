"""The types of the campaign: a fault, its findings, and how much of it is done."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from benchmarks.program import describe_run, tell, write_json
from benchmarks.rows.report import format_value
from tests.campaigns.faults.subject import Subject

PENSTOCK = "penstock"
MOSQUITTO = "mosquitto"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of each fault is done.

    Attributes:
        scale: share of the full number of kills, clients and messages; above 0.
        seconds: for which a load lasts that has no number.
    """

    scale: float
    seconds: float

    def count(self, full: int, least: int = 1) -> int:
        """Return how many of `full` are done."""
        return max(least, round(full * self.scale))


FULL = Effort(scale=1.0, seconds=30.0)
QUICK = Effort(scale=0.1, seconds=5.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One number that a fault gave.

    Attributes:
        name: what was counted or measured, in words.
        value: of it.
        unit: of the value; "" for a plain number.
        most: the largest value that keeps the promise; None where there is no such bound.
        least: the smallest one; None where there is no such bound.
    """

    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def bound(self) -> str:
        """The bound in words; "" without one."""
        unit = f" {self.unit}" if self.unit else ""
        if self.most is not None:
            return f"at most {self.most:,g}{unit}"
        return "" if self.least is None else f"at least {self.least:,g}{unit}"

    @property
    def is_met(self) -> bool | None:
        """Whether the bound is kept; None without one."""
        if self.most is not None:
            return self.value <= self.most
        return None if self.least is None else self.value >= self.least


def report(found: Mapping[str, Sequence[Finding]], json_file: Path | None) -> None:
    """Tell the findings of a kill campaign: the promises that are broken, then a row for each.

    Args:
        found: what was killed to its findings.
        json_file: gets every number; None for none.

    Raises:
        typer.Exit: with status 1, a promise is broken.
    """
    rows = [(name, each) for name, findings in found.items() for each in findings]
    broken = [f"{name}: {each.name}" for name, each in rows if each.is_met is False]
    lines = [f"promises broken: {'; '.join(broken) or 'none'}", ""]
    lines += ["| killed | finding | promise | found |", "|---|---|---|---:|"]
    for name, each in rows:
        value = f"{format_value(each.value)} {each.unit}".rstrip()
        lines.append(f"| {name} | {each.name} | {each.bound or '-'} | {value} |")
    run = describe_run()
    values = {name: {each.name: each.value for each in found[name]} for name in found}
    write_json(json_file, {"run": run, "found": values})
    tell(lines, run)
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a broker's surroundings fail.

    Attributes:
        name: as in ``--faults``.
        title: what is done, in words.
        inflict: does it to a broker that does not run yet; returns what was found.
        brokers: names of those that it can be done to.
    """

    name: str
    title: str
    inflict: Callable[[Subject, random.Random, Effort], Sequence[Finding]]
    brokers: tuple[str, ...] = (PENSTOCK, MOSQUITTO)
