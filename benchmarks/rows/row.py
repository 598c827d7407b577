"""The types of a row: what is measured, its unit, and the function that measures it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers import DEFAULT_OPTIONS, Options, Peer, RunningPeer


@dataclass(frozen=True, slots=True)
class Scale:
    """The extent of one measurement.

    Attributes:
        seconds: the length of a throughput run, seconds.
        warm_up_messages: the number of messages of the first, unmeasured run.
        latency_seconds: the time for which messages are sent on a schedule.
        steady_seconds: the time for which the resident set must stay the same before it counts.
        clients: the number of clients in the rows with many clients.
        idle_connections: the number of idle connections in the memory row.
        queued_messages: the number of queued messages in the memory row.
        stalled_subscribers: the number of stalled subscribers in the memory row with large
            messages.
        readers: the number of readers in the row with 1 MiB messages.
        late_readers: the number of readers in the memory row whose readers stall and then read
            everything.
        congested_seconds: the length of the memory row on congested paths, seconds.
        day_seconds: the length of the production day, seconds.
        is_random: whether payload lengths and topics are at random, and two users send in turn.
    """

    seconds: float = 3.0
    warm_up_messages: int = 500
    latency_seconds: float = 15.0
    steady_seconds: float = 1.0
    clients: int = 500
    idle_connections: int = 10_000
    filters: int = 100_000
    queued_messages: int = 100_000
    stalled_subscribers: int = 75
    large_messages: int = 60
    large_bytes: int = 1_000_000
    readers: int = 50
    late_readers: int = 20
    late_messages: int = 100
    congested_seconds: float = 3.0
    day_seconds: float = 120.0
    is_random: bool = False


FULL = Scale()
QUICK = Scale(
    seconds=0.7,
    latency_seconds=2.0,
    idle_connections=3_000,
    filters=20_000,
    queued_messages=10_000,
    stalled_subscribers=25,
    large_messages=20,
    day_seconds=10.0,
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one measurement of a row.

    Attributes:
        lost: the number of messages that were not delivered.
        details: further numbers, by names that end in their unit.
    """

    value: float
    lost: int = 0
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of Penstock in a row; one of the three bounds is given.

    Attributes:
        least_ratio: the least ratio of its value to mosquitto's, or None.
        most_ratio: the greatest ratio, where less is better, or None.
        most_value: the greatest value, or None.
    """

    least_ratio: float | None = None
    most_ratio: float | None = None
    most_value: float | None = None

    def __str__(self) -> str:
        """Return the target in words."""
        if self.least_ratio is not None:
            return f"at least {self.least_ratio:g} x mosquitto"
        if self.most_ratio is not None:
            return f"at most {self.most_ratio:g} x mosquitto"
        return "none" if self.most_value is None else f"at most {self.most_value:g}"

    def halved(self) -> Target:
        """Return the target of who need be only half as good: half the rate, twice the lateness."""
        return Target(
            least_ratio=None if self.least_ratio is None else self.least_ratio / 2,
            most_ratio=None if self.most_ratio is None else self.most_ratio * 2,
        )

    def is_met(self, value: float, ratio: float | None) -> bool | None:
        """Say whether a value and its ratio to mosquitto's meet it; None where that is unknown."""
        if self.most_value is not None:
            return value <= self.most_value
        if ratio is None:
            return None
        if self.most_ratio is not None:
            return ratio <= self.most_ratio
        return None if self.least_ratio is None else ratio >= self.least_ratio


@dataclass(frozen=True, slots=True)
class Figure:
    """A further number of a row's measurement, which is shown as a row of its own.

    Attributes:
        name: appended to the row's; the key of the number in `Measurement.details`.
        store_targets: the target with another payload store, by the peer's name.
    """

    name: str
    title: str
    unit: str
    target: Target
    store_targets: Mapping[str, Target] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: one thing that is measured of every peer.

    Attributes:
        measure: a function that measures it once on a started broker.
        has_ceiling: whether the load's own limit can be measured on it.
        is_v5: whether it needs MQTT 5.
        has_stores: whether it depends on the payload store, so that each store is a peer.
        store_targets: the targets with other payload stores, as in `Figure`.
    """

    name: str
    group: str
    title: str
    unit: str
    target: Target
    measure: Callable[[RunningPeer, Scale], Measurement]
    figures: tuple[Figure, ...] = ()
    has_ceiling: bool = False
    options: Options = DEFAULT_OPTIONS
    is_v5: bool = False
    has_stores: bool = False
    store_targets: Mapping[str, Target] = field(default_factory=dict)

    def is_for(self, peer: Peer) -> bool:
        """Say whether a peer can answer."""
        if peer.is_ceiling:
            return self.has_ceiling
        if peer.is_store and not self.has_stores:
            return False
        return (
            (peer.has_v5 or not self.is_v5)
            and (peer.has_tls or not self.options.is_tls)
            and (peer.has_production or not self.options.is_production)
        )
