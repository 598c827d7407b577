"""How many messages of QoS 0 go through a broker in a second?

Where packets are alike, Penstock carries more than ten times as many as mosquitto; where no two
neighbours are, about as many (commit d9c24e0, on two cores that did other work too).
Rerun: ``penstock bench --rows qos0_1to1,qos0_1to10,qos0_mixed``.

One publisher sends as fast as the broker reads; the clock runs from the first byte sent to
the last byte at the last subscriber. Two shorter runs before it, unmeasured, find out how
many messages fill the wanted time and let caches fill.

Packets of one topic and one length are the best case of a broker that takes them in runs;
the mixed row leaves no two neighbours alike.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.load import Load
from benchmarks.peers import RunningPeer
from benchmarks.rows import Measurement, Row, Scale, Target
from benchmarks.stream import Shape

UNIFORM: Final = Shape(least_bytes=100, most_bytes=100)
MIXED: Final = Shape(least_bytes=50, most_bytes=150, topics=20)


def measure_qos0(peer: RunningPeer, scale: Scale, *, shape: Shape, subscribers: int) -> Measurement:
    """Return delivered messages per second of one publisher to so many subscribers."""
    with Load(peer.port, shape, subscribers=subscribers) as load:
        messages = scale.warm_up_messages
        for share in (0.2, 1.0):
            rate = load.run(messages).published_per_second
            messages = max(scale.warm_up_messages, int(rate * scale.seconds * share))
        cpu_before = peer.cpu_seconds()
        run = load.run(messages)
        cpu = peer.cpu_seconds() - cpu_before
    return Measurement(
        value=run.delivered_per_second,
        lost=run.lost,
        details={
            "published_messages": run.published,
            "elapsed_seconds": run.elapsed_seconds,
            "broker_cpu_ratio": cpu / run.elapsed_seconds,
            "delivered_per_broker_cpu_second": run.delivered / cpu if cpu else 0.0,
            "load_cpu_ratio": run.load_cpu_seconds / run.elapsed_seconds,
        },
    )


def _row(name: str, title: str, least_ratio: float, shape: Shape, subscribers: int) -> Row:
    return Row(
        name=name,
        title=title,
        unit="delivered/s",
        target=Target(least_ratio=least_ratio),
        has_ceiling=True,
        measure=partial(measure_qos0, shape=shape, subscribers=subscribers),
    )


ROWS: Final = (
    _row("qos0_1to1", "QoS 0, 100 B, 1 to 1", 3, UNIFORM, 1),
    _row("qos0_1to10", "QoS 0, 100 B, 1 to 10", 6, UNIFORM, 10),
    _row(
        "qos0_mixed",
        "QoS 0, 50 to 150 B on 20 topics, 1 to 1",
        1,
        MIXED,
        1,
    ),
)
