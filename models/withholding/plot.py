"""Figures 8 and 9 of paper 002 from our results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.withholding.sweep import BASELINE, CLAIRVOYANT, GIVEN_THRESHOLD_L, POLICIES, Results


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
