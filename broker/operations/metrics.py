"""The figures of the whole broker as metrics, made from what is counted anyway.

`penstock.broker.reports.sys_topics` publishes the same sums under the names of `$SYS`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from platform import python_version
from typing import TYPE_CHECKING, Final, Literal, Protocol

from penstock.broker.counters import Histogram, Metric, Sample, metrics_of
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.process.gc_control import resident_bytes
from penstock.broker.reports.sys_topics import figures_of

if TYPE_CHECKING:
    from penstock.broker.extensions import PayloadStore
    from penstock.broker.operations.program import Program
    from penstock.broker.outbox.message_counts import Ledger
    from penstock.broker.plugin_guard import Guard
    from penstock.broker.reports.totals import Totals
    from penstock.broker.sessions.broker_state import Core

NAMES: Final = {
    "bytes_received_total": "received_bytes_total",
    "bytes_sent_total": "sent_bytes_total",
    "packets_received_total": "received_packets_total",
    "packets_sent_total": "sent_packets_total",
    "publish_received_total": "received_messages_total",
    "publish_sent_total": "sent_messages_total",
}
"""Counters that have another name in `Counters`, to the one by the conventions of Prometheus."""


def metrics(
    core: Core,
    totals: Totals,
    program: Program,
    *,
    now: float,
    lag: Histogram | None,
    is_draining: bool,
) -> Iterator[Metric]:
    """Yield all metrics of a broker, without ``penstock_``.

    The totals were read to the end just now. The lag of the event loop, in seconds, is None where
    that is not measured.
    """
    yield from process_metrics(program.version, program.started_at, program.memory_bytes, now)
    if lag is not None:
        yield Metric(
            "event_loop_lag_seconds",
            "histogram",
            "How late the event loop was, measured by a timer.",
            [Sample({}, lag)],
        )
    told = "1 while clients are being disconnected."
    yield from gauge("draining", told, int(is_draining), "max")
    yield from gauge("bans", "Bans of clients.", len(core.bans.entries), "max")
    states = {"clients_connected", "clients_connected_maximum"}
    for metric in metrics_of([({}, core.counters)], states=states):
        yield metric._replace(name=NAMES.get(metric.name, metric.name))
    yield from _clients(core, totals)
    yield from message_metrics(totals, now)
    yield from core.outbox_rules.record.metrics()
    yield from _memory(core)
    yield from _retained(core)
    yield from _persistence(core, program)
    sinks = [({"queue": sink.name.removeprefix("queue.")}, sink.counts) for sink in core.sinks]
    for metric in metrics_of(sinks, states={"queued"}):
        yield metric._replace(name=f"sink_{metric.name}")
    yield from store_metrics(core.guard, core.payload_store)
    for name, plugin in program.plugins.items():
        for metric in figures_of(core.guard, name, plugin):
            yield metric._replace(name=f"{name}_{metric.name}")


class MessageTotals(Protocol):
    """Where the messages of all clients are; see `penstock.broker.reports.totals.Totals`."""

    ledger: Ledger
    inflight: int
    withheld: int
    queued: int
    queued_bytes: int
    oldest_at: float | None
    rtt: Histogram


def process_metrics(
    version: str, started_at: float, memory_bytes: int, now: float
) -> Iterator[Metric]:
    """Yield what any program has."""
    labels = {"version": version, "python": python_version()}
    help_ = "The version that runs; always 1."
    yield Metric("build_info", "gauge", help_, [Sample(labels, 1)], "each")
    yield from gauge("uptime_seconds", "Time since the start.", now - started_at, "each")
    n_seconds = time.process_time()
    used = counter("process_cpu_seconds_total", "Processor time of all threads.", n_seconds)
    yield used._replace(across="each")
    yield from gauge("memory_process_bytes", "Memory of the process.", resident_bytes(), "each")
    help_ = "Memory that it may use."
    yield from gauge("memory_process_limit_bytes", help_, memory_bytes, "each")


def gauge(
    name: str, help_: str, value: float | None, across: Literal["sum", "max", "each"] = "sum"
) -> Iterator[Metric]:
    """Yield a gauge without labels; nothing where it has no value."""
    if value is not None:
        yield Metric(name, "gauge", help_, [Sample({}, value)], across)


def counter(name: str, help_: str, value: float) -> Metric:
    """Return a counter without labels."""
    return Metric(name, "counter", help_, [Sample({}, value)])


def _clients(core: Core, totals: Totals) -> Iterator[Metric]:
    told = "Sessions of clients, with or without a connection."
    yield from gauge("sessions", told, core.sessions.n_of_clients)
    yield from gauge("sessions_limit", "`limits.sessions`.", core.limits.sessions)
    yield from gauge("connections_limit", "`limits.connections`.", core.limits.connections)
    yield Metric(
        "listener_clients",
        "gauge",
        "Clients connected now, by listener.",
        [Sample({"listener": name}, n) for name, n in sorted(totals.by_listener.items())],
    )
    yield from gauge("subscriptions", "Subscriptions of all sessions.", core.n_subscriptions)
    crowded = sum(isinstance(one, Outbox) for one in core.outbox_rules.over_half)
    yield from gauge("crowded_sessions", "Sessions above half of their queue limit.", crowded)
    yield from gauge(
        "withheld_sessions",
        "Sessions for which a large message is held.",
        totals.n_withheld_sessions,
    )


def message_metrics(totals: MessageTotals, now: float) -> Iterator[Metric]:
    """Yield where the messages of all clients are, and how far away the clients."""
    ledger = totals.ledger
    for name, help_ in (
        ("matched", "Messages for subscribers: one for each that gets it."),
        ("delivered", "Messages sent at QoS 0, acknowledged at QoS 1, completed at QoS 2."),
        ("expired", "Messages removed as their Message Expiry Interval had passed."),
        ("moved", "Messages moved to another session, and matched again there."),
    ):
        yield counter(f"messages_{name}_total", help_, getattr(ledger, name))
    yield Metric(
        "messages_dropped_total",
        "counter",
        "Messages that subscribers did not get, by reason.",
        [Sample({"reason": reason}, n) for reason, n in sorted(ledger.dropped.items())],
    )
    yield counter(
        "withheld_messages_total", "Large messages that were held.", ledger.withheld_total
    )
    yield counter(
        "released_messages_total", "Large messages sent after a hold.", ledger.released_total
    )
    for name, help_ in (
        ("inflight", "Messages sent and unacknowledged."),
        ("withheld", "Messages that the gate holds, and those behind them."),
        ("queued", "Messages that wait for other reasons."),
    ):
        yield from gauge(f"messages_{name}", help_, getattr(totals, name))
    yield from gauge("queued_bytes", "Payload bytes that wait.", totals.queued_bytes)
    yield Metric(
        "client_rtt_seconds",
        "gaugehistogram",
        "The newest RTT of each connected client that has a recent one.",
        [Sample({}, totals.rtt)],
    )
    yield from gauge(
        "oldest_message_age_seconds",
        "Age of the oldest message that waits; 0 for none.",
        0.0 if totals.oldest_at is None else max(0.0, now - totals.oldest_at),
        "max",
    )


def _memory(core: Core) -> Iterator[Metric]:
    """Yield what takes memory, each beside its limit."""
    limits, backlog = core.limits, core.outbox_rules.backlog
    for name, what, n_bytes, limit in (
        (
            "queued",
            "messages that wait",
            None if backlog is None else backlog.n_bytes,
            limits.total_queued_bytes,
        ),
        ("retained", "retained messages", core.retained.n_bytes, limits.retained_bytes),
        (
            "received",
            "incomplete packets and aliases",
            core.received.n_bytes,
            limits.total_received_bytes,
        ),
        (
            "subscriptions",
            "subscriptions",
            core.subscription_bytes,
            limits.total_subscription_bytes,
        ),
        ("wills", "wills", core.sessions.will_bytes, limits.total_will_bytes),
    ):
        yield from gauge(f"memory_{name}_bytes", f"Memory of {what}.", n_bytes)
        yield from gauge(f"memory_{name}_limit_bytes", f"Limit of the memory of {what}.", limit)
    yield from gauge(
        "session_queue_limit_messages",
        "Messages that may wait in one session.",
        limits.queued_messages,
        "max",
    )
    told = "Payload bytes that may wait in one."
    yield from gauge("session_queue_limit_bytes", told, limits.queued_bytes, "max")


def _retained(core: Core) -> Iterator[Metric]:
    told = "Retained messages, `$SYS` included."
    yield from gauge("retained_messages", told, len(core.retained), "max")
    yield counter(
        "retained_expired_total", "Retained messages that expired.", core.retained.expired_total
    )
    yield from gauge(
        "publishes_held", "Messages of publishers that wait for room.", core.room.n_held
    )


def _persistence(core: Core, program: Program) -> Iterator[Metric]:
    journal = core.journal
    if journal is None:
        return
    yield from gauge(
        "persistence_failing",
        "1 while the database takes no commits, or has no room.",
        int(journal.is_failing or journal.is_full),
        "max",
    )
    if program.state is not None:
        yield Metric(
            "persistence_commit_seconds",
            "histogram",
            "Time of each commit of the database.",
            [Sample({}, program.state.commit_seconds)],
        )


def store_metrics(guard: Guard, store: PayloadStore) -> Iterator[Metric]:
    """Yield the figures of a payload store; nothing where it fails."""
    found: Mapping[str, int] = guard.call(store, store.figures, otherwise={})
    for name, n in found.items():
        help_ = f"Payload store: {name.replace('_', ' ')}."
        if name.endswith("_total"):
            yield counter(f"payload_store_{name}", help_, n)
        else:
            yield from gauge(f"payload_store_{name}", help_, n)
