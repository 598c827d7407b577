"""Figures 9 to 12 of paper 000 from our results."""

from __future__ import annotations

from pathlib import Path

from penstock.models.dequeue.sweep import FIGURES, RDS, Results, claims
from penstock.netem.figures.estimates import bootstrap, mean_of


def draw(results: Results, file: Path) -> None:
    """Draw the figures, with intervals, and what holds of the paper's claims below them.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: its suffix is of no format.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, grid = plt.subplots(1, 4, figsize=(16, 7))
    for axes, (name, (title, _)) in zip(grid, FIGURES.items(), strict=False):
        for label in results.by_rate:
            found = [results.found(label, rate, name) for rate in results.rates]
            values = [one.value for one in found]
            (line,) = axes.plot(results.rates, values, marker="o", label=label)
            lows, highs = [one.low for one in found], [one.high for one in found]
            axes.fill_between(results.rates, lows, highs, alpha=0.2, color=line.get_color())
        axes.set(title=title, xlabel="lambda, requests/s of a back end", ylim=(0, None))
    by_sleep = [
        bootstrap(len(each), mean_of([one.messages_per_second for one in each]))
        for each in results.by_sleep_time.values()
    ]
    times, values = list(results.by_sleep_time), [one.value for one in by_sleep]
    grid[3].semilogx(times, values, marker="o", label=RDS)
    grid[3].fill_between(
        times, [one.low for one in by_sleep], [one.high for one in by_sleep], alpha=0.2
    )
    title = f"figure 12: messages/s at lambda {results.rates[-1]}"
    grid[3].set(title=title, xlabel="sleep time, s", ylim=(0, None))
    grid[0].legend()
    told = [f"{standing}: {claim}" for claim, standing, _ in claims(results)]
    figure.subplots_adjust(bottom=0.42, left=0.05, right=0.99)
    figure.text(0.05, 0.02, "\n".join(told), fontsize=10, verticalalignment="bottom")
    figure.savefig(file, dpi=100)
    plt.close(figure)
