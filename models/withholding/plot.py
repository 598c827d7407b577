"""Figures 8 and 9 of paper 002 from our results, and what each policy did on one trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any, Final

from models.withholding.clairvoyant import least_latencies
from models.withholding.simulation import Setting, simulate
from models.withholding.sweep import (
    ADAPTIVE,
    BASELINE,
    CLAIRVOYANT,
    GIVEN_THRESHOLD_L,
    POLICIES,
    Results,
)

SHOWN_SECONDS: Final = 300
"""Of the trace's end, when `adaptive` has learned; the policies are run on all of it."""

SHOWN: Final = (BASELINE, "conservative", "probabilistic", "historic", ADAPTIVE)
"""Panels from above; the clairvoyant one comes last."""


def draw_trace(trace: Sequence[float], setting: Setting, file: Path) -> None:
    """Write the latency of each large message over time, with a panel for each policy.

    Congested seconds are shaded: those whose RTT is above threshold_l.

    Args:
        trace: RTT of the query in each second, seconds.
        setting: its threshold_l is not None.
        file: as for `draw`.

    Raises:
        ImportError: as `draw`.
        OSError: as `draw`.
        ValueError: as `draw`.
    """
    import matplotlib as mpl  # noqa: PLC0415 (the extra `models`; tables come without)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (the same)

    latencies = {label: simulate(POLICIES[label], trace, setting) for label in SHOWN}
    latencies[CLAIRVOYANT] = least_latencies(trace)
    begin = max(0, len(trace) - SHOWN_SECONDS)
    threshold_l = setting.threshold_l or 0.0
    figure, panels = plt.subplots(
        len(latencies), 1, figsize=(11, 1.5 * len(latencies)), sharex=True, sharey=True
    )
    for axes, (label, all_of_them) in zip(panels, latencies.items(), strict=True):
        for since, until in congested_times(trace, threshold_l):
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


def draw(results: Results, file: Path) -> None:
    """Write latency by threshold_l at the least T_Q, and by T_Q at the middle threshold_l.

    Args:
        results: of a sweep.
        file: its suffix, such as ``.png``, says in which format; overwritten.

    Raises:
        ImportError: matplotlib is not installed (the extra ``models``).
        OSError: the file cannot be written.
        ValueError: there is no such format.
    """
    import matplotlib as mpl  # noqa: PLC0415 (the extra `models`; tables come without)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (the same)

    sweep = results.sweep
    figure, (by_threshold, by_period) = plt.subplots(1, 2, figsize=(13, 5), sharey=True)
    period = min(sweep.probe_periods)
    threshold_l = sweep.thresholds[len(sweep.thresholds) // 2]
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
        xlabel="threshold_l, s", ylabel="end-to-end latency, s", title=f"T_Q = {period} s (fig. 8)"
    )
    by_threshold.set_xscale("log")
    by_threshold.set_xticks(sweep.thresholds, [f"{t:g}" for t in sweep.thresholds])
    by_threshold.set_xticks([], minor=True)
    by_period.set(xlabel="T_Q, s", title=f"threshold_l = {threshold_l:g} s (fig. 9)")
    for axes in (by_threshold, by_period):
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    by_threshold.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _line(axes: Any, label: str, positions: Any, estimates: Any) -> None:
    """Draw one policy; where threshold_l is no matter to it, dashed."""
    style = "-" if label in GIVEN_THRESHOLD_L else "--"
    color = {BASELINE: "gray", CLAIRVOYANT: "black"}.get(label)
    [line] = axes.plot(
        positions, [e.mean for e in estimates], style, marker="o", ms=3, label=label, color=color
    )
    axes.fill_between(
        positions,
        [e.low for e in estimates],
        [e.high for e in estimates],
        alpha=0.15,
        color=line.get_color(),
    )
