"""Results as medians, spread and ratios: a Markdown table and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchmarks.rows import Measurement, Row

OURS: Final = "penstock"
REFERENCE: Final = "mosquitto"
"""The peer that ratios are taken to."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row for one peer, over all repetitions.

    Attributes:
        row: the question.
        peer: name of the broker.
        measurements: one a repetition, at least one.
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

    @property
    def load_cpu_ratio(self) -> float | None:
        """Median share of one core that the load took; None where that was not measured."""
        ratios = [value.details.get("load_cpu_ratio") for value in self.measurements]
        known = [ratio for ratio in ratios if ratio is not None]
        return statistics.median(known) if known else None

    @property
    def lost(self) -> int:
        """Messages lost, over all repetitions."""
        return sum(measurement.lost for measurement in self.measurements)


def results_of(row: Row, measurements: Mapping[str, Sequence[Measurement]]) -> Iterator[Result]:
    """Yield a row's result for each peer, then those of each further figure.

    Args:
        row: the question.
        measurements: by the name of the peer.
    """
    for peer, values in measurements.items():
        yield Result(row, peer, values)
    for figure in row.figures:
        figure_row = replace(
            row,
            name=f"{row.name}_{figure.name}",
            title=figure.title,
            unit=figure.unit,
            target=figure.target,
            figures=(),
        )
        for peer, values in measurements.items():
            told = [replace(value, value=value.details[figure.name], lost=0) for value in values]
            yield Result(figure_row, peer, told)


def ratio_to_reference(result: Result, results: Sequence[Result]) -> float | None:
    """Return the median over the reference's median; None where that was not measured."""
    for other in results:
        if other.row is result.row and other.peer == REFERENCE and other.median:
            return result.median / other.median
    return None


def format_value(value: float) -> str:
    """Return a value with its leading figures: 1,234,567 or 1.23."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _cells(result: Result, results: Sequence[Result]) -> list[str]:
    low, high = result.spread
    ratio = ratio_to_reference(result, results)
    is_first = next(other for other in results if other.row is result.row) is result
    return [
        f"{result.row.title} ({result.row.target})" if is_first else "",
        result.peer,
        f"{format_value(result.median)} {result.row.unit}",
        f"{format_value(low)} - {format_value(high)}",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if result.load_cpu_ratio is None else f"{result.load_cpu_ratio:.2f}",
        str(result.lost),
    ]


def conclude(results: Sequence[Result]) -> str:
    """Return in one line how Penstock does in each row, and whether that meets the target."""
    parts = []
    for result in results:
        if result.peer != OURS:
            continue
        ratio = ratio_to_reference(result, results)
        text = f"{format_value(result.median)} {result.row.unit}"
        if ratio is not None:
            text += f", {ratio:.2f} x {REFERENCE}"
        is_met = result.row.target.is_met(result.median, ratio)
        outcome = {True: "met", False: "missed", None: "not compared"}[is_met]
        parts.append(f"{result.row.name} {text} ({result.row.target}: {outcome})")
    return f"{OURS}: {'; '.join(parts)}" if parts else f"{OURS} was not measured"


def to_markdown(results: Sequence[Result], run: Mapping[str, str]) -> str:
    """Return the conclusion, the table, and below it where the numbers come from."""
    repeats = max(len(result.measurements) for result in results)
    head = [
        "row (target)",
        "peer",
        f"median of {repeats}",
        "spread",
        f"/ {REFERENCE}",
        "load",
        "lost",
    ]
    lines = [head, ["---", "---", "---:", "---:", "---:", "---:", "---:"]]
    lines += [_cells(result, results) for result in results]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    source = "\n".join(f"- {name}: {text}" for name, text in run.items())
    return f"{conclude(results)}\n\n{table}\n\n{source}\n"


def to_json(results: Sequence[Result], run: Mapping[str, str]) -> dict[str, Any]:
    """Return the same, with every single measurement, as JSON can hold it."""
    return {
        "run": dict(run),
        "results": [
            {
                "row": result.row.name,
                "title": result.row.title,
                "unit": result.row.unit,
                "target": str(result.row.target),
                "peer": result.peer,
                "median": result.median,
                "spread": list(result.spread),
                "ratio_to_mosquitto": ratio_to_reference(result, results),
                "lost": result.lost,
                "measurements": [asdict(measurement) for measurement in result.measurements],
            }
            for result in results
        ],
    }
