"""The types of the campaign: a fault, its findings, and its extent."""

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
    """The extent of each fault.

    Attributes:
        scale: the share of the full number of kills, clients and messages; above 0.
        seconds: the length of a load that has no number of messages.
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
        name: the name of what was counted or measured.
        value: its value.
        unit: the unit of the value; "" for a plain number.
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
    """Print the findings of a kill campaign: the broken promises, then a row for each finding.

    Args:
        found: the findings, by what was killed.
        json_file: the file for all numbers; None for none.

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
    """A fault: one way in which a broker's surroundings fail.

    Attributes:
        name: the name in ``--faults``.
        title: the description of the fault.
        inflict: a function that makes the fault with a broker that does not run yet, and returns
            the findings.
        brokers: the names of the brokers for which it can be made.
    """

    name: str
    title: str
    inflict: Callable[[Subject, random.Random, Effort], Sequence[Finding]]
    brokers: tuple[str, ...] = (PENSTOCK, MOSQUITTO)
