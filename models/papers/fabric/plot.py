"""Plots of figures 3.9 to 3.11, 3.14 and 3.16 of paper 001."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.models.papers.fabric.setting import FabricSetting
from penstock.models.papers.fabric.sweep import (
    COPY_NAMES,
    DETECTION_TIMES,
    DISTRIBUTIONS,
    RING_NAMES,
    FabricResults,
    one_failure,
    throughput,
    two_failures,
    with_pauses,
)
from penstock.models.papers.pictures import draw_curve, panels


def draw(results: FabricResults, file: Path) -> None:
    """Draw throughput over time, and errors; means over runs in a band from least to most."""
    with panels(file, 2, 3, (18, 9)) as grid:
        for row, (copies, copies_name) in zip(grid, COPY_NAMES.items(), strict=True):
            for place, (each, name) in enumerate(DISTRIBUTIONS.items()):
                setting = one_failure(each, needs_all_copies=copies)
                _over_time(results, row[0], setting, name, f"C{place}")
            row[0].set(title=f"figure 3.9: D is killed, {copies_name}")
            for place, (directions, name) in enumerate(RING_NAMES.items()):
                for each, style in (("exclusion", "-"), ("repeat", "--")):
                    setting = two_failures(directions, each, needs_all_copies=copies)
                    label = f"{name}, {DISTRIBUTIONS[each]}"
                    _over_time(results, row[1], setting, label, f"C{place}", style)
            row[1].set(title=f"figures 3.14, 3.16: D, then E is killed, {copies_name}")
            for axes in row[:2]:
                axes.set(xlabel="seconds", ylabel="messages/s stored", ylim=(0, None))
                axes.legend(fontsize=7)
        _by_detection_time(results, grid[0][2])
        _errors(results, grid[1][2])


def _over_time(
    results: FabricResults,
    axes: Any,
    setting: FabricSetting,
    label: str,
    colour: str,
    style: str = "-",
) -> None:
    seconds = list(zip(*(one.stored for one in results.by_point[setting]), strict=True))
    means = [sum(each) / len(each) for each in seconds]
    axes.plot(range(len(means)), means, style, color=colour, label=label)
    axes.fill_between(
        range(len(means)), list(map(min, seconds)), list(map(max, seconds)), alpha=0.1, color=colour
    )


def _by_detection_time(results: FabricResults, axes: Any) -> None:
    found = [results.found(with_pauses(time), throughput) for time in DETECTION_TIMES]
    draw_curve(axes, DETECTION_TIMES, found, marker="o")
    axes.set(title="figure 3.11: messages/s", xlabel="slowdown detection time, s", ylim=(0, None))


def _errors(results: FabricResults, axes: Any) -> None:
    """Draw the errors to clients by second, summed up from the begin of a run."""
    for place, (each, name) in enumerate(DISTRIBUTIONS.items()):
        outcomes = results.by_point[one_failure(each, needs_all_copies=False)]
        total, summed = 0.0, []
        for second in range(len(outcomes[0].failed)):
            total += sum(one.failed[second] + one.refused[second] for one in outcomes)
            summed.append(total / len(outcomes))
        axes.plot(summed, color=f"C{place}", label=name)
    axes.set(title="figure 3.10: errors so far, two of three copies", xlabel="seconds")
    axes.legend(fontsize=7)
