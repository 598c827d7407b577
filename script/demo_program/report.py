"""What the demo says at its end, and the picture it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from script.demo_program.books import Ledger, Percentiles, SinkLedger
from script.demo_program.ingestion import Windows
from script.demo_program.policy import Places

COLOURS: Final = {"withholding": "#0a6e8a", "without": "#c2571a"}


@dataclass(frozen=True, slots=True)
class SideResult:
    """What came out of one broker.

    Attributes:
        name: as the side's.
        sent: small messages and pictures with PUBACK.
        delivered: of them to (direct subscriber, subscriber behind the slow link).
        withheld: large messages that the gate held back.
        released: of them that it has let go since.
        ledger: the broker's account of its subscribers.
        sinks: its account of each queue.
        in_bad: latency of small messages published while the link was bad, on the slow link.
        whole: the same over the whole run.
        pictures: latency of all pictures, on the slow link.
        latencies: (seconds since the start, latency) of each small message on the slow link.
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
    """What came out of the demo.

    Attributes:
        sides: with withholding and without.
        taken: pictures taken from their queue.
        ingested: messages in Parquet files; None without Spark.
        windows: what their aggregates hold; None without Spark.
        bad: seconds since the start between which the link was bad.
        pictures_at: seconds since the start at which pictures were published.
        problems: what was lost or is wrong, in words.
        seconds: how long all of it took.
    """

    sides: tuple[SideResult, SideResult]
    taken: int
    ingested: int | None
    windows: Windows | None
    bad: tuple[float, float]
    pictures_at: list[float]
    problems: list[str]
    seconds: float


def draw_latencies(result: Result, file: Path) -> None:
    """Draw the latency of small messages over time, with and without withholding."""
    figure = Figure(figsize=(9, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.axvspan(*result.bad, color="#dddddd", label="the link is bad")
    for side in reversed(result.sides):
        times = [at for at, _ in side.latencies]
        latencies = [latency for _, latency in side.latencies]
        axes.plot(times, latencies, ".", ms=3, color=COLOURS[side.name], label=side.name)
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
    add("taken from queue pictures", [f"{result.taken}", ""])
    if result.ingested is not None:
        add("ingested by Spark into Parquet", [f"{result.ingested:,}", ""])
    if result.windows is not None:
        add("windows complete", [f"{result.windows.windows}", ""])
        add("messages aggregated in them", [f"{result.windows.messages:,}", ""])
    return table


def _latencies(sides: Sequence[SideResult]) -> Table:
    table = _table("Latency to the slow subscriber", "", "messages", "p50", "p90", "p99")
    rows = {
        "small, link bad": [side.in_bad for side in sides],
        "small, whole run": [side.whole for side in sides],
        "pictures, whole run": [side.pictures for side in sides],
    }
    for name, figures in rows.items():
        for side, one in zip(sides, figures, strict=True):
            if one is None:
                table.add_row(name, side.name, "0")
                continue
            seconds = [f"{value:.3f} s" for value in (one.p50, one.p90, one.p99)]
            table.add_row(name, side.name, f"{one.n_messages:,}", *seconds)
    return table


def _books(sides: Sequence[SideResult]) -> Table:
    table = _table("Ledger: matched = all that stands below it", *(side.name for side in sides))
    for name in ("matched", "delivered", "inflight", "withheld", "queued", "expired"):
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
