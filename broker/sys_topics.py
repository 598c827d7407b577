"""The broker's own figures as retained messages under `$SYS/broker`.

Names are those that mosquitto and aMQTT publish; Penstock's own stand under
``$SYS/broker/penstock``.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from broker.core import Core
from broker.message import Message

ROOT = "$SYS/broker/"


class _Figure(Message):
    """One of the broker's figures.

    Python keeps objects of one size together. The slot makes figures, which stay and are replaced
    now and then, of another size than clients' messages: they do not hold the memory of a backlog
    in which they came.
    """

    __slots__ = ("__weakref__",)


class SysTopics:
    """Publishes a core's figures, those that have changed since the last time."""

    def __init__(
        self, core: Core, version: str, started_at: float, *, has_common: bool = True
    ) -> None:
        """Make the publisher.

        Args:
            core: whose figures.
            version: of Penstock.
            started_at: monotonic seconds at which the broker started.
            has_common: False where aMQTT's own plugin publishes the names that it shares with
                mosquitto, some in other units: then only Penstock's own are published.
        """
        self._has_common = has_common
        self._core = core
        self._version = version
        self._started_at = started_at
        self._process = psutil.Process()
        self._published: dict[str, str] = {}

    def publish(self, now: float) -> None:
        """Publish every figure that has changed."""
        for name, value in self.figures(now):
            if self._published.get(name) != value:
                self._published[name] = value
                message = _Figure(ROOT + name, value.encode(), retain=True, arrived_at=now)
                self._core.publish(message, now)

    def figures(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield (topic below `$SYS/broker/`, value as text) for every figure."""
        if self._has_common:
            yield from self._common(now)
        yield from self._ledger()
        yield from self._faults()

    def _common(self, now: float) -> Iterator[tuple[str, str]]:
        core = self._core
        counters = core.counters
        yield "version", f"Penstock {self._version}"
        yield "uptime", str(int(now - self._started_at))
        yield "clients/connected", str(counters.clients_connected)
        yield "clients/total", str(len(core.sessions))
        yield "clients/disconnected", str(len(core.sessions) - counters.clients_connected)
        yield "connections/total", str(counters.connections_total)
        yield "load/bytes/received", str(counters.bytes_received)
        yield "load/bytes/sent", str(counters.bytes_sent)
        yield "messages/received", str(counters.packets_received)
        yield "messages/sent", str(counters.packets_sent)
        yield "messages/publish/received", str(counters.publish_received)
        yield "messages/publish/sent", str(counters.publish_sent)
        yield "retained messages/count", str(len(core.retained))
        yield "messages/retained/count", str(len(core.retained))
        yield "subscriptions/count", str(core.tree.n_subscriptions)
        yield "heap/size", str(self._process.memory_info().rss)

    def _ledger(self) -> Iterator[tuple[str, str]]:
        core = self._core
        ledger = core.ledger()
        inflight = withheld = queued = queued_bytes = 0
        for session in core.sessions:
            outbox = session.outbox
            inflight += len(session.inflight)
            withheld += outbox.n_withheld
            queued += outbox.n_messages
            queued_bytes += outbox.n_bytes
        root = "penstock/ledger/"
        yield root + "matched", str(ledger.matched)
        yield root + "delivered", str(ledger.delivered)
        yield root + "inflight", str(inflight)
        yield root + "withheld", str(withheld)
        yield root + "queued", str(queued - withheld)
        yield root + "queued_bytes", str(queued_bytes)
        yield root + "expired", str(ledger.expired)
        yield root + "moved", str(ledger.moved)
        for reason, n_messages in sorted(ledger.dropped.items()):
            yield root + f"dropped/{reason}", str(n_messages)
        yield "penstock/withholding/withheld_total", str(ledger.withheld_total)
        yield "penstock/withholding/released_total", str(ledger.released_total)
        for sink in core.sinks:
            root = f"penstock/ledger/sinks/{sink.name}/"
            yield root + "matched", str(sink.counts.matched)
            yield root + "stored", str(sink.counts.stored)
            yield root + "queued", str(sink.counts.queued)
            for reason, n_messages in sorted(sink.counts.dropped.items()):
                yield root + f"dropped/{reason}", str(n_messages)

    def _faults(self) -> Iterator[tuple[str, str]]:
        core = self._core
        for reason, n_messages in sorted(core.counters.publish_refused.items()):
            yield f"penstock/publish_refused/{reason}", str(n_messages)
        yield "penstock/publishers_slowed", str(core.counters.publishers_slowed)
        yield "penstock/retained_discarded", str(core.counters.retained_discarded)
        yield "penstock/retained_expired", str(core.retained.expired_total)
        yield "penstock/retained_bytes", str(core.retained.n_bytes)
        for reason, n_requests in sorted(core.counters.subscribe_refused.items()):
            yield f"penstock/subscribe_refused/{reason}", str(n_requests)
        for reason, n_connections in sorted(core.counters.connections_refused.items()):
            yield f"penstock/connections_refused/{reason}", str(n_connections)
        yield "penstock/user_properties_ignored", str(core.counters.user_properties_ignored)
        for code, n_connections in sorted(core.counters.peer_errors.items()):
            yield f"penstock/peer_errors/0x{code:02X}", str(n_connections)
        for name, n_events in sorted(core.counters.extension_events_dropped.items()):
            yield f"penstock/extension_events_dropped/{name.replace('/', '.')}", str(n_events)
        for name, n_errors in sorted(core.counters.extension_errors.items()):
            yield f"penstock/extension_errors/{name.replace('/', '.')}", str(n_errors)
