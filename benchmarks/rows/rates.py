"""Messages per second that pass through a broker: the run that every such row shares.

Two shorter runs, unmeasured, let caches fill and find out how many messages fill the wanted
time; the third counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol, Self

from benchmarks.peers import RunningPeer
from benchmarks.rows.row import Measurement, Scale

MICROSECOND: Final = 1e-6
BROKER_CPU: Final = "broker_cpu_microseconds"
"""The detail of a measurement that is the broker's processor time for each delivered message, or
for each connection or filter where these are counted."""


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run.

    Attributes:
        delivered: the number of messages received, over all subscribers.
        lost: the number of messages that should have been received and were not, or whose handshake
            did not end.
        elapsed_seconds: the time from the first byte sent to the last byte received.
        load_cpu_seconds: the processor time of all processes of the load.
    """

    published: int
    delivered: int
    lost: int
    elapsed_seconds: float
    load_cpu_seconds: float

    @property
    def published_per_second(self) -> float:
        """Messages published and carried to all subscribers in a second."""
        return self.published / self.elapsed_seconds

    @property
    def delivered_per_second(self) -> float:
        """Messages received in a second, over all subscribers."""
        return self.delivered / self.elapsed_seconds


class Meter:
    """The time that passes in a ``with`` block, and the processor time that is used in it.

    May be entered again, and adds up.
    """

    def __init__(self, peer: RunningPeer) -> None:
        self._peer = peer
        self.elapsed_seconds = self.broker_cpu_seconds = self._cpu_seconds = 0.0

    def __enter__(self) -> Self:
        self.broker_cpu_seconds -= self._peer.cpu_seconds()
        self._cpu_seconds -= time.process_time()
        self.elapsed_seconds -= time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed_seconds += time.monotonic()
        self._cpu_seconds += time.process_time()
        self.broker_cpu_seconds += self._peer.cpu_seconds()

    def details(self, count: int) -> dict[str, float]:
        """Return it as details of a measurement of so many messages, by this process."""
        return {
            BROKER_CPU: self.broker_cpu_seconds / MICROSECOND / count,
            "elapsed_seconds": self.elapsed_seconds,
            "broker_cpu_ratio": self.broker_cpu_seconds / self.elapsed_seconds,
            "load_cpu_ratio": self._cpu_seconds / self.elapsed_seconds,
        }


class Runnable(Protocol):
    """A load that is connected and ready to run."""

    def run(self, messages: int) -> Run:
        """Publish so many messages, or a few more, and wait for them all."""
        ...


def measure_run(
    load: Runnable, peer: RunningPeer, scale: Scale, *, per_message: float | None = None
) -> Measurement:
    """Return the rate of a load's messages through a broker.

    Args:
        load: the connected load.
        peer: the broker that it is connected to.
        scale: the scale, which says how long the run should last.
        per_message: the number that the value counts for each published message; None counts
            deliveries.
    """
    messages = scale.warm_up_messages
    for share in (0.2, 1.0):
        rate = load.run(messages).published_per_second
        messages = max(scale.warm_up_messages, int(rate * scale.seconds * share))
    with Meter(peer) as meter:
        run = load.run(messages)
    cpu = meter.broker_cpu_seconds
    value = (
        run.delivered_per_second if per_message is None else per_message * run.published_per_second
    )
    return Measurement(
        value=value,
        lost=run.lost,
        details={
            "published_messages": run.published,
            "elapsed_seconds": run.elapsed_seconds,
            "broker_cpu_ratio": cpu / run.elapsed_seconds,
            BROKER_CPU: cpu / MICROSECOND / max(1, run.delivered),
            "load_cpu_ratio": run.load_cpu_seconds / run.elapsed_seconds,
        },
    )
