"""Plots of figures 8 and 9 of paper 002, and of what each policy does on one trace."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, Final

from penstock.models.papers.withholding.claims import (
    FIGURE_8,
    FIGURE_8_PROBE_PERIOD,
    FIGURE_9,
    REPORTED_GAIN,
    WORDS,
    CheckedClaim,
    verdicts,
)
from penstock.models.papers.withholding.clairvoyant import least_latencies
from penstock.models.papers.withholding.simulation import WithholdingSetting, simulate
from penstock.models.papers.withholding.sweep import (
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    POLICIES,
    WRONG_RATE,
    WithholdingResults,
)
from penstock.netem.figures.estimates import Standing

SHOWN_SECONDS: Final = 300
"""The length of the trace's end that is shown; the policies run on all of it."""

FIGURE_INCHES: Final = (16, 9)
"""The width and height of the picture: those of a slide."""

LOOKS: Final = {
    BASELINE: ("gray", 1.8),
    "conservative": ("tab:orange", 1.8),
    "probabilistic": ("tab:green", 1.8),
    WRONG_RATE: ("tab:olive", 1.8),
    "historic": ("tab:purple", 1.8),
    CLAIRVOYANT: ("black", 1.8),
}
"""The color and the width of each policy's line, by label."""

COLUMNS: Final = {FIGURE_8: "The paper on figure 8", FIGURE_9: "The paper on figure 9"}
"""The heading above the claims about each figure, from the left."""

MARKS: Final = {
    Standing.MET: ("\u2713", "tab:green"),
    Standing.MISSED: ("\u2717", "tab:red"),
    Standing.NOT_SHOWN: ("?", "tab:gray"),
}
"""The mark of a verdict and its color, by how the claim stands."""

CLAIM_CHARACTERS: Final = 60
"""The length of a line of text below the plots."""

LINE_HEIGHT: Final = 0.053
"""The height of a line of text, as a share of the part below the plots."""

INDENT: Final = 0.05
"""The distance of a claim from its mark, as a share of the column's width."""

SHOWN: Final = (BASELINE, "conservative", "probabilistic", "historic")
"""The policies that have a panel, from the top; the clairvoyant one comes last."""


def draw_trace(trace: Sequence[float], setting: WithholdingSetting, file: Path) -> None:
    """Write the latency of each large message over time, with a panel for each policy.

    Congested seconds are shaded: those whose RTT is above threshold_l.
    """
    import matplotlib as mpl  # noqa: PLC0415 (the extra `models`; tables come without)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (the same)

    latencies = {label: simulate(POLICIES[label], trace, setting) for label in SHOWN}
    latencies[CLAIRVOYANT] = least_latencies(trace)
    begin = max(0, len(trace) - SHOWN_SECONDS)
    figure, panels = plt.subplots(
        len(latencies), 1, figsize=(11, 1.5 * len(latencies)), sharex=True, sharey=True
    )
    for axes, (label, all_of_them) in zip(panels, latencies.items(), strict=True):
        for since, until in congested_times(trace, setting.threshold_l):
            axes.axvspan(since, until, color="tab:red", alpha=0.12, lw=0)
        arrivals = range(0, len(trace), setting.message_period)
        shown = [(at, took) for at, took in zip(arrivals, all_of_them, strict=True) if at >= begin]
        axes.vlines([at for at, _ in shown], 0, [took for _, took in shown], lw=1.5)
        axes.plot(*zip(*shown, strict=True), "o", ms=3)
        axes.set_title(f"{label}: {mean(took for _, took in shown):.1f} s on average", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set_xlim(begin, len(trace))
    panels[0].set_ylim(bottom=0)
    panels[-1].set_xlabel("published at, s; shaded: congestion")
    figure.supylabel("end-to-end latency of each large message, s", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)


def congested_times(trace: Sequence[float], threshold_l: float) -> Iterator[tuple[int, int]]:
    """Yield (first second, second after the last) of each congestion."""
    by_state = groupby(enumerate(trace), key=lambda at: at[1] > threshold_l)
    for is_congested, group in by_state:
        seconds = [second for second, _ in group]
        if is_congested:
            yield seconds[0], seconds[-1] + 1


def draw(results: WithholdingResults, file: Path) -> None:
    """Draw latency by threshold_l at the least T_Q, and by T_Q at the middle threshold_l.

    Below are the paper's claims about each figure, each with the results. An arrow beside the
    curves shows how far below the baseline the paper reports historic.

    Raises:
        ImportError: matplotlib is not installed (the extra ``models``).
        OSError: the file cannot be written.
        ValueError: there is no such format.
    """
    import matplotlib as mpl  # noqa: PLC0415 (the extra `models`; tables come without)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (the same)

    figure = plt.figure(figsize=FIGURE_INCHES)
    draw_figures(results, figure)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def draw_figures(results: WithholdingResults, figure: Any) -> None:
    """Draw into a figure of matplotlib of `FIGURE_INCHES`."""
    traces = results.sweep.traces
    figure.suptitle(
        "Paper 002, figures 8 and 9, on the broker's own policies: mean and 95 % confidence"
        f" interval over {len(traces)} traces of {max(map(len, traces)):,} s",
        fontsize=14,
        y=0.985,
    )
    grid = figure.add_gridspec(
        2, 12, height_ratios=(5.0, 4.4), left=0.04, right=0.985, top=0.87, bottom=0.01, hspace=0.22
    )
    by_threshold = figure.add_subplot(grid[0, :6])
    by_period = figure.add_subplot(grid[0, 6:], sharey=by_threshold)
    _draw_curves(results, by_threshold, by_period)
    handles, labels = by_threshold.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.96), ncols=8, frameon=False
    )
    for column, (subject, heading) in enumerate(COLUMNS.items()):
        panel = figure.add_subplot(grid[1, 6 * column : 6 * column + 6])
        panel.axis("off")
        panel.text(0, 1, heading, fontsize=12, weight="bold", va="top")
        height = 1 - 1.6 * LINE_HEIGHT
        for verdict in verdicts(results):
            if verdict.subject == subject:
                height -= _write(panel, height, verdict)


def _write(panel: Any, height: float, verdict: CheckedClaim) -> float:
    """Write one claim and its results; return the height used."""
    mark, color = MARKS[verdict.standing]
    lines = textwrap.wrap(_bind(verdict.short), CLAIM_CHARACTERS)
    found = f"{WORDS[verdict.standing]}: {verdict.brief}"
    panel.text(0, height, mark, fontsize=14, weight="bold", color=color, va="top")
    panel.text(INDENT, height, "\n".join(lines), fontsize=10, va="top", linespacing=1.2)
    below = height - LINE_HEIGHT * len(lines)
    # Use a minus sign instead of the hyphen.
    panel.text(INDENT, below, found.replace("-", "\u2212"), fontsize=10, color=color, va="top")
    return LINE_HEIGHT * (len(lines) + 1.25)


def _bind(text: str) -> str:
    """Keep each number and its unit on one line."""
    return re.sub(r"(?<=[\d=]) (?=[\ds])", "\u00a0", text)


def _draw_curves(results: WithholdingResults, by_threshold: Any, by_period: Any) -> None:
    sweep = results.sweep
    period = min(sweep.probe_periods)
    threshold_l = sweep.middle_threshold()
    for label in (*POLICIES, CLAIRVOYANT):
        _line(
            by_threshold,
            label,
            sweep.thresholds,
            [results.latency(label, period, t) for t in sweep.thresholds],
        )
        _line(
            by_period,
            label,
            sweep.probe_periods,
            [results.latency(label, p, threshold_l) for p in sweep.probe_periods],
        )
    by_threshold.set(
        xlabel="threshold_l, s",
        ylabel="end-to-end latency of a large message, s",
        title=f"Figure 8: T_Q = {period} s",
    )
    by_threshold.set_xscale("log")
    by_threshold.set_xticks(sweep.thresholds, [f"{t:g}" for t in sweep.thresholds])
    by_threshold.set_xticks([], minor=True)
    by_period.set(xlabel="T_Q, s", title=f"Figure 9: threshold_l = {threshold_l:g} s")
    by_period.set_xticks(sweep.probe_periods)
    by_period.tick_params(labelleft=False)  # those of the plot beside it
    for axes in (by_threshold, by_period):
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    if period == FIGURE_8_PROBE_PERIOD:
        _show_reported_gain(by_threshold, results.latency(BASELINE, period, threshold_l).value)


def _show_reported_gain(axes: Any, baseline: float) -> None:
    """Draw beside the curves how far below the baseline the paper reports historic."""
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * 1.75)
    reported = baseline - REPORTED_GAIN
    at = right * 1.05
    look = {"color": LOOKS["historic"][0], "lw": 1.5}
    axes.annotate(
        "", (at, reported), (at, baseline), arrowprops=look | {"arrowstyle": "->"}, zorder=4
    )
    axes.text(
        at * 1.03,
        baseline - REPORTED_GAIN / 2,
        f"the paper:\nhistoric is\nabout {REPORTED_GAIN:g} s\nbelow none",
        color=look["color"],
        fontsize=10,
        va="center",
    )


def _line(axes: Any, label: str, positions: Any, estimates: Any) -> None:
    """Draw one policy; dashed where threshold_l has no effect on it."""
    style = "-" if label in GIVEN_THRESHOLD_L else "--"
    color, width = LOOKS[label]
    [line] = axes.plot(
        positions,
        [e.value for e in estimates],
        style,
        marker="o",
        ms=4,
        lw=width,
        label=label,
        color=color,
    )
    axes.fill_between(
        positions,
        [e.low for e in estimates],
        [e.high for e in estimates],
        alpha=0.12,
        color=line.get_color(),
    )
