"""How many messages a second a load gets through a broker: the same run for every such row.

Two shorter runs, unmeasured, let caches fill and find out how many messages fill the wanted
time; the third counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers import RunningPeer
from benchmarks.rows import Measurement, Scale


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of messages came to.

    Attributes:
        published: messages sent.
        delivered: messages received, over all subscribers.
        lost: messages that should have been received and were not, or whose handshake did not end.
        elapsed_seconds: from the first byte sent to the last byte received.
        load_cpu_seconds: processor time of all processes of the load.
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


class Runnable(Protocol):
    """A load that is connected and waits."""

    def run(self, messages: int) -> Run:
        """Publish so many messages, or a few more, and wait for them all."""
        ...


def measure_run(
    load: Runnable, peer: RunningPeer, scale: Scale, *, per_message: float | None = None
) -> Measurement:
    """Return how fast a load's messages go through a broker.

    Args:
        load: connected.
        peer: to which it is.
        scale: how long the run should last.
        per_message: what the value counts for each published message; None counts what is
            delivered.
    """
    messages = scale.warm_up_messages
    for share in (0.2, 1.0):
        rate = load.run(messages).published_per_second
        messages = max(scale.warm_up_messages, int(rate * scale.seconds * share))
    cpu_before = peer.cpu_seconds()
    run = load.run(messages)
    cpu = peer.cpu_seconds() - cpu_before
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
            "delivered_per_broker_cpu_second": run.delivered / cpu if cpu else 0.0,
            "load_cpu_ratio": run.load_cpu_seconds / run.elapsed_seconds,
        },
    )
