"""How many messages of QoS 1 and 2 go through a broker in a second, all handshakes complete?

Publishers and subscribers both use the row's QoS. Each publisher keeps a window of messages
unacknowledged; a subscriber acknowledges at once what one read gave it. The clock runs from
the first byte sent to the last acknowledgement read, on whichever side that is.

`PAIRS_ONE_BY_ONE` is the other end: 500 pairs, each with a single message under way, so that
nothing comes together that a broker could take together.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.loads import wire
from benchmarks.loads.windowed import WindowedLoad, WindowedPlan
from benchmarks.peers import Options, RunningPeer
from benchmarks.rows.rates import measure_run
from benchmarks.rows.row import Measurement, Row, Scale, Target

WAKE_UP_PACKETS: Final = 10
"""The number of packets of a window of 100 for which a side is woken: the other nine tenths keep
the broker busy while the side sleeps."""

INFLIGHT_MESSAGES: Final = 1000
"""The inflight limit of Penstock's example policy. mosquitto's default of 20 is less than the
window, and at QoS 2 it closes the connection of a publisher that goes past it."""


def measure_windowed(peer: RunningPeer, scale: Scale, *, plan: WindowedPlan) -> Measurement:
    """Return messages per second through full handshakes."""
    with WindowedLoad(peer.access, plan.at_random() if scale.is_random else plan) as load:
        measurement = measure_run(load, peer, scale)
        measurement.details["window_messages"] = load.window
        return measurement


def measure_one_by_one(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return messages per second of pairs that each have one under way."""
    return measure_windowed(peer, scale, plan=WindowedPlan(scale.clients, 1, 64, qos=1))


def _row(name: str, title: str, least_ratio: float, plan: WindowedPlan) -> Row:
    return Row(
        name=name,
        group=f"qos{plan.qos}",
        title=title,
        unit="delivered/s",
        target=Target(least_ratio=least_ratio),
        measure=partial(measure_windowed, plan=plan),
        options=Options(inflight_messages=INFLIGHT_MESSAGES),
        is_v5=plan.version == 5,
        has_ceiling=True,
    )


ONE_TO_ONE: Final = partial(WindowedPlan, 1, 100, 64, wake_up_packets=WAKE_UP_PACKETS)

ROWS: Final = (
    _row("qos1_1to1", "QoS 1, 64 B, window 100, 1 to 1", 3, ONE_TO_ONE(qos=1)),
    _row("qos1_pairs", "QoS 1, 256 B, window 20, 20 pairs", 3, WindowedPlan(20, 20, 256, qos=1)),
    _row("qos1_v5", "QoS 1, 64 B, MQTT 5, 1 to 1", 3, ONE_TO_ONE(qos=1, version=5)),
    _row(
        "qos1_v5_properties",
        "the same with five properties",
        1.5,
        ONE_TO_ONE(qos=1, version=5, properties=wire.five_properties()),
    ),
    _row("qos2_1to1", "QoS 2, 64 B, window 100, 1 to 1", 3, ONE_TO_ONE(qos=2)),
    Row(
        name="qos1_500_pairs",
        group="many",
        title="QoS 1, 64 B, 500 pairs, one message each in flight",
        unit="delivered/s",
        target=Target(least_ratio=1.1),
        measure=measure_one_by_one,
        has_ceiling=True,
        options=Options(inflight_messages=INFLIGHT_MESSAGES),
    ),
)
