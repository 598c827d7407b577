"""How many 100-byte messages of QoS 0 go through a broker in a second?

Rerun: ``penstock bench --rows qos0_1to1,qos0_1to10``.

One publisher sends as fast as the broker reads; the clock runs from the first byte sent to
the last byte at the last subscriber. Two shorter runs before it, unmeasured, find out how
many messages fill the wanted time and let caches fill.
"""

from __future__ import annotations

from typing import Final

from benchmarks.load import Load
from benchmarks.peers import RunningPeer
from benchmarks.rows import Measurement, Row, Scale

PAYLOAD_BYTES: Final = 100
TOPIC: Final = "bench/throughput"


def measure_qos0(peer: RunningPeer, scale: Scale, *, subscribers: int) -> Measurement:
    """Return delivered messages per second of one publisher to so many subscribers."""
    with Load(peer.port, TOPIC, payload_bytes=PAYLOAD_BYTES, subscribers=subscribers) as load:
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
            "load_cpu_ratio": run.load_cpu_seconds / run.elapsed_seconds,
        },
    )


def _one_to_one(peer: RunningPeer, scale: Scale) -> Measurement:
    return measure_qos0(peer, scale, subscribers=1)


def _one_to_ten(peer: RunningPeer, scale: Scale) -> Measurement:
    return measure_qos0(peer, scale, subscribers=10)


ROWS: Final = (
    Row(
        name="qos0_1to1",
        title="QoS 0, 100 B, pipelined, 1 to 1",
        unit="delivered/s",
        more_is_better=True,
        target="at least 3 x mosquitto",
        has_ceiling=True,
        measure=_one_to_one,
    ),
    Row(
        name="qos0_1to10",
        title="QoS 0, 100 B, pipelined, 1 to 10",
        unit="delivered/s",
        more_is_better=True,
        target="at least 6 x mosquitto",
        has_ceiling=True,
        measure=_one_to_ten,
    ),
)
