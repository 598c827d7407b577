"""Plots of a run for slides, each of which shows one finding.

Plots over time show the first seed alone, and latencies of one of its units, as other links are bad
at other times; distributions cover all seeds and units.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from penstock.netem.figures.canvas import (
    DIMMED_COLOUR,
    FAINT,
    INK,
    LEAST_LATENCY,
    Canvas,
    Plot,
    begin,
    compare,
    label_latencies,
    shade,
    shaded,
    spread,
    tidy,
)
from penstock.netem.figures.colours import find_focus, find_over, paint
from penstock.netem.figures.measures import Measures, percent, show, show_bytes
from penstock.netem.figures.outcomes import MessageOutcome
from penstock.netem.figures.size_plots import draw_memory_by_latency, draw_sizes
from penstock.netem.runs.run_file import RunInfo

LARGE_BYTES: Final = 10_000
"""A payload above this is drawn as large (threshold_s of paper 002)."""

MANY_MESSAGES: Final = 3_000
"""From this number of messages in a panel on, they are drawn transparent."""

FEW_MESSAGES: Final = 150
"""Up to this number of messages in a panel, the dots are larger."""


def draw(info: RunInfo, measures: Measures, folder: Path) -> list[Plot]:
    """Draw everything there is data for, as PNG into a folder.

    Raises:
        OSError: a file cannot be written.
    """
    drawn = [
        each(info, measures, folder)
        for each in (
            draw_latencies,
            draw_distributions,
            draw_memory,
            draw_sizes,
            draw_memory_by_latency,
        )
    ]
    return [plot for plot in drawn if plot is not None]


def draw_latencies(info: RunInfo, measures: Measures, folder: Path) -> Plot | None:
    """Draw the latency of each message of a unit over time, a panel for each broker."""
    scenario = measures.scenario
    seed = scenario.seeds[0]
    unit = _shown_unit(measures)
    colours = paint(scenario)
    shown = [name for name in colours if (name, seed) in measures.outcomes]
    streams = measures.streams_in_focus()
    if not shown or not streams or unit is None:
        return None
    came = {broker: measures.in_unit(broker, (unit, seed)) for broker in shown}
    held_from = sorted(
        {row.subscriber for row in measures.tables.withheld}
        & {each.subscriber for of_broker in came.values() for each in of_broker}
    )
    title = begin(f"{streams[0]} messages: p90 of {compare(measures, f'{streams[0]} p90')}")
    about = f"Latency of each message by when it was due, {unit}, seed {seed}"
    n_units = len(measures.units())
    if n_units > 1:
        about += f"; figures are of all {n_units} units"
    panel = max(1.2, min(2.3, 7.2 / len(shown)))
    canvas = Canvas(info, title, about, inches=2.4 + panel * len(shown))
    canvas.key(_shapes(measures, streams, came, held_from))
    # Beside the name of the first broker: the key may need the whole line above it.
    style: dict[str, Any] = {"fontsize": 10.5, "color": FAINT, "fontstyle": "italic"}
    canvas.figure.text(0.99, canvas.top, "p50, p90", va="top", ha="right", **style)
    grid = canvas.figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)
    canvas.figure.subplots_adjust(
        left=0.075, right=0.8, top=canvas.top, bottom=canvas.bottom, hspace=0.14
    )
    ends = list(dict.fromkeys((streams[0], streams[-1])))
    for axes, broker in zip(grid[:, 0], shown, strict=True):
        tidy(axes)
        shade(axes, measures, broker, seed, unit)
        _scatter(axes, came[broker], colours[broker])
        _mark_withheld(axes, measures, broker, seed, held_from)
        figures = [
            f"{stream} {show('p50', measures.figure(f'{stream} p50', broker))}, "
            f"{show('p90', measures.figure(f'{stream} p90', broker))}"
            for stream in ends
        ]
        place = {"transform": axes.transAxes, "va": "top"}
        axes.text(
            1.015, 0.97, broker, fontsize=15, fontweight="bold", color=colours[broker], **place
        )
        below = 0.97 - 0.3 / panel
        axes.text(
            1.015, below, "\n".join(figures), fontsize=11, color=INK, linespacing=1.4, **place
        )
    first = grid[0, 0]
    label_latencies(first, "y")
    # Room at the foot for what is withheld, and at the top for whole rings.
    low, high = first.get_ylim()
    first.set_ylim(low / (high / low) ** (2 * _foot(held_from)), high * (high / low) ** 0.04)
    held = [
        row.end_s
        for row in measures.tables.withheld
        if row.seed == seed and row.subscriber in held_from
    ]
    end_s = max(scenario.duration_seconds, *held, 0.0)
    first.set_xlim(-0.006 * end_s, 1.006 * end_s)
    grid[-1, 0].set_xlabel("seconds since the beginning of the traffic", fontsize=13)
    canvas.save(folder / "latency.png")
    return Plot("latency.png", title, about)


def _shown_unit(measures: Measures) -> str | None:
    """Return the first unit of the first seed that was impaired, or the first one, if any."""
    seed = measures.scenario.seeds[0]
    names = [name for name, of_seed in measures.units() if of_seed == seed]
    impaired = (
        name
        for name in names
        if any(measures.impaired(broker, seed, name) for broker in measures.scenario.brokers)
    )
    return next(impaired, names[0] if names else None)


def _mark_withheld(
    axes: Axes, measures: Measures, broker: str, seed: int, names: list[str]
) -> None:
    """Show at the foot when anything was withheld: a row for each subscriber of those named."""
    rows = measures.tables.withheld
    height = _foot(names) / max(1, len(names))
    for place, name in enumerate(names):
        held = [
            (row.begin_s, row.end_s - row.begin_s)
            for row in rows
            if (row.broker, row.seed, row.subscriber) == (broker, seed, name)
        ]
        axes.broken_barh(
            held,
            (place * height, 0.8 * height if len(names) > 1 else height),
            transform=axes.get_xaxis_transform(),
            color=INK,
            linewidth=0,
            snap=False,
        )


def _foot(names: list[str]) -> float:
    """Return the share of a panel in which withholding from so many subscribers is marked."""
    return 0.045 if len(names) < 2 else 0.12


def _scatter(axes: Axes, outcomes: list[MessageOutcome], colour: str) -> None:
    """Draw messages: small ones as dots, large ones as rings."""
    came = [each for each in outcomes if each.copies]
    alpha = 0.35 if len(came) > MANY_MESSAGES else 1.0
    area = 30 if len(came) < FEW_MESSAGES else 11
    styles: tuple[tuple[bool, dict[str, Any]], ...] = (
        (False, {"s": area, "color": colour, "linewidths": 0}),
        (True, {"s": 42, "facecolors": "none", "edgecolors": colour, "linewidths": 1.3}),
    )
    for is_large, style in styles:
        drawn = [each for each in came if (each.message.payload_bytes > LARGE_BYTES) is is_large]
        axes.scatter(
            [each.message.due_s for each in drawn],
            [max(each.latency, LEAST_LATENCY) for each in drawn],
            alpha=alpha,
            **style,
        )
    never = [each.message.due_s for each in outcomes if not each.copies]
    axes.scatter(
        never,
        [0.97] * len(never),
        transform=axes.get_xaxis_transform(),
        marker="x",
        s=30,
        color=INK,
        linewidths=1.2,
        clip_on=False,
    )


def _shapes(
    measures: Measures,
    streams: list[str],
    came: dict[str, list[MessageOutcome]],
    held_from: list[str],
) -> list[Any]:
    """Return what the shapes of `draw_latencies` mean: those that are there."""
    sizes = [measures.scenario.traffic[stream].payload_bytes for stream in streams]
    small = sorted({size for size in sizes if size <= LARGE_BYTES})
    large = sorted({size for size in sizes if size > LARGE_BYTES})

    def dot(label: str, marker: str, size: float, *, is_full: bool = True) -> Line2D:
        face = INK if is_full else "none"
        return Line2D(
            [],
            [],
            linestyle="none",
            color=INK,
            label=label,
            marker=marker,
            markersize=size,
            markerfacecolor=face,
        )

    shapes: list[Any] = []
    if small:
        shapes.append(dot(f"small, {_range(small)}", "o", 5))
    if large:
        shapes.append(dot(f"large, {_range(large)}", "o", 8, is_full=False))
    shapes += shaded(measures)
    if held_from:
        several = len(held_from) > 1
        label = "withheld, a row for each subscriber" if several else "large messages withheld"
        shapes.append(Line2D([], [], color=INK, linewidth=5, label=label))
    if any(not each.copies for of_broker in came.values() for each in of_broker):
        shapes.append(dot("never delivered", "x", 6))
    return shapes


def _range(sizes: list[int]) -> str:
    ends = dict.fromkeys((show_bytes(sizes[0]), show_bytes(sizes[-1])))
    return " to ".join(ends)


def draw_distributions(info: RunInfo, measures: Measures, folder: Path) -> Plot | None:
    """Draw the share of messages that came in a given time, a panel for each size of payload."""
    scenario = measures.scenario
    sizes: dict[int, list[str]] = {}
    for stream in measures.streams_in_focus():
        sizes.setdefault(scenario.traffic[stream].payload_bytes, []).append(stream)
    if not sizes:
        return None
    title = _share_title(measures)
    about = "Share of messages delivered within a time"
    if len(scenario.seeds) > 1:
        about += f", all {len(scenario.seeds)} seeds together"
    columns = min(3, len(sizes))
    lines = -(-len(sizes) // columns)
    inches = 7.2 if lines == 1 else 2.2 + 3.3 * lines
    canvas = Canvas(info, title, about, inches=inches)
    colours = paint(scenario)
    focus = find_focus(scenario)
    canvas.key(
        (
            Line2D([], [], color=colour, linewidth=4 if name == focus else 2.2, label=name)
            for name, colour in colours.items()
        ),
        in_colours=True,
    )
    grid = canvas.figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    canvas.figure.subplots_adjust(
        left=0.065,
        right=0.975,
        top=canvas.top - 0.3 / inches,
        bottom=canvas.bottom,
        wspace=0.07,
        hspace=0.2,
    )
    for axes, (size, streams) in zip(grid.flat, sizes.items(), strict=False):
        tidy(axes)
        name = f"{streams[0]}: {show_bytes(size)}" if len(streams) == 1 else show_bytes(size)
        axes.set_title(name, fontsize=14, loc="left", color=INK)
        for broker, colour in colours.items():
            all_of = [measures.latencies(broker, stream) for stream in streams]
            _step(axes, np.sort(np.concatenate(all_of)), colour, is_focus=broker == focus)
    for axes in list(grid.flat)[len(sizes) :]:
        axes.set_visible(False)
    first = grid[0, 0]
    label_latencies(first, "x")
    first.set_ylim(0, 1.01)
    first.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    canvas.figure.supxlabel(
        "latency, from due at the publisher to delivered", fontsize=13, y=0.36 / inches
    )
    canvas.save(folder / "distribution.png")
    return Plot("distribution.png", title, about)


def _step(axes: Axes, latencies: Any, colour: str, *, is_focus: bool) -> None:
    """Draw what share came in a time; what never came keeps the line from its end."""
    if not len(latencies):
        return
    came = np.maximum(latencies[np.isfinite(latencies)], LEAST_LATENCY)
    if not len(came):
        return
    axes.step(
        [came[0], *came],
        np.arange(len(came) + 1) / len(latencies),
        where="post",
        color=colour,
        linewidth=3.2 if is_focus else 1.8,
        zorder=3 if is_focus else 2,
    )


def _share_title(measures: Measures) -> str:
    scenario = measures.scenario
    focus, over = find_focus(scenario), find_over(scenario)
    small = measures.streams_in_focus()[0]
    if over is not None:
        share = measures.figure(f"{small} share_as_fast", focus, over=over)
        if not math.isnan(share):
            much = f"{percent(share):g} %"
            return f"{much} of {small} messages at least as fast with {focus} as with {over}"
    return begin(f"{small} messages: p50 of {compare(measures, f'{small} p50')}")


def draw_memory(info: RunInfo, measures: Measures, folder: Path) -> Plot | None:
    """Draw what each broker's memory grew by over time, beside the payloads on their way."""
    scenario = measures.scenario
    seed = scenario.seeds[0]
    focus = find_focus(scenario)
    colours = paint(scenario)
    curves = {name: measures.growth(name, seed) for name in colours}
    curves = {name: points for name, points in curves.items() if points}
    if not curves:
        return None
    title = f"Memory grows by at most {compare(measures, 'memory')}"
    about = f"Resident set of the broker beyond what it was before the traffic, seed {seed}"
    if len(scenario.seeds) > 1:
        about += f"; the title has the mean of all {len(scenario.seeds)} seeds"
    canvas = Canvas(info, title, about)
    flight = _in_flight(measures, focus, seed)
    label = f"payloads that {focus} has not yet delivered to all, each once"
    canvas.key([*shaded(measures), Patch(color=DIMMED_COLOUR, label=label)])
    axes = canvas.figure.subplots()
    canvas.figure.subplots_adjust(left=0.065, right=0.8, top=canvas.top, bottom=canvas.bottom)
    tidy(axes)
    shade(axes, measures, focus, seed)
    axes.fill_between(
        [at for at, _ in flight],
        [size / 1e6 for _, size in flight],
        step="post",
        color=DIMMED_COLOUR,
        linewidth=0,
    )
    for name, points in curves.items():
        axes.plot(
            [at for at, _ in points],
            [grown / 1e6 for _, grown in points],
            color=colours[name],
            linewidth=3.2 if name == focus else 1.8,
            zorder=3 if name == focus else 2,
        )
    axes.set_xlim(0, max(points[-1][0] for points in curves.values()))
    axes.set_ylim(min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("seconds since the beginning of the traffic", fontsize=13)
    axes.set_ylabel("MB", fontsize=13)
    _label_peaks(axes, measures, curves, colours)
    canvas.save(folder / "memory.png")
    return Plot("memory.png", title, about)


def _in_flight(measures: Measures, broker: str, seed: int) -> list[tuple[float, float]]:
    """Return seconds and the bytes of payloads on their way from then: a step each."""
    until: dict[tuple[str, str, int], tuple[float, float, int]] = {}
    for each in measures.outcomes.get((broker, seed), []):
        message = each.message
        key = (message.publisher, message.stream, message.number)
        _, end, _ = until.get(key, (0.0, -math.inf, 0))
        begin_s = message.published_s if message.arrived_s is None else message.arrived_s
        until[key] = (begin_s, max(end, each.delivered_s), message.payload_bytes)
    steps = [(begin_s, size) for begin_s, _, size in until.values()]
    steps += [(end, -size) for _, end, size in until.values() if math.isfinite(end)]
    flight, total = [], 0.0
    for at, change in sorted(steps):
        total += change
        flight.append((at, total))
    return flight


def _label_peaks(
    axes: Axes,
    measures: Measures,
    curves: dict[str, list[tuple[float, float]]],
    colours: dict[str, str],
) -> None:
    """Name each line at the height of its peak, with what it was before."""
    low, high = axes.get_ylim()
    peaks = [max(grown for _, grown in points) / 1e6 for points in curves.values()]
    apart = 0.095 * (high - low)
    places = spread(peaks, apart, low + apart / 2)
    # All of them have room: six labels are three fifths of the height.
    over = max(0.0, max(places) - high)
    for name, peak, place in zip(curves, peaks, places, strict=True):
        rows = measures.memory(name, measures.scenario.seeds[0])
        before = next(row.rss_bytes for row in reversed(rows) if row.at_s < 0)
        for text, size, weight, colour, side in (
            (name, 14, "bold", colours[name], "bottom"),
            (f"{before / 1e6:.0f} MB + {peak:.1f} MB", 11, "normal", FAINT, "top"),
        ):
            axes.annotate(
                text,
                (1.015, place - over),
                xycoords=("axes fraction", "data"),
                fontsize=size,
                fontweight=weight,
                color=colour,
                va=side,
            )
