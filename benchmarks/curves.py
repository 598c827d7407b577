"""How does a broker's cost grow with clients, topic filters, topics, message size and fan-out?

``python -m benchmarks.curves`` measures Penstock and mosquitto at the points of each curve, one
after the other, writes what it found to ``docs/images/curves.json`` and draws all curves of that
file into ``docs/images/curves.png``. With ``--curves`` some are measured and the others stay.

Cost is the processor time of the broker for each message delivered: unlike a rate, it depends
little on other load of the two cores, and not on whether broker or load waits. The last curve is
lateness at set rates, by the schedule of `paced.py`. A point is measured once: a curve shows a
trend, and a row of `penstock bench` a result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.__main__ import measure
from benchmarks.loads.paced import Schedule
from benchmarks.loads.stream import FILTERS_OF_A_TOPIC, TOPIC_STEP, Shape
from benchmarks.loads.windowed import WindowedPlan
from benchmarks.peers import PEERS, ROOT, Options, Peer, RunningPeer
from benchmarks.program import Program, choose, describe_run
from benchmarks.rows.acknowledged import INFLIGHT_MESSAGES, measure_windowed
from benchmarks.rows.latency import Pacing
from benchmarks.rows.matching import CLIENTS
from benchmarks.rows.rates import BROKER_CPU, MICROSECOND
from benchmarks.rows.row import FULL, QUICK, Measurement, Row, Scale, Target
from benchmarks.rows.throughput import measure_qos0

PEER_COLOURS: Final = {"penstock": "tab:blue", "mosquitto": "tab:orange"}
"""The brokers that are measured, and the colour of each in the plot."""
DATA_FILE: Final = ROOT / "docs/images/curves.json"
PICTURE_INCHES: Final = (10.0, 6.0)
PACED_CLIENTS: Final = 100
"""The number of clients on the schedule. The sender watches the clock before each message, so above
some 4,000 messages a second it needs a core for itself."""

CURVE_SECONDS: Final = 1.0
"""The length of one measured run: six curves of two brokers take three minutes."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: what is varied, and what is measured at each point.

    Attributes:
        measure: a function of a broker, a scale and the `value` of a point that returns cost or
            lateness.
        tail: the name of a second number in the details that is drawn as well, or None.
    """

    name: str
    title: str
    unit: str
    points: Sequence[int]
    quick_points: Sequence[int]
    measure: Callable[..., Measurement]
    figure: str = "broker's CPU, µs a delivered message"
    tail: str | None = None


def _cost(measurement: Measurement) -> Measurement:
    """Return a measurement of a rate as one of cost; 0 where that is less than a clock tick."""
    return replace(measurement, value=measurement.details[BROKER_CPU])


def _qos0(peer: RunningPeer, scale: Scale, value: int, *, shape: Callable[[int], Shape]) -> Any:
    return _cost(measure_qos0(peer, scale, shape=shape(value)))


def _clients(peer: RunningPeer, scale: Scale, value: int) -> Measurement:
    return _cost(measure_windowed(peer, scale, plan=WindowedPlan(value, 1, 64, qos=1)))


def _paced(peer: RunningPeer, scale: Scale, value: int) -> Measurement:
    schedule = Schedule(PACED_CLIENTS, PACED_CLIENTS / value, scale.latency_seconds)
    with Pacing(peer.port, schedule) as pacing:
        late = pacing.run()
    details = {"p99_microseconds": late.p99 / MICROSECOND}
    return Measurement(late.p50 / MICROSECOND, late.lost, details)


def filters_shape(filters: int) -> Shape:
    """Return a load on so many filters with wildcards, three of which match each message."""
    topics = max(1, min(1000, filters // (FILTERS_OF_A_TOPIC * TOPIC_STEP)))
    # Each subscriber has some topic of which a message comes.
    return Shape(64, 64, topics=topics, subscribers=min(CLIENTS, topics), filters=filters)


CURVES: Final = {
    curve.name: curve
    for curve in (
        Curve(
            "clients",
            "QoS 1, 64 B, pairs with one message each in flight",
            "pairs of clients",
            (1, 5, 20, 100, 300, 1000),
            (1, 5),
            _clients,
        ),
        Curve(
            "filters",
            "QoS 0, 64 B, topic filters with wildcards, 3 matches each",
            "topic filters",
            (100, 1_000, 10_000, 100_000),
            (100, 1_000),
            partial(_qos0, shape=filters_shape),
        ),
        Curve(
            "topics",
            "QoS 0, 100 B, topics at random, 1 to 1",
            "topics",
            (1, 4, 16, 64, 256, 1024, 4096),
            (1, 64),
            partial(_qos0, shape=lambda topics: Shape(100, 100, topics=topics)),
        ),
        Curve(
            "size",
            "QoS 0, 1 to 1",
            "bytes of payload",
            (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144),
            (16, 1024),
            partial(_qos0, shape=lambda size: Shape(size, size)),
        ),
        Curve(
            "fan_out",
            "QoS 0, 100 B, 1 to many",
            "subscribers",
            (1, 3, 10, 30, 100, 300),
            (1, 10),
            partial(_qos0, shape=lambda readers: Shape(100, 100, subscribers=readers)),
        ),
        Curve(
            "rate",
            f"QoS 0, 64 B, {PACED_CLIENTS} clients to 1, on a schedule",
            "messages a second",
            (200, 500, 1_000, 2_000, 4_000),
            (200, 1_000),
            _paced,
            figure="lateness, µs (p50, dashed p99)",
            tail="p99_microseconds",
        ),
    )
}


def measure_curve(
    curve: Curve, peers: Sequence[Peer], scale: Scale, points: Sequence[int]
) -> dict[str, Any]:
    """Return a curve as it is kept in the file, measured point by point on all peers in turn.

    Raises:
        BenchmarkError: a broker did not start or did not answer as the protocol asks.
    """
    series: dict[str, dict[str, list[float]]] = {
        peer.name: {"value": [], "tail": [], "lost": []} for peer in peers
    }
    for point in points:
        row = Row(
            name=f"{curve.name} {point}",
            group="curves",
            title=curve.title,
            unit=curve.unit,
            target=Target(),
            measure=partial(curve.measure, value=point),
            options=Options(inflight_messages=INFLIGHT_MESSAGES),
        )
        for peer in peers:
            measurement = measure(row, peer, scale)
            told = series[peer.name]
            told["value"].append(measurement.value)
            told["lost"].append(measurement.lost)
            if curve.tail is not None:
                told["tail"].append(measurement.details[curve.tail])
            typer.echo(f"{row.name} {peer.name}: {measurement.value:.3g}", err=True)
    run = describe_run(peers, f"python -m benchmarks.curves --curves {curve.name}")
    return {"points": list(points), "figure": curve.figure, "series": series, "run": run}


def draw(data: dict[str, Any], file: Path) -> None:
    """Draw all curves that were measured into a PNG."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, grid = plt.subplots(2, 3, figsize=PICTURE_INCHES, layout="constrained", squeeze=False)
    for axes, curve in zip(grid.flat, CURVES.values(), strict=True):
        kept = data.get(curve.name)
        axes.set_title(curve.title, fontsize=7)
        axes.set_xlabel(curve.unit, fontsize=7)
        axes.set_ylabel(curve.figure, fontsize=7)
        axes.tick_params(which="both", labelsize=7)
        axes.grid(visible=True, which="major", alpha=0.3)
        if kept is None:
            continue
        for name, colour in PEER_COLOURS.items():
            told = kept["series"].get(name, {"value": [], "tail": []})
            points = kept["points"]
            if told["value"]:
                axes.loglog(points, told["value"], "o-", ms=3, lw=1.2, color=colour, label=name)
            if told["tail"]:
                axes.loglog(points, told["tail"], "o--", ms=2, lw=1, color=colour)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, fontsize=8, loc="outside lower center", frameon=False)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def curves(
    names: Annotated[
        str, typer.Option("--curves", help="Curves, separated by commas, or all.")
    ] = "all",
    data_file: Annotated[
        Path, typer.Option("--data", help="JSON file; the picture goes beside it.", dir_okay=False)
    ] = DATA_FILE,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Two points each: a look.")] = False,
    redraw: Annotated[bool, typer.Option("--redraw", help="Measure nothing, only draw.")] = False,
) -> None:
    """Measure how cost grows, write the numbers and draw them."""
    chosen = choose("curve", names, CURVES)
    peers = [PEERS[name] for name in PEER_COLOURS]
    scale = replace(QUICK if quick else FULL, seconds=0.1 if quick else CURVE_SECONDS)
    scale = replace(scale, latency_seconds=1.0 if quick else 3.0, warm_up_messages=100)
    data: dict[str, Any] = json.loads(data_file.read_text()) if data_file.exists() else {}
    for curve in [] if redraw else chosen:
        points = curve.quick_points if quick else curve.points
        data[curve.name] = measure_curve(curve, peers, scale, points)
        data_file.write_text(json.dumps(data, indent=1) + "\n")
    draw(data, data_file.with_suffix(".png"))


main: Final = Program(curves, "python -m benchmarks.curves")


if __name__ == "__main__":
    sys.exit(main())
