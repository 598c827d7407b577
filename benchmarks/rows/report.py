"""Results as medians, spread and ratios: a Markdown table and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchmarks.rows.rates import BROKER_CPU
from benchmarks.rows.row import Measurement, Row, Target
from penstock.netem.figures.figure_file import Table

OURS: Final = "penstock"
STOCK: Final = "penstock-stock"
"""The peer that is Penstock with the plugins of aMQTT's file: each of its ratio targets is half
of Penstock's."""

REFERENCE: Final = "mosquitto"
"""The peer that is the divisor of ratios."""

COMPARED: Final = frozenset({OURS, STOCK, REFERENCE})
"""The peers that decide whether a target is met."""

CEILING: Final = "ceiling"
NEAR_CEILING: Final = 0.8
"""The share of the load's own ceiling above which the load, not the broker, may limit the
figure."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one row for one peer, over all repetitions.

    Attributes:
        measurements: the measurements, one for each repetition, at least one.
    """

    row: Row
    peer: str
    measurements: Sequence[Measurement]

    @property
    def median(self) -> float:
        """The median value, in the row's unit."""
        return statistics.median(measurement.value for measurement in self.measurements)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the highest value."""
        values = [measurement.value for measurement in self.measurements]
        return min(values), max(values)

    def detail(self, name: str) -> float | None:
        """Return the median of a detail; None where that was not measured."""
        details = [value.details.get(name) for value in self.measurements]
        known = [detail for detail in details if detail is not None]
        return statistics.median(known) if known else None

    @property
    def target(self) -> Target:
        """The target of this peer."""
        if self.peer == OURS:
            return self.row.target
        if self.peer in self.row.store_targets:
            return self.row.store_targets[self.peer]
        return self.row.target.halved() if self.peer == STOCK else Target()

    @property
    def lost(self) -> int:
        """Messages lost, over all repetitions."""
        return sum(measurement.lost for measurement in self.measurements)


def results_of(row: Row, measurements: Mapping[str, Sequence[Measurement]]) -> Iterator[Result]:
    """Yield a row's result for each peer, then those of each further figure."""
    for peer, values in measurements.items():
        yield Result(row, peer, values)
    for figure in row.figures:
        figure_row = replace(
            row,
            name=f"{row.name}_{figure.name}",
            title=figure.title,
            unit=figure.unit,
            target=figure.target,
            store_targets=figure.store_targets,
            figures=(),
        )
        for peer, values in measurements.items():
            told = [Measurement(value.details[figure.name]) for value in values]
            yield Result(figure_row, peer, told)


def _ratio_to(peer: str, result: Result, results: Sequence[Result]) -> float | None:
    for other in results:
        if other.row is result.row and other.peer == peer and other.median:
            return result.median / other.median
    return None


def ratio_to_reference(result: Result, results: Sequence[Result]) -> float | None:
    """Return the median over the reference's median; None where that was not measured."""
    return _ratio_to(REFERENCE, result, results)


def ratio_to_ceiling(result: Result, results: Sequence[Result]) -> float | None:
    """Return the same over what the load can do; None where that was not measured."""
    return _ratio_to(CEILING, result, results)


def is_met(result: Result, results: Sequence[Result]) -> bool | None:
    """Say whether a result meets its target; None where it has none or was not compared."""
    return result.target.is_met(result.median, ratio_to_reference(result, results))


def is_undecided(results: Sequence[Result]) -> bool:
    """Say whether single repetitions disagree on whether a target is met."""
    for result in results:
        reference = next(
            (other for other in results if other.row is result.row and other.peer == REFERENCE),
            None,
        )
        known = () if reference is None else reference.measurements
        verdicts = {
            result.target.is_met(own.value, own.value / theirs.value if theirs.value else None)
            for own, theirs in zip(result.measurements, known or result.measurements, strict=False)
        }
        if verdicts >= {True, False}:
            return True
    return False


def format_value(value: float) -> str:
    """Return a value with its leading figures: 1,234,567 or 1.23."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _cells(result: Result, results: Sequence[Result]) -> list[str]:
    low, high = result.spread
    ratio = ratio_to_reference(result, results)
    of_ceiling = ratio_to_ceiling(result, results)
    is_first = next(other for other in results if other.row is result.row) is result
    outcome = "-" if (met := is_met(result, results)) is None else "met" if met else "missed"
    return [
        f"{result.row.title} ({result.row.target})" if is_first else "",
        result.peer,
        f"{format_value(result.median)} {result.row.unit}",
        str(len(result.measurements)),
        f"{format_value(low)} - {format_value(high)}",
        "-" if ratio is None else f"{ratio:.2f}",
        outcome,
        "-" if of_ceiling is None else f"{of_ceiling:.2f}",
        "-" if (cpu := result.detail(BROKER_CPU)) is None else format_value(cpu),
        "-" if (load := result.detail("load_cpu_ratio")) is None else f"{load:.2f}",
        str(result.lost),
    ]


def missed_rows(results: Sequence[Result]) -> list[str]:
    """Return in words each row whose target is missed, or cannot be judged."""
    missed = []
    for result in results:
        if (met := is_met(result, results)) or result.target == Target():
            continue
        ratio = ratio_to_reference(result, results)
        name = result.row.name if result.peer == OURS else f"{result.row.name} {result.peer}"
        value = f"{result.median:.2f}" if ratio is None else f"{ratio:.2f} x {REFERENCE}"
        told = f"{value}; {result.target}" if met is not None else "not compared"
        missed.append(f"{name} ({told})")
    return missed


def near_ceiling(results: Sequence[Result]) -> list[str]:
    """Return in words which rates are so near the load's own ceiling that it may have held them."""
    near = []
    for result in results:
        ratio = ratio_to_ceiling(result, results)
        is_rate = result.row.target.least_ratio is not None
        if is_rate and result.peer != CEILING and ratio is not None and ratio >= NEAR_CEILING:
            near.append(f"{result.row.name} {result.peer} ({ratio:.2f})")
    return near


def conclude(results: Sequence[Result]) -> str:
    """Return in a few lines which targets are missed, and how Penstock does in each row."""
    parts = []
    for result in results:
        if result.peer != OURS or result.target == Target():
            continue
        ratio = ratio_to_reference(result, results)
        text = f"{format_value(result.median)} {result.row.unit}"
        if ratio is not None:
            text += f", {ratio:.2f} x {REFERENCE}"
        outcome = {True: "met", False: "missed", None: "not compared"}[is_met(result, results)]
        parts.append(f"{result.row.name} {text} ({result.row.target}: {outcome})")
    if not parts:
        return f"{OURS} was not measured"
    lines = [f"rows missed: {', '.join(missed_rows(results)) or 'none'}"]
    if near := near_ceiling(results):
        lines.append(f"near the ceiling of the load, and perhaps faster: {', '.join(near)}")
    lines.append(f"{OURS}: {'; '.join(parts)}")
    return "\n\n".join(lines)


def to_markdown(results: Sequence[Result]) -> list[str]:
    """Return the conclusion and the table."""
    head = [
        "row (target)",
        "peer",
        "median",
        "runs",
        "spread",
        f"/ {REFERENCE}",
        "target",
        f"/ {CEILING}",
        "us each",
        "load",
        "lost",
    ]
    lines = [
        head,
        ["---", "---", "---:", "---:", "---:", "---:", "---", "---:", "---:", "---:", "---:"],
    ]
    lines += [_cells(result, results) for result in results]
    return [*conclude(results).splitlines(), "", *(f"| {' | '.join(cells)} |" for cells in lines)]


def to_json(results: Sequence[Result], run: Mapping[str, str]) -> dict[str, Any]:
    """Return the same, with every single measurement, as JSON can hold it."""
    return {
        "run": dict(run),
        "results": [
            {
                "row": result.row.name,
                "title": result.row.title,
                "unit": result.row.unit,
                "target": str(result.target),
                "peer": result.peer,
                "median": result.median,
                "spread": list(result.spread),
                "ratio_to_mosquitto": ratio_to_reference(result, results),
                "ratio_to_ceiling": ratio_to_ceiling(result, results),
                "is_met": is_met(result, results),
                "lost": result.lost,
                "measurements": [asdict(measurement) for measurement in result.measurements],
            }
            for result in results
        ],
    }


def to_tables(results: Sequence[Result]) -> dict[str, Table]:
    """Return the tables that a page shows.

    `rows` has each row. `options` has the broker's processor time of the rows that were measured
    with other options too. In a run of which Penstock and mosquitto took part, `lost` names the
    rows in which mosquitto is ahead, and `missed` those whose target Penstock misses, or of which
    single repetitions disagree.
    """
    by_name: dict[str, dict[str, Result]] = {}
    for result in results:
        by_name.setdefault(result.row.name, {})[result.peer] = result
    return {
        "rows": _rows_table(by_name, list(dict.fromkeys(result.peer for result in results))),
        "options": _options_table(by_name),
        "lost": Table(
            ["", "rows"], [[f"{REFERENCE} is ahead", ", ".join(_lost(by_name)) or "none"]]
        ),
        "missed": Table(
            ["target", "rows"],
            [
                [verdict, ", ".join(_judged(by_name, verdict)) or "none"]
                for verdict in ("missed", "not shown")
            ],
        ),
    }


def _ratio(of_peers: Mapping[str, Result]) -> float | None:
    ours = of_peers.get(OURS)
    return None if ours is None else ratio_to_reference(ours, list(of_peers.values()))


def _cpu(of_peers: Mapping[str, Result], peer: str) -> str:
    cpu = of_peers[peer].detail(BROKER_CPU) if peer in of_peers else None
    return "" if cpu is None else format_value(cpu)


def _rows_table(by_name: Mapping[str, Mapping[str, Result]], peers: Sequence[str]) -> Table:
    rows = []
    for name, of_peers in by_name.items():
        row = next(iter(of_peers.values())).row
        ratio = _ratio(of_peers)
        rows.append(
            [
                f"`{name}`",
                row.group,
                f"{row.title}, {'µs' if row.unit == 'us' else row.unit}",
                *(
                    format_value(of_peers[peer].median) if peer in of_peers else ""
                    for peer in peers
                ),
                "" if ratio is None else f"{ratio:.2f}",
                str(row.target),
                *(_cpu(of_peers, peer) for peer in peers),
            ]
        )
    columns = ["row", "group", "what is measured", *peers, f"{OURS} / {REFERENCE}", "target"]
    return Table([*columns, *(f"{peer}, µs each" for peer in peers)], rows)


def _options_table(by_name: Mapping[str, Mapping[str, Result]]) -> Table:
    """Return a column for each group of rows that are others with its name at the end."""
    groups: dict[str, None] = {}
    for name, of_peers in by_name.items():
        group = next(iter(of_peers.values())).row.group
        if name.removesuffix(f"_{group}") in by_name.keys() - {name}:
            groups[group] = None
    ends = ["", *(f"_{group}{twin}" for group in groups for twin in ("", "_random"))]
    rows = []
    for name in by_name:
        if any(name + end in by_name for end in ends[1:]):
            cells = [by_name.get(name + end, {}) for end in ends]
            told = [
                f"{_cpu(each, OURS)} / {_cpu(each, REFERENCE)}" if each else "" for each in cells
            ]
            rows.append([f"`{name}`", *told])
    columns = [f"{group}{twin}" for group in groups for twin in ("", ", random")]
    return Table(["row", "bare", *columns], rows)


def _lost(by_name: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    """Yield the rows with a target in which the reference is ahead."""
    for name, of_peers in by_name.items():
        target = next(iter(of_peers.values())).row.target
        ratio = _ratio(of_peers)
        if ratio is None or target == Target():
            continue
        if ratio < 1 if target.least_ratio is not None else ratio > 1:
            yield f"`{name}`"


def _judged(by_name: Mapping[str, Mapping[str, Result]], verdict: str) -> Iterator[str]:
    """Yield the rows whose target is ``missed``, or ``not shown`` to be either."""
    for name, of_peers in by_name.items():
        results = [of_peers[peer] for peer in (OURS, REFERENCE) if peer in of_peers]
        if OURS not in of_peers or is_met(results[0], results) is None:
            continue
        if is_undecided(results):
            told = "not shown"
        else:
            told = "met" if is_met(results[0], results) else "missed"
        if told == verdict:
            yield f"`{name}`"
