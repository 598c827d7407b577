"""Profiles of links: their delay, rate and losses in each direction.

A network (`penstock.netem.links.network`) sees packets and does everything here. The relay
(`penstock.netem.links.relay`) sees the bytes of TCP connections and does delay and rate alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

LEAST_QUEUE_BYTES: Final = 15_000
"""The least size of the queue before a rate limit: ten packets of Ethernet's size."""

QUEUE_SECONDS: Final = 0.2
"""The default size of the queue before a rate limit, in time at the rate: a router's usual
buffer."""


class _KeyType:
    """A marker by which pydantic reads a key as a type of `penstock.broker.config.key_types`.

    Each network starts a forwarder, which needs profiles and reads no file. So pydantic is imported
    where a file is read.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        from penstock.broker.config import key_types  # noqa: PLC0415 - loads pydantic

        return handler.generate_schema(getattr(key_types, self._name))


Rate = Annotated[float, _KeyType("Rate")]
Size = Annotated[int, _KeyType("Size")]

STRICT: Final = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
"""The value of `penstock.broker.config.key_types.STRICT`, without pydantic."""


def _check_ratio(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: read {value}; allowed: 0 to 1")


@dataclass(frozen=True, slots=True)
class Bursts:
    """Loss in bursts, by the model of Gilbert and Elliott: the state may change with each packet.

    A burst lasts ``1 / end`` packets on average.

    Attributes:
        begin: the probability that a burst begins with a packet (p), 0 to 1.
        end: the probability that it ends with one (r), above 0 and up to 1.
        inside: the share of a burst's packets that are lost (1 - h).
        outside: the share of the other packets that are lost (1 - k).
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    begin: float
    end: float
    inside: float = 1.0
    outside: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one is out of range.
        """
        for name in ("begin", "end", "inside", "outside"):
            _check_ratio(name, getattr(self, name))
        if self.end == 0:
            raise ValueError("end: read 0; allowed: above 0, or a burst never ends")

    @property
    def mean_loss(self) -> float:
        """Share of all packets that are lost in the long run."""
        return (self.inside * self.begin + self.outside * self.end) / (self.begin + self.end)


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link.

    Attributes:
        delay: the seconds from the last bit sent to the last bit received, at least 0.
        rate: the bytes a second, above 0; None for no limit.
        jitter: the seconds by which the delay varies in either direction, uniformly distributed; at
            most the delay. Jitter does not reorder: a packet waits for the packet before it.
        loss: the share of packets that are lost, or bursts. A lost packet uses the rate like any
            other.
        queue_bytes: the bytes that may wait for the rate; further packets are dropped. None for the
            bytes that pass in `QUEUE_SECONDS`, and at least `LEAST_QUEUE_BYTES`.
        reorder: the share of packets that are not delayed, and so overtake packets that are.
        duplicate: the share of packets that arrive twice.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    delay: float = 0.0
    rate: Rate | None = None
    jitter: float = 0.0
    loss: float | Bursts = 0.0
    queue_bytes: Size | None = None
    reorder: float = 0.0
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one is out of range.
        """
        if not 0 <= self.delay < float("inf"):
            raise ValueError(f"delay: read {self.delay}; allowed: seconds from 0")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"rate: read {self.rate}; allowed: bytes per second above 0, or null")
        if not 0 <= self.jitter <= self.delay:
            raise ValueError(f"jitter: read {self.jitter}; allowed: seconds from 0 to the delay")
        if not isinstance(self.loss, Bursts):
            _check_ratio("loss", self.loss)
        if self.queue_bytes is not None and (self.queue_bytes <= 0 or self.rate is None):
            raise ValueError(
                f"queue_bytes: read {self.queue_bytes}; allowed: bytes above 0, beside a rate"
            )
        _check_ratio("reorder", self.reorder)
        if self.reorder and not self.delay:
            raise ValueError(f"reorder: read {self.reorder}; allowed: 0, where nothing is delayed")
        _check_ratio("duplicate", self.duplicate)

    @property
    def max_queue_bytes(self) -> float:
        """Bytes that may wait for the rate; infinite without a rate."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        if self.rate is None:
            return float("inf")
        return max(LEAST_QUEUE_BYTES, self.rate * QUEUE_SECONDS)

    @property
    def mean_loss(self) -> float:
        """Share of all packets that are lost in the long run."""
        return self.loss.mean_loss if isinstance(self.loss, Bursts) else self.loss

    @property
    def acts_on_packets(self) -> bool:
        """Return whether it does more than delay and rate, so that packets must be seen."""
        return self != Direction(self.delay, self.rate)


@dataclass(frozen=True, slots=True)
class Profile:
    """A link in a certain state."""

    name: str
    upstream: Direction
    downstream: Direction

    def __str__(self) -> str:
        """Return name, round trip, and rate and loss towards the client in words."""
        round_trip = 1000 * (self.upstream.delay + self.downstream.delay)
        rate = self.downstream.rate
        carries = "any rate" if rate is None else f"{rate / 1000:,.0f} kB/s"
        text = f"{self.name}: {round_trip:,.0f} ms round trip, {carries}"
        lost = self.downstream.mean_loss
        return f"{text}, {100 * lost:.3g} % lost" if lost else text


OPEN: Final = Profile("open", Direction(), Direction())
"""A link without delay and limit: bytes pass as fast as they are read."""

GOOD: Final = Profile("good", Direction(0.02, 2_500_000), Direction(0.02, 2_500_000))
"""A mobile link without other users: 20 Mbit/s, 40 ms round trip."""

BAD: Final = Profile("bad", Direction(1.0, 125_000), Direction(1.0, 125_000))
"""The link `GOOD` in congestion: 1 Mbit/s, and a round trip of two seconds in buffers on the way.
The bursts of congestion in paper 002 (figure 8) add 3.3 s to a round trip on average."""

LOSSY: Final = Profile(
    "lossy", Direction(0.1, 2_500_000, loss=0.2), Direction(0.1, 2_500_000, loss=0.2)
)
"""The link `GOOD` in transient congestion: 100 ms and 20 % loss each way, beyond a relay."""

PROFILES: Final = {profile.name: profile for profile in (OPEN, GOOD, BAD)}
"""The profiles that a relay can carry, by name."""
