"""The figures of the program in the formats of Prometheus.

They are made at the scrape from what is counted anyway, and written metric by metric, so that other
tasks run in between. `prometheus_client` says what the formats look like.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client import Metric as Family
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder

from penstock.broker.counters import Histogram, Metric, Sample
from penstock.broker.operations_contract import ClientRow, TopicRow

PREFIX: Final = "penstock_"

_END: Final = b"# EOF\n"

SAMPLES_AT_ONCE: Final = 200
"""So many samples are written before other tasks run: some 2 ms."""


class _Families(NamedTuple):
    """What `prometheus_client` takes for a registry."""

    families: Sequence[Family]

    def collect(self) -> Sequence[Family]:
        return self.families


def name_problems(metrics: Iterable[Metric]) -> list[str]:
    """Return what keeps metrics from being told apart: names that two of them would have."""
    taken: dict[str, Metric] = {}
    problems: list[str] = []
    for metric in metrics:
        for name in _series(metric):
            other = taken.setdefault(name, metric)
            if other is not metric:
                read = metric.name if name == metric.name else f"{metric.name}, which has {name},"
                problems.append(f"metric {read} beside {other.name} ({other.help})")
    return problems


def _series(metric: Metric) -> Iterator[str]:
    """Yield the names of a metric and of its series."""
    yield metric.name
    if metric.type == "histogram":
        yield from (f"{metric.name}_{part}" for part in ("bucket", "count", "sum"))


def distinct(metrics: Iterable[Metric]) -> list[Metric]:
    """Return metrics without those whose name an earlier one has: a scrape would fail."""
    taken: set[str] = set()
    found = []
    for metric in metrics:
        names = set(_series(metric))
        if not names & taken:
            taken |= names
            found.append(metric)
    return found


def summed(parts: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """Return what several processes have together, by `Metric.across`.

    Args:
        parts: the metrics by the name of each process, which those that each has for itself get as
            the label `worker`.
    """
    found: dict[str, tuple[Metric, dict[tuple[tuple[str, str], ...], float | Histogram]]] = {}
    for name, metrics in parts.items():
        for metric in metrics:
            _, values = found.setdefault(metric.name, (metric, {}))
            more = {"worker": name} if metric.across == "each" else {}
            for labels, value in metric.samples:
                key = (*labels.items(), *more.items())
                values[key] = _together_with(values.get(key), value, metric.across)
    return [
        metric._replace(samples=[Sample(dict(key), value) for key, value in values.items()])
        for metric, values in found.values()
    ]


def _together_with(
    one: float | Histogram | None, other: float | Histogram, across: str
) -> float | Histogram:
    """Return what two processes have together; None stands for no value."""
    if isinstance(one, Histogram) and isinstance(other, Histogram):
        both = Histogram(one.bounds)
        both.counts = list(map(sum, zip(one.counts, other.counts, strict=True)))
        both.total = one.total + other.total
        return both
    if one is None or isinstance(one, Histogram) or isinstance(other, Histogram):
        return other
    return max(one, other) if across == "max" else one + other


def metric_as_json(metric: Metric) -> list[Any]:
    """Return a metric as JSON has it, for `metric_of_json`."""
    samples = [
        (
            labels,
            [value.bounds, value.counts, value.total] if isinstance(value, Histogram) else value,
        )
        for labels, value in metric.samples
    ]
    return [metric.name, metric.type, metric.help, samples, metric.across]


def metric_of_json(found: Sequence[Any]) -> Metric:
    """Return the metric that `metric_as_json` has written."""
    metric = Metric(*found)
    return metric._replace(
        samples=[Sample(labels, _value_of_json(value)) for labels, value in found[3]]
    )


def _value_of_json(value: Any) -> float | Histogram:
    if not isinstance(value, list):
        number: float = value
        return number
    bounds, counts, total = value
    histogram = Histogram(tuple(bounds))
    histogram.counts, histogram.total = counts, total
    return histogram


def family(metric: Metric) -> Family:
    """Return a metric as `prometheus_client` has it."""
    name = PREFIX + metric.name
    if metric.type == "counter":
        name = name.removesuffix("_total")
    # A text parser of the older format knows no gauge histograms; as a histogram it reads one.
    kind = "histogram" if metric.type == "gaugehistogram" else metric.type
    found = Family(name, metric.help, kind)
    for labels, value in metric.samples:
        if isinstance(value, Histogram):
            _add_histogram(found, name, dict(labels), value)
        else:
            suffix = "_total" if metric.type == "counter" else ""
            found.add_sample(name + suffix, dict(labels), value)
    return found


def _add_histogram(found: Family, name: str, labels: Mapping[str, str], value: Histogram) -> None:
    buckets = value.buckets()
    for bound, n_values in buckets.items():
        found.add_sample(f"{name}_bucket", {**labels, "le": bound}, n_values)
    found.add_sample(f"{name}_count", labels, buckets["+Inf"])
    found.add_sample(f"{name}_sum", labels, value.total)


async def write(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return (text, content type) of metrics in the format that a scraper accepts."""
    encode, content_type = choose_encoder(accept)
    pieces: list[bytes] = []
    has_end = False
    for some in _together(families):
        piece = encode(_Families(some))
        has_end = has_end or piece.endswith(_END)
        pieces.append(piece.removesuffix(_END))
        await asyncio.sleep(0)
    if has_end:
        pieces.append(_END)
    return b"".join(pieces), content_type


def _together(families: Iterable[Family]) -> Iterator[list[Family]]:
    """Yield families of `SAMPLES_AT_ONCE` together; one alone may have more."""
    some: list[Family] = []
    n_samples = 0
    for one in families:
        some.append(one)
        n_samples += len(one.samples)
        if n_samples >= SAMPLES_AT_ONCE:
            yield some
            some, n_samples = [], 0
    if some:
        yield some


async def of_process() -> list[Family]:
    """Return what `prometheus_client` tells of each process, such as its open files."""
    # It lists a folder of the kernel's with one entry for each connection.
    return await asyncio.to_thread(lambda: list(ProcessCollector(registry=None).collect()))


def families_as_json(families: Iterable[Family]) -> list[Any]:
    """Return metrics of `prometheus_client` as JSON has them, for `by_worker`."""
    return [
        (one.name, one.documentation, one.type, [sample[:3] for sample in one.samples])
        for one in families
    ]


def by_worker(parts: Mapping[str, Iterable[Any]]) -> list[Family]:
    """Return the metrics of several processes, as JSON has them, with the label `worker`."""
    found: dict[str, Family] = {}
    for worker, families in parts.items():
        for name, told, kind, samples in families:
            one = found.setdefault(name, Family(name, told, kind))
            for series, labels, value in samples:
                one.add_sample(series, {**labels, "worker": worker}, value)
    return list(found.values())


_OF_CLIENTS: Final[Mapping[str, tuple[str, str]]] = {
    "rtt_seconds": ("rtt", "The newest RTT of a client."),
    "withheld_messages": ("withheld", "Messages held for a client, and those behind them."),
    "queued_messages": ("queued", "Messages that wait for a client for other reasons."),
    "queued_bytes": ("queued_bytes", "Payload bytes that wait for a client."),
    "inflight_messages": ("inflight", "Messages that a client has not acknowledged."),
    "delivered_messages_total": ("delivered", "Messages that a client was delivered."),
    "dropped_messages_total": ("dropped", "Messages that a client did not get."),
}
"""Name of a metric to the field of a client's row, and its help."""

_OF_TOPICS: Final[Mapping[str, tuple[str, str]]] = {
    "queued_messages": ("messages", "Messages of a topic that wait, for all subscribers."),
    "queued_bytes": ("bytes", "Payload bytes of a topic that wait, for all subscribers."),
    "oldest_message_age_seconds": ("oldest_seconds", "Age of the oldest one that waits."),
}


def per_object(clients: Sequence[ClientRow], topics: Sequence[TopicRow]) -> list[Metric]:
    """Return metrics of single clients, and of single topics of which messages wait."""
    found = [
        _each(f"per_client_{name}", told, clients, field, ("client_id",))
        for name, (field, told) in _OF_CLIENTS.items()
    ]
    return found + [
        _each(f"per_topic_{name}", told, topics, field, ("topic", "size"))
        for name, (field, told) in _OF_TOPICS.items()
    ]


def _each(name: str, told: str, rows: Sequence[Any], field: str, labels: Sequence[str]) -> Metric:
    """Return the metric of one field, with a sample for each row that has it."""
    samples = [
        Sample({label: getattr(row, label) for label in labels}, value)
        for row in rows
        if (value := getattr(row, field)) is not None
    ]
    return Metric(name, "counter" if name.endswith("_total") else "gauge", told, samples)
