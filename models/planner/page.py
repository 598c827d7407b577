"""A plan as an HTML page: its tables, and plots of the alternatives."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.models.planner import link_policies, report
from penstock.models.planner.planning import Plan
from penstock.netem.figures.estimates import Estimate
from penstock.netem.figures.figure_file import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: Final = """\
body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 80em; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ccc; padding: .25em .7em; text-align: left; }
th { background: #f2f2f2; }
svg { height: auto; max-width: 100%; }
"""


def write(plan: Plan, tables: Mapping[str, Table], file: Path) -> None:
    """Write the page; overwrite what is there.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: it cannot be written.
    """
    plots = draw(plan)
    parts = [_table(each) for each in tables.values()]
    file.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan</title>'
        f"<style>\n{STYLE}</style></head>\n<body><h1>Plan</h1>\n"
        f"<p>{html.escape(report.HEADING)}</p>\n{parts[0]}\n{plots}\n"
        + "\n".join(parts[1:])
        + "\n</body></html>\n",
        encoding="utf-8",
    )


def _table(table: Table) -> str:
    lines = [("th", table.columns), *(("td", row) for row in table.rows)]
    rows = ("".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in cells) for tag, cells in lines)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"


def _text(cell: str) -> str:
    """Return a cell of Markdown, with its code and its bold words."""
    escaped = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(cell))
    return re.sub(r"\*\*(.*?)\*\*", r"<b>\1</b>", escaped)


def draw(plan: Plan) -> str:
    """Return the plots as one SVG element.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    n_rows = 1 + bool(plan.deliveries) + bool(plan.held) + bool(plan.queues)
    figure, grid = plt.subplots(n_rows, 1, figsize=(11, 4 * n_rows), squeeze=False)
    axes = iter(grid[:, 0])
    _draw_stages(plan, next(axes))
    if plan.deliveries:
        _draw_deliveries(plan, next(axes))
    if plan.held:
        _draw_policies(plan, next(axes))
    if plan.queues:
        _draw_queues(plan, next(axes))
    figure.tight_layout()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    _, tag, rest = drawn.getvalue().partition("<svg")
    return tag + rest


def _draw_stages(plan: Plan, axes: Axes) -> None:
    stages = plan.stages[::-1]
    axes.barh([each.name for each in stages], [each.utilisation for each in stages])
    axes.axvline(1.0, color="red")
    axes.set(title="utilisation of stages (rho); at 1 a stage overflows", xlim=(0, 1.05))


def _draw_deliveries(plan: Plan, axes: Axes) -> None:
    for (source, name), given in plan.deliveries.items():
        for each in given[:2]:
            shares = np.linspace(0, 1, len(each.outcomes[0].quantiles))
            times = np.mean([one.quantiles for one in each.outcomes], axis=0) + each.wire_seconds
            label = f"{source} to {name}, {each.variant.name}"
            axes.plot(times, shares * each.success.value, label=label)
    axes.set(
        title="share of all messages that has arrived",
        xlabel="seconds from the message's creation",
        xscale="log",
        ylim=(0.0, 1.02),
    )
    axes.legend()


def _draw_policies(plan: Plan, axes: Axes) -> None:
    labels, small, large = [], [], []
    for name, held in plan.held.items():
        for policy in held.by_policy:
            labels.append(f"{name}:\n{policy}" if len(plan.held) > 1 else policy)
            small.append(held.small(policy, 0.99))
            large.append(held.large(policy))
    places = np.arange(len(labels))
    _bars(axes, (places - 0.2).tolist(), small, "small messages, p99")
    _bars(axes, (places + 0.2).tolist(), large, "large messages, mean")
    axes.set_xticks(places, labels)
    title = f"latency on links with bad phases, by policy; {link_policies.TWO_LANES}: lanes"
    axes.set(title=title, ylabel="seconds")
    axes.legend()


def _bars(axes: Axes, places: Sequence[float], found: Sequence[Estimate], label: str) -> None:
    values = [each.value for each in found]
    below = [max(0.0, each.value - each.low) for each in found]
    above = [max(0.0, each.high - each.value) for each in found]
    axes.bar(places, values, 0.4, yerr=(below, above), capsize=3, label=label)


def _draw_queues(plan: Plan, axes: Axes) -> None:
    for name, queue in plan.queues.items():
        stable = [each for each in queue.receivers if each.outcomes]
        services = plan.fleet.back_ends[name].seconds_per_message
        axes.plot(
            [each.count for each in stable],
            [each.delivery.value / services for each in stable],
            marker="o",
            label=name,
        )
    axes.set(
        title="time from arrival in the queue to the end, over the time of one message",
        xlabel="receivers",
        ylim=(0, None),
    )
    axes.legend()
