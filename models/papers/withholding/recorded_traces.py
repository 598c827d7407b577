"""Traces for the withholding simulation, from a recording of a broker or a run of `netem`.

A recording has the broker's own estimates: the RTT of a row applies until the next row. While a
packet is unanswered for longer than the newest estimate, its age is a lower bound of the RTT, as it
is for the broker's gate. Seconds in which a client had no connection are left out. A run of `netem`
has latencies of single messages: twice the latency of a small one stands for the RTT.

Each large message arrives at its recorded time, at every client whose topic filters match. A client
that received none gets those of paper 002.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.mqtt.topics import matches
from penstock.models.papers.withholding.rtt_trace import MAX_SECONDS, Arrival, each_second
from penstock.models.recording.rows import MessageRow, RttRow, SubscriptionRow, read_rows
from penstock.plugins.withholding.config import DEFAULT_PROFILE
from penstock.plugins.withholding.thresholds import LatencyProfile

QUERY_BYTES: Final = min(DEFAULT_PROFILE)
"""The payload of the query whose RTT a trace has; longer messages are large (threshold_s)."""
LEAST_SECONDS: Final = 2
"""A trace shorter than this shows nothing, and is left out."""
BASELINE: Final = "none"
"""The broker of a run whose latencies are taken, if it took part."""

_PROFILE: Final = LatencyProfile(DEFAULT_PROFILE)


class Trace(NamedTuple):
    """The path of one client over time.

    Attributes:
        rtts: the RTT of the query in each second, seconds.
        arrivals: the arrivals of its large messages; None: none was recorded.
    """

    name: str
    rtts: list[float]
    arrivals: list[Arrival] | None


def read_traces(folder: Path) -> list[Trace]:
    """Return a trace of each client.

    Raises:
        OSError: a file cannot be read.
        ValueError: there is no trace in it, or a file holds something else.
    """
    found = _of_run(folder) if _is_run(folder) else _of_recording(folder)
    if not found:
        raise ValueError(
            f"no client with RTTs for {LEAST_SECONDS} s or more; allowed: a recording of Penstock"
            " with the plugin probing and a subscriber, or a run with small messages"
        )
    return found


def _of_recording(folder: Path) -> list[Trace]:
    rows_of = defaultdict(list)
    for row in read_rows(folder, RttRow):
        rows_of[row.client].append(row)
    filters_of = defaultdict(set)
    for one in read_rows(folder, SubscriptionRow):
        if one.topic_filter is not None:
            filters_of[one.client].add(one.topic_filter)
    large = [each for each in read_rows(folder, MessageRow) if each.payload_bytes > QUERY_BYTES]
    topics = {each.topic for each in large}
    traces = []
    for client, rows in sorted(rows_of.items()):
        filters = filters_of[client]
        own = {topic for topic in topics if any(matches(name, topic) for name in filters)}
        messages = [(each.seconds, each.payload_bytes) for each in large if each.topic in own]
        traces += _trace(client, _samples(rows), messages)
    return traces


def _samples(rows: Iterable[RttRow]) -> list[tuple[float, float | None]]:
    """Return (seconds, RTT of the query), None where the client has no connection."""
    samples: list[tuple[float, float | None]] = []
    newest: float | None = None
    for row in rows:
        if samples and row.seconds <= samples[-1][0]:
            continue
        if not row.is_connected:
            samples.append((row.seconds, None))
            continue
        if row.rtt_seconds is not None:
            newest = row.rtt_seconds / _PROFILE.relative(row.rtt_bytes)
        known = [] if newest is None else [newest]
        if row.unanswered_seconds is not None:
            known.append(row.unanswered_seconds / _PROFILE.relative(row.unanswered_bytes))
        if known:
            samples.append((row.seconds, max(known)))
    return samples


def _trace(
    name: str, samples: Sequence[tuple[float, float | None]], messages: Iterable[tuple[float, int]]
) -> list[Trace]:
    """Return the trace of a client, if it is long enough.

    Args:
        name: the name of the client.
        samples: (seconds, RTT or None while it is away), in the order of time.
        messages: the time (seconds) and payload length of each of its large messages, in the order
            of time.
    """
    rows: list[tuple[float, float]] = []
    gaps: list[tuple[float, float]] = []  # beginning and end of each time away
    cut = 0.0  # seconds left out so far
    for (at, rtt), (following, _) in pairwise(
        [*samples, (samples[-1][0], None)] if samples else []
    ):
        if rtt is None:
            gaps.append((at, following))
            cut += following - at
        else:
            rows.append((at - cut, rtt))
    if not rows or rows[-1][0] - rows[0][0] > MAX_SECONDS:
        return []
    rtts = each_second(rows)
    if len(rtts) < LEAST_SECONDS:
        return []
    arrivals = []
    for at, n_bytes in messages:
        if any(begin <= at < end for begin, end in gaps):
            continue
        left_out = sum(end - begin for begin, end in gaps if end <= at)
        second = math.floor(at - left_out - rows[0][0])
        if 0 <= second < len(rtts):
            arrivals.append(Arrival(second, _PROFILE.relative(n_bytes)))
    return [Trace(name, rtts, arrivals or None)]


def _is_run(folder: Path) -> bool:
    return any((folder / f"deliveries.{end}").is_file() for end in ("parquet", "csv"))


def _of_run(folder: Path) -> list[Trace]:
    from penstock.netem.errors import NetemError  # noqa: PLC0415 - pyarrow
    from penstock.netem.figures import table_files, table_rows  # noqa: PLC0415

    try:
        messages = table_files.read_table(folder, table_rows.MessageRow)
        deliveries = table_files.read_table(folder, table_rows.DeliveryRow)
    except NetemError as error:
        raise ValueError(str(error)) from error
    names = {each.broker for each in messages}
    broker = BASELINE if BASELINE in names else min(names, default="")
    published = {
        (each.seed, each.publisher, each.stream, each.number): each
        for each in messages
        if each.broker == broker
    }
    small = defaultdict(list)
    large = defaultdict(list)
    for one in deliveries:
        if one.broker != broker or one.is_duplicate:
            continue
        each = published.get((one.seed, one.publisher, one.stream, one.number))
        if each is None:
            continue
        key = (one.seed, one.subscriber)
        if each.payload_bytes > QUERY_BYTES:
            large[key].append((each.due_s, each.payload_bytes))
        else:
            small[key].append((each.due_s, 2 * (one.delivered_s - each.due_s)))
    traces = []
    for (seed, subscriber), samples in sorted(small.items()):
        name = f"{subscriber}, {broker}, seed {seed}"
        # Of two messages that are due at once, the one that takes longer.
        slowest = dict(sorted(samples))
        traces += _trace(name, list(slowest.items()), sorted(large[seed, subscriber]))
    return traces
