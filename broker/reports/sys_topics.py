"""Publishes the broker's own figures as retained messages under `$SYS/broker`.

Names are those that mosquitto and aMQTT publish; Penstock's own are under ``$SYS/broker/penstock``.
Figures of single clients are in `penstock.broker.reports.client_topics`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.config.limits import OF_MEMORY
from penstock.broker.counters import Histogram, Metric, by_name, by_reason, figures
from penstock.broker.message import Message
from penstock.broker.plugin_guard import note_fault
from penstock.broker.process.gc_control import resident_bytes
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.broker.reports.load_averages import LoadAverages
from penstock.broker.reports.periodic_work import PeriodicWork
from penstock.broker.reports.totals import Totals
from penstock.broker.sessions.broker_state import Core

if TYPE_CHECKING:
    from penstock.broker.extensions import Plugin
    from penstock.broker.plugin_guard import Guard

ROOT = "$SYS/broker/"

_COMMON: Final = {
    "clients/connected": "clients_connected",
    "connections/total": "connections_total",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "clients/active": "clients_connected",
    "clients/expired": "sessions_expired",
    "clients/maximum": "clients_connected_maximum",
    "load/bytes/received": "bytes_received",
    "load/bytes/sent": "bytes_sent",
    "messages/received": "packets_received",
    "messages/sent": "packets_sent",
    "messages/publish/received": "publish_received",
    "messages/publish/sent": "publish_sent",
    "publish/messages/received": "publish_received",
    "publish/messages/sent": "publish_sent",
}
"""The counters that mosquitto or aMQTT publish as well, by their topic below `ROOT`."""

_OTHER_PACKET_BYTES: Final = 2
"""The bytes of the shortest packet that is no PUBLISH."""

_PLANNED: Final = ("connections", "queued_messages", "queued_bytes")
"""Limits, beside those of memory, that a plan compares with its recommendation."""

_NOT_BY_NAME: Final = set(_COMMON.values())
"""Counters that are published under other names. All others stand below ``penstock`` by their own;
those that are kept by reason have a topic for each reason."""


class _Figure(Message):
    """One of the broker's figures.

    Python allocates objects of one size together. The extra slot gives figures, which stay for
    long, another size than clients' messages, so that they do not hold the memory of a backlog amid
    which they were made.
    """

    __slots__ = ("__weakref__",)


class SysTopics:
    """Publishes those of a core's figures that have changed, once in each interval."""

    def __init__(
        self,
        core: Core,
        version: str,
        started_at: float,
        *,
        has_common: bool = True,
        plugins: Mapping[str, Plugin] | None = None,
    ) -> None:
        """Prepare the publisher; `start` starts it.

        Args:
            core: the broker whose figures are published.
            version: the version of Penstock.
            started_at: monotonic seconds at which the broker started.
            has_common: False where aMQTT's own plugin publishes the names that it shares with
                mosquitto, some in other units. Then only Penstock's own figures are published.
            plugins: by their names in the policy file.
        """
        self._plugins = plugins or {}
        self._has_common = has_common
        self._core = core
        self._version = version
        self._started_at = started_at
        self._published: dict[str, str] = {}
        self._memory_bytes = machine_memory_bytes()
        self._totals: Totals
        self._load = LoadAverages()
        self._most_heap_bytes = 0
        failed = partial(note_fault, core.logger, core.counters.faults, "$SYS")
        self._work = PeriodicWork(core.timers, self._publish, failed)

    def start(self, now: float, interval: float) -> None:
        """Publish now, and then once in each interval."""
        self._work.begin(now, interval)

    def stop(self) -> None:
        """Publish no more; what is retained stays."""
        self._work.stop()

    def _publish(self, now: float) -> Generator[float, float, None]:
        """Publish what has changed, as work for `PeriodicWork`."""
        self._totals = Totals(self._core)
        while self._totals.read_some():
            now = yield now  # the next slice, in the next turn
        for name, value in self._figures(now):
            if self._published.get(name) != value:
                self._published[name] = value
                message = _Figure(ROOT + name, value.encode(), retain=True, arrived_at=now)
                self._core.router.publish(message, now)

    def _figures(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield (topic below `$SYS/broker/`, value as text) for every figure."""
        if self._has_common:
            common: Mapping[str, str] = dict(self._common(now))
            for name, plugin in self._plugins.items():
                common = self._core.guard.call(name, plugin.sys_topics, common, otherwise=common)
            yield from common.items()
        yield from self._ledger()
        yield from self._settings()
        yield from self._payload_store()
        for name, plugin in self._plugins.items():
            for metric in figures_of(self._core.guard, name, plugin):
                yield from topics_of(name, metric)
        yield from self._faults()

    def _common(self, now: float) -> Iterator[tuple[str, str]]:
        core = self._core
        n_sessions = core.sessions.n_of_clients
        n_away = n_sessions - core.counters.clients_connected
        heap_bytes = resident_bytes()
        self._most_heap_bytes = max(self._most_heap_bytes, heap_bytes)
        yield "version", f"Penstock {self._version}"
        yield "uptime", f"{int(now - self._started_at)} seconds"
        yield "clients/total", str(n_sessions)
        yield "clients/disconnected", str(n_away)
        yield "clients/inactive", str(n_away)
        yield "retained messages/count", str(len(core.retained))
        yield "messages/retained/count", str(len(core.retained))
        yield "subscriptions/count", str(core.n_subscriptions)
        yield "shared_subscriptions/count", str(self._totals.n_shared_subscriptions)
        yield "heap/size", str(heap_bytes)
        yield "heap/current", str(heap_bytes)
        yield "heap/maximum", str(self._most_heap_bytes)
        for topic, name in _COMMON.items():
            yield topic, str(getattr(core.counters, name))
        yield from self._stored()
        yield from self._loads(now)

    def _stored(self) -> Iterator[tuple[str, str]]:
        """Yield what is kept: retained messages, and those that wait or are unacknowledged."""
        totals, retained = self._totals, self._core.retained
        n_stored = totals.inflight + totals.withheld + totals.queued + len(retained)
        yield "messages/stored", str(n_stored)
        yield "store/messages/count", str(n_stored)
        yield "store/messages/bytes", str(totals.queued_bytes + retained.n_bytes)

    def _loads(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield what is counted of publishes, and the averages of all loads."""
        counts = self._core.counters
        n_dropped = sum(self._totals.ledger.dropped.values())
        n_others = counts.packets_received - counts.publish_received
        yield "publish/messages/dropped", str(n_dropped)
        yield "publish/bytes/received", str(counts.bytes_received - _OTHER_PACKET_BYTES * n_others)
        n_others = counts.packets_sent - counts.publish_sent
        yield "publish/bytes/sent", str(counts.bytes_sent - _OTHER_PACKET_BYTES * n_others)
        loads = {
            "bytes/received": counts.bytes_received,
            "bytes/sent": counts.bytes_sent,
            "connections": counts.connections_total - sum(counts.connections_refused.values()),
            "messages/received": counts.packets_received,
            "messages/sent": counts.packets_sent,
            "publish/dropped": n_dropped,
            "publish/received": counts.publish_received,
            "publish/sent": counts.publish_sent,
            "sockets": counts.connections_total,
        }
        for name, average in self._load.update(loads, now):
            yield f"load/{name}", f"{average:.2f}"

    def _ledger(self) -> Iterator[tuple[str, str]]:
        totals = self._totals
        ledger = totals.ledger
        root = "penstock/ledger/"
        for name in ("matched", "delivered", "expired", "moved"):
            yield root + name, str(getattr(ledger, name))
        for name in ("inflight", "withheld", "queued", "queued_bytes"):
            yield root + name, str(getattr(totals, name))
        backlog = self._core.outbox_rules.backlog
        if backlog is not None:
            yield root + "queued_memory_bytes", str(backlog.n_bytes)
        for name, n in by_reason("dropped", ledger.dropped).items():
            yield root + name, str(n)
        yield "penstock/withholding/withheld_total", str(ledger.withheld_total)
        yield "penstock/withholding/released_total", str(ledger.released_total)
        for metric in self._core.outbox_rules.record.metrics():
            yield from _metric(metric)
        for sink in self._core.sinks:
            for name, n in by_name(sink.counts).items():
                yield f"{root}sinks/{sink.name}/{name}", str(n)

    def _settings(self) -> Iterator[tuple[str, str]]:
        """Yield what a plan for this broker starts from."""
        gate = self._core.gate
        yield "penstock/withholding/policy", gate.policy_name or type(gate).__name__
        threshold_s = self._core.guard.call(gate, gate.threshold_s, "", otherwise=None)
        if threshold_s is not None:
            yield "penstock/withholding/threshold_s", str(threshold_s)
        yield "penstock/withholding/probe_period", f"{gate.probe_period:g}"
        yield "penstock/process/processor_seconds", f"{time.process_time():.2f}"
        yield "penstock/machine/cores", str(os.cpu_count() or 1)
        yield "penstock/machine/memory_bytes", str(self._memory_bytes)

    def _payload_store(self) -> Iterator[tuple[str, str]]:
        store = self._core.payload_store
        figures: Mapping[str, int] = self._core.guard.call(store, store.figures, otherwise={})
        for name, n in figures.items():
            yield f"penstock/payload_store/{name}", str(n)

    def _faults(self) -> Iterator[tuple[str, str]]:
        core = self._core
        yield "penstock/publishes_held", str(core.room.n_held)
        if core.journal is not None:
            is_refusing = core.journal.is_failing or core.journal.is_full
            yield "penstock/persistence/failing", str(int(is_refusing))
        yield "penstock/retained_expired", str(core.retained.expired_total)
        for name in (*OF_MEMORY, *_PLANNED):
            limit = getattr(core.limits, name)
            if limit is not None:
                yield f"penstock/limits/{name}", str(limit)
        yield "penstock/received_bytes", str(core.received.n_bytes)
        yield "penstock/subscription_bytes", str(core.subscription_bytes)
        yield "penstock/will_bytes", str(core.sessions.will_bytes)
        yield "penstock/retained_bytes", str(core.retained.n_bytes)
        for name, n in by_name(core.counters).items():
            if name not in _NOT_BY_NAME:
                yield f"penstock/{name}", str(n)


def figures_of(guard: Guard, name: str, plugin: Plugin) -> Sequence[Metric]:
    """Return a plugin's figures, for `$SYS` and the metrics; none where it fails."""
    return guard.call(name, lambda: list(plugin.figures()), otherwise=())


def _metric(metric: Metric) -> Iterator[tuple[str, str]]:
    """Yield the figures of a metric, with its labels as topic levels; none of what is still 0."""
    for labels, value in metric.samples:
        levels = [metric.name.replace("_", "/", 1), *labels.values()]
        root = f"penstock/{'/'.join(levels)}"
        found = figures(value)
        if not isinstance(value, Histogram):
            yield root, str(value)
        elif found["count"]:
            for bound, number in found["buckets"].items():
                level = bound.replace("+", "")  # a wildcard is no part of a Topic Name
                yield f"{root}/le/{level}", str(number)
            yield f"{root}/sum", str(found["sum"])
            yield f"{root}/count", str(found["count"])


def topics_of(plugin: str, metric: Metric) -> Iterator[tuple[str, str]]:
    """Yield (topic, value) of a plugin's metric: below its labels the name, then the reason."""
    name = metric.name.removesuffix("_total")
    for labels, value in metric.samples:
        if isinstance(value, Histogram):
            continue
        levels = [level for label, level in labels.items() if level and label != "reason"]
        reason = [labels["reason"]] if "reason" in labels else []
        topic = "/".join(["penstock", plugin, *levels, name, *reason])
        # A wildcard is no part of a Topic Name.
        yield (
            topic.replace("+", "-").replace("#", "-"),
            str(value) if isinstance(value, int) else f"{value:.6g}",
        )
