"""How many messages of QoS 0 go through a broker in a second?

One publisher sends as fast as the broker reads; the clock runs from the first byte sent to
the last byte at the last subscriber. Two shorter runs before it, unmeasured, find out how
many messages fill the wanted time and let caches fill.

Packets of one topic and one length are the best case of a broker that takes them in runs;
the mixed row leaves no two neighbours alike.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.loads.load import Load
from benchmarks.loads.stream import Shape
from benchmarks.peers import Options, RunningPeer
from benchmarks.rows.rates import measure_run
from benchmarks.rows.row import Measurement, Row, Scale, Target

UNIFORM: Final = Shape(least_bytes=100, most_bytes=100)
MIXED: Final = Shape(least_bytes=50, most_bytes=150, topics=20)
PAIRS: Final = Shape(least_bytes=1024, most_bytes=1024, publishers=20, subscribers=20)


def measure_qos0(peer: RunningPeer, scale: Scale, *, shape: Shape) -> Measurement:
    """Return delivered messages per second."""
    with Load(peer.access, shape.at_random() if scale.is_random else shape) as load:
        return measure_run(load, peer, scale)


def _row(name: str, title: str, least_ratio: float, shape: Shape) -> Row:
    return Row(
        name=name,
        group="qos0",
        title=title,
        unit="delivered/s",
        target=Target(least_ratio=least_ratio),
        has_ceiling=True,
        measure=partial(measure_qos0, shape=shape),
    )


ROWS: Final = (
    _row("qos0_1to1", "QoS 0, 100 B, 1 to 1", 10, UNIFORM),
    _row("qos0_1to10", "QoS 0, 100 B, 1 to 10", 30, replace(UNIFORM, subscribers=10)),
    _row("qos0_mixed", "QoS 0, 50 to 150 B on 20 topics, 1 to 1", 3, MIXED),
    _row("qos0_pairs", "QoS 0, 1 KiB, 20 pairs on 20 topics", 5, PAIRS),
    replace(
        _row("qos0_tls", "QoS 0, 100 B, TLS 1.3, 1 to 1", 5, UNIFORM),
        group="tls",
        options=Options(is_tls=True),
    ),
)
