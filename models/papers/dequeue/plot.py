"""Plots of figures 9 to 12 of paper 000."""

from __future__ import annotations

from pathlib import Path

from penstock.models.papers.dequeue.sweep import FIGURES, RDS, DequeueResults, claims
from penstock.models.papers.pictures import draw_curve, panels
from penstock.netem.figures.estimates import mean_estimate


def draw(results: DequeueResults, file: Path) -> None:
    """Draw the figures, with intervals, and what holds of the paper's claims below them."""
    with panels(file, 1, 4, (16, 7)) as grid:
        panel_of_figure_12 = grid[0][3]
        for axes, (name, (title, _)) in zip(grid[0], FIGURES.items(), strict=False):
            for label in results.by_rate:
                found = [results.found(label, rate, name) for rate in results.rates]
                draw_curve(axes, results.rates, found, marker="o", label=label)
            axes.set(title=title, xlabel="lambda, requests/s of a back end", ylim=(0, None))
        by_sleep_time = [
            mean_estimate([one.messages_per_second for one in each])
            for each in results.by_sleep_time.values()
        ]
        draw_curve(
            panel_of_figure_12, list(results.by_sleep_time), by_sleep_time, marker="o", label=RDS
        )
        title = f"figure 12: messages/s at lambda {results.rates[-1]}"
        panel_of_figure_12.set(title=title, xlabel="sleep time, s", xscale="log", ylim=(0, None))
        grid[0][0].legend()
        told = [f"{standing}: {claim}" for claim, standing, _ in claims(results)]
        figure = panel_of_figure_12.figure
        figure.set_layout_engine("none")
        figure.subplots_adjust(bottom=0.42, left=0.05, right=0.99)
        figure.text(0.05, 0.02, "\n".join(told), fontsize=10, verticalalignment="bottom")
