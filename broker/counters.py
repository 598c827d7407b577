"""The counters of one broker since its start; they only go up."""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeVar

Key = TypeVar("Key")


@dataclass(eq=False, slots=True)
class Counters:
    """Counts of one broker, all from 0.

    Attributes:
        bytes_received: the bytes of whole packets that were received.
        bytes_sent: the bytes that were handed to connections.
        packets_received: the packets of every type that were received.
        packets_sent: the packets of every type that were sent.
        publish_received: PUBLISH packets from clients.
        publish_sent: PUBLISH packets to clients, repeats included.
        publish_refused: publishes that were not routed, by reason.
        publishers_slowed: times the broker stopped reading from a client over its publish rate.
        retained_discarded: messages that were routed but not retained, as there was no room.
        subscribe_refused: requested subscriptions that were not made, by reason.
        connections_total: network connections accepted.
        connections_refused: network connections that were refused or failed, by reason: the limit
            that was exceeded (`all`, `listener`, `address`; of sessions: `sessions`,
            `user_sessions`, `address_sessions`; `wills`; of an operator: `banned`), `cut_off` for
            those of them that got no answer, or what went wrong (`tls`, `websocket`,
            `proxy_header`, `timeout`).
        clients_connected: clients connected now, without those of the broker's own process.
        clients_connected_maximum: the most of them that were connected at once.
        sessions_expired: sessions that ended as their Session Expiry Interval had passed.
        logins_failed: CONNECT packets and exchanges with a wrong user or password.
        logins_not_judged: logins refused unchecked after too many failures; see
            `penstock.broker.sessions.login_backoff`.
        revoked: clients disconnected after a reload that withdrew their access.
        peer_errors: connections closed for what the peer sent, by reason code.
        unexpected_acknowledgements: acknowledgements of packet identifiers not inflight.
        lanes_paced: times that what was sent on a large lane has begun to yield to the other one.
        user_properties_ignored: user properties of CONNECT whose value, or that beside it, does not
            allow to use them.
        extension_events_dropped: events that a plugin was too slow to take, by the name of its
            callback.
        extension_errors: exceptions raised by plugins, by the name of the plugin.
        faults: exceptions in parts of the broker that do not stop the others, by the part's name.
    """

    bytes_received: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    packets_sent: int = 0
    publish_received: int = 0
    publish_sent: int = 0
    publish_refused: dict[str, int] = field(default_factory=dict)
    publishers_slowed: int = 0
    retained_discarded: int = 0
    subscribe_refused: dict[str, int] = field(default_factory=dict)
    connections_total: int = 0
    connections_refused: dict[str, int] = field(default_factory=dict)
    clients_connected: int = 0
    clients_connected_maximum: int = 0
    sessions_expired: int = 0
    logins_failed: int = 0
    logins_not_judged: int = 0
    revoked: int = 0
    peer_errors: dict[int, int] = field(default_factory=dict)
    unexpected_acknowledgements: int = 0
    lanes_paced: int = 0
    user_properties_ignored: int = 0
    extension_events_dropped: dict[str, int] = field(default_factory=dict)
    extension_errors: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


class Histogram:
    """A histogram: the number of values that were at most as large as each bound.

    Attributes:
        bounds: ascending; in the unit of the values.
        counts: the number of values above the bound before and not above this one; the last item
            is that of values above all bounds.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> dict[str, int]:
        """Return each bound, and ``+Inf``, to how many values were at most as large."""
        n_values, found = 0, {}
        for bound, n_more in zip((*self.bounds, float("inf")), self.counts, strict=True):
            n_values += n_more
            found["+Inf" if bound == float("inf") else f"{bound:g}"] = n_values
        return found


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        labels: name to value, in their order.
        value: the value of a counter or gauge, or a histogram.
    """

    labels: Mapping[str, str]
    value: float | Histogram


class Metric(NamedTuple):
    """Figures of one name, as monitoring systems take them.

    Attributes:
        name: ends in its unit, or in ``_total``.
        type: the metric's type, as Prometheus names it. A ``gaugehistogram`` is one of this moment,
            such as the RTTs of all clients, and may go down.
        help: one sentence about what it counts.
        samples: each with other labels.
        across: what several processes that are shown as one have of it together: the sum, the
            greatest value, or each its own.
    """

    name: str
    type: Literal["counter", "gauge", "histogram", "gaugehistogram"]
    help: str
    samples: Sequence[Sample]
    across: Literal["sum", "max", "each"] = "sum"


def figures(value: float | Histogram) -> dict[str, Any]:
    """Return the figures of a sample by their names."""
    if not isinstance(value, Histogram):
        return {"value": value}
    buckets = value.buckets()
    return {"buckets": buckets, "sum": round(value.total, 6), "count": buckets["+Inf"]}


def metrics_of(
    several: Sequence[tuple[Mapping[str, str], Any]],
    *,
    states: Container[str] = (),
    leaves_out: Container[str] = (),
) -> Iterator[Metric]:
    """Yield the metrics of dataclasses of counters, one for each field.

    What a metric counts is said by the class's docstring. Each reason has a sample of its own, with
    the label ``reason``.

    Args:
        several: pairs of labels and counters, all of one class; one at least.
        states: fields that go up and down, which are gauges.
        leaves_out: fields that are no metrics.
    """
    if not several:
        return
    helps = attributes_of(type(several[0][1]))
    for field_ in fields(several[0][1]):
        name = field_.name
        if name in leaves_out:
            continue
        samples: list[Sample] = []
        for labels, counts in several:
            counted = getattr(counts, name)
            if isinstance(counted, int):
                samples.append(Sample(labels, counted))
            else:
                samples += [
                    Sample({**labels, "reason": _shown(key)}, number)
                    for key, number in sorted(counted.items())
                ]
        if name in states:
            yield Metric(name, "gauge", helps.get(name, name), samples)
        else:
            yield Metric(
                f"{name.removesuffix('_total')}_total", "counter", helps.get(name, name), samples
            )


def attributes_of(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each attribute."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        _, _, text = inspect.cleandoc(one.__doc__ or "").partition("\nAttributes:\n")
        listed = re.match(r"(?: {4}.*\n?|\n)*", text)
        for name, told in re.findall(
            r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed[0] if listed else "", re.MULTILINE
        ):
            found[name] = " ".join(told.split())
    return found


def by_name(counts: Any) -> dict[str, int]:
    """Return all counters of a dataclass by their names, those of reasons as `by_reason` does."""
    found: dict[str, int] = {}
    for each in fields(counts):
        found |= by_reason(each.name, getattr(counts, each.name))
    return found


def by_reason(name: str, counted: int | Mapping[Any, int]) -> dict[str, int]:
    """Return a counter by its name, or each of its reasons below that.

    A reason that is a number is a reason code.
    """
    if isinstance(counted, int):
        return {name: counted}
    return {f"{name}/{_shown(key)}": number for key, number in sorted(counted.items())}


def _shown(reason: str | int) -> str:
    """Return a reason as a topic level and a label have it."""
    return f"0x{reason:02X}" if isinstance(reason, int) else reason.replace("/", ".")


def count(by_name: dict[Key, int], name: Key, number: int = 1) -> None:
    """Add to a counter that is kept by name."""
    by_name[name] = by_name.get(name, 0) + number
