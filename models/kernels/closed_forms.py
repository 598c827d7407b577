"""Closed forms of queues, which stand beside the simulations of papers 003 and 004.

Arrivals are Poisson, service times exponential, queues first come, first served. Rates are per
second, times seconds. A queue that has no steady state is an error that names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class OnOff:
    """A server or a peer that is on and off by turns, for exponential times."""

    on_seconds: float
    off_seconds: float

    def __post_init__(self) -> None:
        positive("on_seconds", self.on_seconds)
        positive("off_seconds", self.off_seconds)

    @property
    def on_ratio(self) -> float:
        """Share of the time that it is on."""
        return self.on_seconds / (self.on_seconds + self.off_seconds)


class UnstableError(ValueError):
    """An error: a queue receives at least as much work as its servers can do."""


def positive(name: str, value: float) -> None:
    """Check that a parameter is a finite number above 0.

    Raises:
        ValueError: it is not.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: read {value!r}; allowed: a finite number above 0")


def check_stable(
    stage: str, arrival_rate: float, service_rate: float, work: str = "messages"
) -> None:
    """Check that a queue without limits has a steady state.

    Args:
        stage: the name of the stage, for the error.
        arrival_rate: lambda.
        service_rate: the service rate of all servers together, while they work.
        work: the name of what arrives, for the error.

    Raises:
        UnstableError: rho is 1 or more.
    """
    utilisation = arrival_rate / service_rate
    if utilisation >= 1:
        raise UnstableError(
            f"{stage} overflows: {arrival_rate:.4g} {work}/s arrive, it serves"
            f" {service_rate:.4g}/s, so rho is {utilisation:.3g}; allowed: below 1"
        )


def mm1_response(arrival_rate: float, service_rate: float) -> float:
    """Return the mean time in an M/M/1 queue, service included.

    Raises:
        UnstableError: rho is 1 or more.
    """
    check_stable("M/M/1", arrival_rate, service_rate)
    return 1 / (service_rate - arrival_rate)


@dataclass(frozen=True, slots=True)
class Limited:
    """A queue that does not serve every message.

    Attributes:
        loss_ratio: the share of messages that the queue drops.
        response: the mean time that the other messages spend in the queue, service included.
    """

    loss_ratio: float
    response: float


def mm1k(arrival_rate: float, service_rate: float, capacity: int) -> Limited:
    """Return what an M/M/1/K queue does; rho may be anything."""
    weights = (arrival_rate / service_rate) ** np.arange(capacity + 1)
    return _limited(weights / weights.sum(), arrival_rate)


def onoff_response(arrival_rate: float, service_rate: float, server: OnOff) -> float:
    """Return the mean time in an M/M/1 queue whose server is on and off.

    The formula follows from the generating functions of the number of messages while the server is
    on and while it is off; the server is the second dimension of the Markov chain. An interrupted
    service resumes.

    Raises:
        UnstableError: rho is 1 or more.
    """
    check_stable("ON/OFF queue", arrival_rate, service_rate * server.on_ratio)
    leave, back = 1 / server.on_seconds, 1 / server.off_seconds
    slowed = arrival_rate * (1 + leave / back)
    slope = slowed + leave * (arrival_rate / back) ** 2
    while_on = server.on_ratio * slope / (service_rate - slowed)
    number = while_on * (1 + leave / back) + server.on_ratio * leave * arrival_rate / back**2
    return number / arrival_rate


def onoff_k(arrival_rate: float, service_rate: float, server: OnOff, capacity: int) -> Limited:
    """Return what an ON/OFF queue of K places does: the steady state of its Markov chain."""
    n_states = 2 * (capacity + 1)  # with n messages: 2 n while on, 2 n + 1 while off
    rates = np.zeros((n_states, n_states))
    for number in range(capacity + 1):
        on, off = 2 * number, 2 * number + 1
        rates[on, off], rates[off, on] = 1 / server.on_seconds, 1 / server.off_seconds
        if number < capacity:
            rates[on, on + 2] = rates[off, off + 2] = arrival_rate
            rates[on + 2, on] = service_rate
    balance = (rates - np.diag(rates.sum(axis=1))).T
    balance[-1] = 1.0  # one equation follows from the others; the shares add up to 1
    shares = np.linalg.solve(balance, np.eye(n_states)[-1])
    return _limited(shares[0::2] + shares[1::2], arrival_rate)


def _limited(shares: NDArray[np.float64], arrival_rate: float) -> Limited:
    loss = float(shares[-1])
    number = float(shares @ np.arange(len(shares)))
    return Limited(loss, number / (arrival_rate * (1 - loss)))


def mm1_lifetime(arrival_rate: float, service_rate: float, lifetime: float) -> float:
    """Return the share of messages that expire in an M/M/1 queue, service included.

    Work that would end after its message's lifetime is not done, so the work of the queue is that
    of a dam of finite height. Its distribution is that of the queue without lifetimes, cut off.

    Args:
        arrival_rate: lambda, not equal to mu.
        service_rate: mu.
        lifetime: the lifetime of each message.
    """
    utilisation = arrival_rate / service_rate
    left = math.exp((arrival_rate - service_rate) * lifetime)
    return (1 - utilisation) * left / (1 - utilisation * left)


@dataclass(frozen=True, slots=True)
class LightLoad:
    """A path whose services take no time, so that a message waits only for peers that are off.

    Attributes:
        waits: the peers, at most two in series, that messages wait for; each is in its steady state
            when a message arrives.
        passed_ratio: the share of messages that no lossy stage loses.
    """

    waits: tuple[OnOff, ...]
    passed_ratio: float = 1.0

    def within(self, seconds: float) -> float:
        """Return the share of all messages that arrive within a time."""
        if not self.waits:
            return self.passed_ratio
        one = self.waits[0]
        if len(self.waits) == 1:
            return self.passed_ratio * (1 - (1 - one.on_ratio) * _beyond(one, seconds))
        other = self.waits[1]
        off_one, off_other = 1 - one.on_ratio, 1 - other.on_ratio
        # Two exponential times in a row: a sum with means a and b exceeds t with probability
        # (a exp(-t / a) - b exp(-t / b)) / (a - b).
        a, b = one.off_seconds, other.off_seconds
        if a == b:
            both = (1 + seconds / a) * _beyond(one, seconds)
        else:
            both = (a * _beyond(one, seconds) - b * _beyond(other, seconds)) / (a - b)
        late = (
            off_one * other.on_ratio * _beyond(one, seconds)
            + one.on_ratio * off_other * _beyond(other, seconds)
            + off_one * off_other * both
        )
        return self.passed_ratio * (1 - late)


def _beyond(peer: OnOff, seconds: float) -> float:
    return math.exp(-seconds / peer.off_seconds)


def mmn_waiting(arrival_rate: float, service_rate: float, servers: int) -> float:
    """Return the mean time that a message waits in an M/M/N queue, service not included.

    Raises:
        UnstableError: rho is 1 or more.
    """
    check_stable("M/M/N", arrival_rate, servers * service_rate)
    offered = arrival_rate / service_rate
    term, terms = 1.0, 1.0  # of the Poisson series up to N - 1
    for number in range(1, servers):
        term *= offered / number
        terms += term
    all_busy = term * offered / servers / (1 - offered / servers)
    return all_busy / (terms + all_busy) / (servers * service_rate - arrival_rate)


def in_turn_response(arrival_rate: float, service_rate: float) -> float:
    """Return the mean time until a message and all before it are served, with a server for each.

    A message is served within t of its arrival with probability 1 - exp(-mu t). The number of
    earlier messages that are still there then has a Poisson distribution with mean lambda / mu
    exp(-mu t).
    """
    left = (np.arange(200_000) + 0.5) / 200_000  # exp(-mu t), the middles of equal steps
    late = 1 - (1 - left) * np.exp(-arrival_rate / service_rate * left)
    return float(np.mean(late / left)) / service_rate
