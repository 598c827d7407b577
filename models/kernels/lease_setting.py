"""The parameters of paper 004's queue, and its analytic network (equations 1 to 9)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.models.kernels.closed_forms import check_stable, mmn_waiting, positive

Order: TypeAlias = Literal["any", "arrived", "settled"]
"""The order in which messages are received. `any`: as soon as a message has arrived. `arrived`: the
oldest first, when all that were created before it have arrived. `settled`: when all of these are
settled."""


@dataclass(frozen=True, slots=True)
class LeaseSetting:
    """A queue between senders and receivers; the defaults are the paper's.

    Attributes:
        sender_threads: n1.
        broker_threads: n2.
        reliability_ratio: q, the share of deliveries that succeed; the failure probability p is 1 -
            q.
        arrival_rate: lambda, messages a second.
        sender_rate: mu1, messages a second of a thread.
        broker_rate: mu2, likewise.
        visibility_timeout: the seconds after its receive at which a message that was not deleted
            becomes visible again. None: a failed delivery makes its message visible as soon as it
            ends, as the analytic network assumes.
        link_delay: D_link, one-way, seconds.

    Raises:
        ValueError: a parameter is impossible.
        UnstableError: a stage overflows.
    """

    order: Order = "any"
    sender_threads: int = 7
    broker_threads: int = 7
    reliability_ratio: float = 0.99
    arrival_rate: float = 30.3
    sender_rate: float = 10.0
    broker_rate: float = 10.0
    visibility_timeout: float | None = None
    link_delay: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in {"any", "arrived", "settled"}:
            raise ValueError(f"order: read {self.order!r}; allowed: any, arrived or settled")
        for name in ("sender_threads", "broker_threads"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name}: read {getattr(self, name)!r}; allowed: 1 or more")
        for name in ("arrival_rate", "sender_rate", "broker_rate"):
            positive(name, getattr(self, name))
        if self.visibility_timeout is not None:
            positive("visibility_timeout", self.visibility_timeout)
        if not 0 < self.reliability_ratio <= 1:
            raise ValueError(
                f"reliability_ratio: read {self.reliability_ratio!r}; allowed: above 0, up to 1"
            )
        if not 0 <= self.link_delay < math.inf:
            raise ValueError(f"link_delay: read {self.link_delay!r}; allowed: 0 or more, finite")
        check_stable("sender", self.arrival_rate, self.sender_threads * self.sender_rate)
        if self.order == "settled":
            name = "broker, one message at a time,"
            check_stable(name, self.deliveries, 1 / self._turn_seconds())
        else:
            check_stable("broker", self.deliveries, self.broker_threads * self.broker_rate)

    def _turn_seconds(self) -> float:
        """Return for how long a delivery keeps the next message waiting, in order `settled`."""
        service = 1 / self.broker_rate
        failed = max(service, self.visibility_timeout or 0.0)
        return self.reliability_ratio * service + (1 - self.reliability_ratio) * failed

    @property
    def deliveries(self) -> float:
        """Deliveries a second, Lambda2 (equation 3)."""
        return self.arrival_rate / self.reliability_ratio

    @property
    def link_seconds(self) -> float:
        """Time that a message spends on links (equation 9)."""
        return (3 - self.reliability_ratio) * self.link_delay


@dataclass(frozen=True, slots=True)
class LeaseFigures:
    """The quantities that the paper's figures show of a setting.

    Attributes:
        delivery: mean seconds from creation to delivery.
        waiting: mean number of messages that wait, in senders and broker.
        sender_utilisation: the share of the time in which a thread of the senders works.
        broker_utilisation: the share of the time in which a thread of the broker works.
    """

    delivery: float
    waiting: float
    sender_utilisation: float
    broker_utilisation: float


def analytic(setting: LeaseSetting) -> LeaseFigures:
    """Return what the open Jackson network of two M/M/N stages says, which knows no order."""
    sent, passed = setting.arrival_rate, setting.deliveries
    at_sender = mmn_waiting(sent, setting.sender_rate, setting.sender_threads)
    at_broker = mmn_waiting(passed, setting.broker_rate, setting.broker_threads)
    number = sent * (at_sender + 1 / setting.sender_rate)
    number += passed * (at_broker + 1 / setting.broker_rate)
    return LeaseFigures(
        number / sent + setting.link_seconds,
        sent * at_sender + passed * at_broker,
        sent / (setting.sender_threads * setting.sender_rate),
        passed / (setting.broker_threads * setting.broker_rate),
    )
