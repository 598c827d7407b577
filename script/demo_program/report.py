"""The demo's report at its end, its picture, and the figures that pages show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from penstock.netem.figures.figure_file import Table as FigureTable
from script.demo_program.books import Ledger, Percentiles, SinkLedger
from script.demo_program.ingestion import Windows
from script.demo_program.policy import Places

WITHOUT: Final = "without"
WITHHOLDING: Final = "withholding"
TWO_LANES: Final = "two lanes"
"""The names of the sides in the report, the picture and the pages."""

MARKS: Final[dict[str, dict[str, Any]]] = {
    WITHOUT: {"marker": ".", "ms": 3, "color": "#c2571a"},
    WITHHOLDING: {"marker": "o", "ms": 5, "color": "#0a6e8a", "mfc": "none"},
    TWO_LANES: {"marker": ".", "ms": 3, "color": "#5a9a3c"},
}
"""The mark of each side in the picture; the second is a ring round the third, as both are often
equal."""

MOST_RATIO: Final = 0.5
"""The greatest ratio of another side's p90 to that of `WITHOUT`, for small messages on the bad
link. A run has 0.13: the bound allows for slow machines, not for a policy that does little."""


@dataclass(frozen=True, slots=True)
class SideResult:
    """The results of one broker.

    Attributes:
        sent: the numbers of acknowledged small messages and pictures.
        delivered: the numbers delivered to (the direct subscriber, the subscriber behind the slow
            link).
        withheld: the number of large messages that the gate withheld.
        ledger: the broker's own counts for its subscribers.
        sinks: the broker's own counts for each queue.
        in_bad: the latency on the slow link of small messages that were published while it was bad.
        whole: the latency on the slow link of all small messages.
        latencies: the (seconds since the start, latency) of each small message on the slow link.
    """

    name: str
    sent: tuple[int, int]
    delivered: tuple[int, int]
    withheld: int
    released: int
    ledger: Ledger
    sinks: dict[str, SinkLedger]
    in_bad: Percentiles | None
    whole: Percentiles | None
    pictures: Percentiles | None
    latencies: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Result:
    """The results of the demo.

    Attributes:
        sides: the results of the sides, in the order in which they are shown.
        ingested: the number of messages in Parquet files; None without Spark.
        windows: the content of the aggregates; None without Spark.
        bad: the begin and the end of the bad time, seconds since the start.
        pictures_at: the times at which pictures were published, seconds since the start.
        too_slow: the sides whose small messages were not protected, each a sentence.
        seconds: the duration of the whole demo, seconds.
    """

    sides: Sequence[SideResult]
    taken: int
    ingested: int | None
    windows: Windows | None
    bad: tuple[float, float]
    pictures_at: list[float]
    problems: list[str]
    too_slow: list[str]
    seconds: float


def ratio_to_without(side: SideResult, sides: Sequence[SideResult]) -> float | None:
    """Return the p90 of a side's small messages on the bad link over that of `WITHOUT`.

    None where either has none.
    """
    (base,) = (one.in_bad for one in sides if one.name == WITHOUT)
    return side.in_bad.p90 / base.p90 if side.in_bad and base else None


def too_slow(sides: Sequence[SideResult]) -> list[str]:
    """Return in words which sides do not protect small messages from the pictures."""
    (base,) = (one.in_bad for one in sides if one.name == WITHOUT)
    found = []
    for side in sides:
        ratio = ratio_to_without(side, sides)
        if side.name == WITHOUT or (ratio is not None and ratio <= MOST_RATIO):
            continue
        took = ", ".join(
            f"{name} {f'{one.p90:.2f} s' if one else 'nothing arrived'}"
            for name, one in ((side.name, side.in_bad), (WITHOUT, base))
        )
        of_it = "" if ratio is None else f": {ratio:.2f} of it"
        found.append(f"small messages on the bad link, p90: {took}{of_it}; at most {MOST_RATIO}")
    return found


def figure_tables(sides: Sequence[SideResult], congestion_control: str) -> dict[str, FigureTable]:
    """Return the tables that pages show of a run."""
    small, pictures = [], []
    for side in sides:
        ratio = ratio_to_without(side, sides)
        over = "" if ratio is None or side.name == WITHOUT else f"{ratio:.2f}"
        small.append([side.name, *_shown(side.in_bad), over])
        pictures.append([side.name, *_shown(side.pictures), str(side.withheld)])
    percents = ("p50", "p90", "p99")
    about = f"small messages, link bad, {congestion_control}"
    return {
        "small": FigureTable([about, "messages", *percents, "p90 over without"], small),
        "pictures": FigureTable(["pictures, whole run", "pictures", *percents, "held"], pictures),
    }


def _shown(figures: Percentiles | None) -> list[str]:
    if figures is None:
        return ["0", "", "", ""]
    seconds = [f"{value:.2f} s" for value in (figures.p50, figures.p90, figures.p99)]
    return [f"{figures.n_messages:,}", *seconds]


def draw_latencies(result: Result, file: Path) -> None:
    """Draw the latency of small messages over time, for each side."""
    figure = Figure(figsize=(9, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.axvspan(*result.bad, color="#dddddd", label="the link is bad")
    for side in result.sides:
        times = [at for at, _ in side.latencies]
        latencies = [latency for _, latency in side.latencies]
        axes.plot(times, latencies, linestyle="", label=side.name, **MARKS[side.name])
    for number, at in enumerate(result.pictures_at):
        label = "a picture of 1 MB is published" if not number else None
        axes.axvline(at, ymax=0.03, color="black", linewidth=1.2, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("time of publication, seconds")
    axes.set_ylabel("latency, seconds")
    axes.set_title("Small messages to the subscriber behind the slow link")
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(file)


def print_result(console: Console, result: Result) -> None:
    """Print the tables."""
    console.print(_messages(result))
    console.print(_latencies(result.sides))
    console.print(_books(result.sides))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", min_width=66)
    table.add_column()
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _messages(result: Result) -> Table:
    sides = result.sides
    table = _table("Messages (telemetry + pictures)", *(side.name for side in sides))

    def add(name: str, values: Sequence[str]) -> None:
        table.add_row(name, *values)

    add("sent, with PUBACK", [f"{side.sent[0]:,} + {side.sent[1]}" for side in sides])
    add("delivered, direct subscriber", [f"{side.delivered[0]:,}" for side in sides])
    add("delivered, slow subscriber", [f"{side.delivered[1]:,}" for side in sides])
    add("pictures withheld for it", [f"{side.withheld}" for side in sides])
    add("pictures released again", [f"{side.released}" for side in sides])
    for name in sides[0].sinks:
        stored = [f"{side.sinks[name].stored:,}" for side in sides]
        add(f"stored in queue {name}", stored)

    def add_main(name: str, value: int) -> None:
        add(name, [f"{value:,}" if side.name == WITHHOLDING else "" for side in sides])

    add_main("taken from queue pictures", result.taken)
    if result.ingested is not None:
        add_main("ingested by Spark into Parquet", result.ingested)
    if result.windows is not None:
        add_main("windows complete", result.windows.windows)
        add_main("messages aggregated in them", result.windows.messages)
    return table


def _latencies(sides: Sequence[SideResult]) -> Table:
    columns = ("", "count", "p50", "p90", "p99", "ratio")
    title = "Latency to the slow subscriber; ratio: p90 over that without"
    table = _table(title, *columns)
    rows = {
        "small, bad link": [side.in_bad for side in sides],
        "small, all": [side.whole for side in sides],
        "pictures, all": [side.pictures for side in sides],
    }
    for name, figures in rows.items():
        for side, one in zip(sides, figures, strict=True):
            ratio = ratio_to_without(side, sides) if one is side.in_bad else None
            over = "" if ratio is None or side.name == WITHOUT else f"{ratio:.2f}"
            table.add_row(name, side.name, *_shown(one), over)
    return table


def _books(sides: Sequence[SideResult]) -> Table:
    table = _table(
        "Ledger: matched = all below it (moved: to the other lane)", *(side.name for side in sides)
    )
    for name in ("matched", "delivered", "moved", "inflight", "withheld", "queued", "expired"):
        table.add_row(name, *(f"{getattr(side.ledger, name):,}" for side in sides))
    table.add_row("dropped", *(f"{sum(side.ledger.dropped.values()):,}" for side in sides))
    table.add_row("balances", *("yes" if side.ledger.is_balanced else "NO" for side in sides))
    return table


def commands(places: Places) -> list[tuple[str, str]]:
    """Return what the curious may type now: (what it does, command)."""
    port = places.mqtt_port
    python = (
        "import paho.mqtt.client as m; c = m.Client(m.CallbackAPIVersion.VERSION2); "
        f"c.connect('127.0.0.1', {port}); c.loop_start(); "
        "c.publish('telemetry/me/mood', 'good', qos=1).wait_for_publish(); c.disconnect()"
    )
    return [
        ("start the broker again", f".venv/bin/penstock broker -c {places.policy_file}"),
        ("and in another terminal: listen", f"mosquitto_sub -p {port} -v -t 'telemetry/#'"),
        ("publish", f"mosquitto_pub -p {port} -q 1 -t telemetry/me/mood -m good"),
        ("publish with paho", f'.venv/bin/python -c "{python}"'),
        ("look at the queues", f".venv/bin/penstock queue stats --url {places.queue_url}"),
        ("put something into one", f"mosquitto_pub -p {port} -q 1 -t pictures/me -m smile"),
        (
            "and take it out, as a device would",
            f"mosquitto_sub -p {port} -q 1 -C 1 -t '$queue/pictures/viewers'",
        ),
    ]
