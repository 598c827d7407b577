"""Plots of runs with many sizes of payload: figures 2 and 3 of paper 002."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from penstock.netem.figures.canvas import (
    INK,
    LEAST_LATENCY,
    Canvas,
    Plot,
    compare,
    label_latencies,
    shade,
    shaded,
    tidy,
)
from penstock.netem.figures.colours import find_focus, find_over, paint
from penstock.netem.figures.measures import Measures, Seconds, quantile, show, show_bytes
from penstock.netem.runs.run_file import RunInfo

MANY_SIZES: Final = 4
"""A plot by size is drawn from this number of sizes on; a run of small, large and probes has
three."""

WIDTH: Final = 0.5
"""The width of the marks of all brokers at one size, where sizes are 1 apart."""


def _sizes(measures: Measures) -> list[int]:
    """Return the sizes of payloads, ascending; none where they are too few for a plot."""
    traffic = measures.scenario.traffic
    sizes = {traffic[stream].payload_bytes for stream in measures.streams_in_focus()}
    return sorted(sizes) if len(sizes) >= MANY_SIZES else []


def draw_sizes(info: RunInfo, measures: Measures, folder: Path) -> Plot | None:
    """Draw latency by size and QoS, each broker beside the others (figure 2)."""
    scenario = measures.scenario
    sizes = _sizes(measures)
    if not sizes:
        return None
    streams = measures.streams_in_focus()
    levels = sorted({scenario.traffic[stream].qos for stream in streams})
    largest = f"{show_bytes(sizes[-1])} at QoS {scenario.traffic[streams[-1]].qos}"
    title = f"{largest}: p50 of {compare(measures, f'{streams[-1]} p50')}"
    about = "Latency by size of payload and QoS of the publisher"
    if len(scenario.seeds) > 1:
        about += f", all {len(scenario.seeds)} seeds together"
    canvas = Canvas(info, title, about)
    colours = paint(scenario)
    canvas.key(
        [
            *(
                Line2D([], [], color=colour, marker="o", markersize=9, linewidth=0, label=name)
                for name, colour in colours.items()
            ),
            Line2D([], [], color=INK, marker="o", markersize=6, linewidth=0, label="p50"),
            Line2D([], [], color=INK, marker="_", markersize=11, linewidth=0, label="p90"),
            Line2D([], [], color=INK, linewidth=1.6, label="up to p99"),
            Line2D(
                [],
                [],
                color=INK,
                marker="^",
                markersize=9,
                markerfacecolor="none",
                linewidth=0,
                label="never delivered above",
            ),
        ],
        in_colours=True,
    )
    grid = canvas.figure.subplots(1, len(levels), sharex=True, sharey=True, squeeze=False)
    canvas.figure.subplots_adjust(
        left=0.075, right=0.985, top=canvas.top - 0.3 / 7.2, bottom=canvas.bottom, wspace=0.06
    )
    for axes, qos in zip(grid[0], levels, strict=True):
        tidy(axes)
        axes.grid(visible=False, axis="x")
        axes.set_title(f"QoS {qos}", fontsize=14, loc="left", color=INK)
        for place, (broker, colour) in enumerate(colours.items()):
            offset = WIDTH * ((place + 0.5) / len(colours) - 0.5)
            for x, size in enumerate(sizes):
                of_it = [
                    measures.latencies(broker, stream)
                    for stream in streams
                    if (scenario.traffic[stream].payload_bytes, scenario.traffic[stream].qos)
                    == (size, qos)
                ]
                latencies = np.sort(np.concatenate([np.array([]), *of_it]))
                if len(latencies):
                    _draw_quantiles(axes, x + offset, latencies, colour)
        axes.set_xticks(range(len(sizes)), [show_bytes(size) for size in sizes])
        axes.set_xlabel("payload", fontsize=13)
    label_latencies(grid[0, 0], "y")
    canvas.save(folder / "sizes.png")
    return Plot("sizes.png", title, about)


def _draw_quantiles(axes: Axes, x: float, latencies: Seconds, colour: str) -> None:
    """Draw p50, p90 and a line up to p99; an arrow upwards where that never came."""
    shown = [quantile(latencies, share) for share in (0.5, 0.9, 0.99)]
    known = [max(each, LEAST_LATENCY) for each in shown if math.isfinite(each)]
    if len(known) < len(shown):
        foot = known[-1] if known else LEAST_LATENCY
        axes.plot(x, foot, marker="^", markersize=11, color=colour, markerfacecolor="none")
    axes.plot([x] * len(known), known, color=colour, linewidth=1.8)
    for latency, marker, size in zip(known, ("o", "_"), (9, 11), strict=False):
        axes.plot(x, latency, marker=marker, markersize=size, color=colour)


def correlate(measures: Measures, broker: str, seed: int, size: int) -> float:
    """Return the correlation between a broker's memory and the latency from it to subscribers.

    Returns:
        Spearman's rank correlation of a message's latency and the memory in the middle of its way,
        -1 to 1; nan where one of the two is constant.
    """
    growth = measures.growth(broker, seed)
    pairs = [
        (each.delivered_s - begin_s, (begin_s + each.delivered_s) / 2)
        for each in measures.outcomes[broker, seed]
        if each.is_focus
        and each.copies
        and each.message.payload_bytes == size
        and (begin_s := each.message.arrived_s) is not None
    ]
    if not growth or not pairs:
        return math.nan
    latencies, middles = zip(*pairs, strict=True)
    memory = np.interp(middles, [at for at, _ in growth], [grown for _, grown in growth])
    of_latency, of_memory = _rank(np.array(latencies)), _rank(memory)
    spread = of_latency.std() * of_memory.std()
    if spread == 0:
        return math.nan
    together = (of_latency - of_latency.mean()) * (of_memory - of_memory.mean())
    return float(together.mean() / spread)


def _rank(values: Seconds) -> Seconds:
    """Return the place of each value among all; those that are the same share the middle one."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: Seconds = last - (counts - 1) / 2
    return middle[which]


def draw_memory_by_latency(info: RunInfo, measures: Measures, folder: Path) -> Plot | None:
    """Draw latency from the broker to subscribers over time, above its memory (figure 3)."""
    scenario = measures.scenario
    seed = scenario.seeds[0]
    sizes = _sizes(measures)
    names = [find_focus(scenario), find_over(scenario)]
    shown = [name for name in names if name is not None and (name, seed) in measures.outcomes]
    if not sizes or not shown:
        return None
    title = f"Late messages and memory: {compare(measures, 'memory')}"
    about = (
        f"Latency from the broker to each subscriber by payload, and memory beyond that before, "
        f"seed {seed}; correlation of {show_bytes(sizes[-1])}"
    )
    canvas = Canvas(info, title, about, inches=7.8)
    shades = mpl.colormaps["viridis_r"](np.linspace(0.12, 1.0, len(sizes)))
    of_size = dict(zip(sizes, shades, strict=True))
    known = [
        Line2D([], [], color=colour, marker="o", markersize=8, linewidth=0, label=show_bytes(size))
        for size, colour in of_size.items()
    ]
    canvas.key([*known, *shaded(measures)])
    grid = canvas.figure.subplots(
        2, len(shown), sharex=True, sharey="row", squeeze=False, height_ratios=(2, 1)
    )
    canvas.figure.subplots_adjust(
        left=0.09,
        right=0.985,
        top=canvas.top - 0.3 / 7.8,
        bottom=canvas.bottom,
        wspace=0.06,
        hspace=0.1,
    )
    colours = paint(scenario)
    for column, broker in enumerate(shown):
        above, below = grid[:, column]
        for axes in (above, below):
            tidy(axes)
            shade(axes, measures, broker, seed)
        for size, colour in of_size.items():
            of_it = [
                each
                for each in measures.outcomes[broker, seed]
                if each.is_focus and each.copies and each.message.payload_bytes == size
            ]
            points = [
                (begin_s, latency)
                for each in of_it
                if (begin_s := each.message.arrived_s) is not None
                # Where the subscriber beside the broker had it later, nothing is known.
                and (latency := each.delivered_s - begin_s) > LEAST_LATENCY
            ]
            above.scatter(
                [begin_s for begin_s, _ in points],
                [latency for _, latency in points],
                s=12,
                color=[colour],
                linewidths=0,
                alpha=0.6,
            )
        growth = measures.growth(broker, seed)
        below.fill_between(
            [at for at, _ in growth],
            [grown / 1e6 for _, grown in growth],
            color=colours[broker],
            alpha=0.25,
            linewidth=0,
        )
        below.plot(
            [at for at, _ in growth],
            [grown / 1e6 for _, grown in growth],
            color=colours[broker],
            linewidth=2.4,
        )
        figure = show("memory", max((grown for _, grown in growth), default=math.nan))
        rank = correlate(measures, broker, seed, sizes[-1])
        told = "" if math.isnan(rank) else f"; rank correlation {rank:.2f}"
        above.set_title(
            f"{broker}: at most {figure}{told}",
            fontsize=14,
            fontweight="bold",
            loc="left",
            color=colours[broker],
        )
        below.set_xlabel("seconds since the beginning of the traffic", fontsize=13)
    label_latencies(grid[0, 0], "y")
    grid[1, 0].set_ylabel("MB", fontsize=13)
    grid[0, 0].set_ylabel("broker to subscriber", fontsize=13)
    canvas.save(folder / "memory-by-latency.png")
    return Plot("memory-by-latency.png", title, about)
