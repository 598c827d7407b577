"""The `Operations` of a proxy, for the plugin `console`.

Sessions, subscriptions, retained messages and access are its broker's. Here are links, what is held
for each client, and the proxy's connections.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.client_report import ClientReport
from penstock.broker.counters import Histogram, Metric, metrics_of
from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.operations.client_rows import VERSIONS, waiting_topics
from penstock.broker.operations.metrics import (
    gauge,
    message_metrics,
    process_metrics,
    store_metrics,
)
from penstock.broker.operations_contract import ClientRow, Operations
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.process.log_lines import LogLevels
from penstock.broker.process.machine_memory import machine_memory_bytes
from penstock.broker.reports.client_reports import Subject, report, subject_of_last
from penstock.broker.reports.totals import RTT_BOUNDS, SLICE

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.network.listener_set import Listeners
    from penstock.broker.operations_contract import Ban, BanKind, Reloaded, TopicRow
    from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient
    from penstock.edge_proxy.sidecar.proxy_state import ProxyState
    from penstock.edge_proxy.sidecar.transport import ClientTransport, ProxiedClients
    from penstock.edge_proxy.upstream import Upstreams

_METRICS: Final = ("connections_refused_total", "faults_total")
"""Of the broker's counters, those that a proxy counts."""


class ProxyTotals:
    """Where the messages of a proxy's clients are, as `MessageTotals` of a broker has it."""

    def __init__(self, ended: Ledger) -> None:
        self.ledger = Ledger()
        self.ledger.add(ended)
        self.inflight = self.withheld = self.queued = self.queued_bytes = 0
        self.oldest_at: float | None = None
        self.rtt = Histogram(RTT_BOUNDS)

    def add(self, proxied: ProxiedClient) -> None:
        """Add a client that is connected."""
        client, outbox = proxied.client, proxied.client.outbox
        self.ledger.add(client.ledger)
        self.inflight += client.acks.n_inflight
        withheld = outbox.n_withheld
        self.withheld += withheld
        self.queued += client.n_waiting - withheld
        self.queued_bytes += outbox.n_bytes + client.qos0_backlog.n_bytes
        oldest_at = outbox.oldest_at()
        if oldest_at is not None and (self.oldest_at is None or oldest_at < self.oldest_at):
            self.oldest_at = oldest_at
        if proxied.link.rtt_latest is not None:
            self.rtt.observe(proxied.link.rtt_latest)


def totals_of(shared: ProxyState) -> ProxyTotals:
    """Return where the messages of all clients are, at once; past clients are in the ledger."""
    totals = ProxyTotals(shared.ended)
    for proxied in shared.running:
        totals.add(proxied)
    return totals


class ProxyOperations(LogLevels, Operations):
    """The `Operations` of a proxy: its clients are those that their broker has accepted.

    Attributes:
        is_draining: no new clients are accepted, and those that are there are disconnected.
    """

    is_draining = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._shared: ProxyState | None = None
        self._upstreams: Upstreams | None = None
        self._reload: Callable[[], Awaitable[Reloaded]] | None = None
        self._clients: ProxiedClients | None = None
        self._listeners: Listeners | None = None

    def attach(
        self,
        shared: ProxyState,
        upstreams: Upstreams | None = None,
        reload: Callable[[], Awaitable[Reloaded]] | None = None,
    ) -> None:
        """Report on this proxy's clients and on the addresses of its broker from now on."""
        self._shared = shared
        self._upstreams = upstreams
        self._reload = reload

    def serve(self, clients: ProxiedClients, listeners: Listeners) -> None:
        """Change these clients and listeners from now on."""
        self._clients = clients
        self._listeners = listeners

    async def reload(self) -> Reloaded:
        """Read all files again, as at SIGHUP."""
        assert self._reload is not None  # noqa: S101 (for the type checker)
        return await self._reload()

    # -- what is seen -------------------------------------------------------------------------

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every connected client."""
        return [] if self._shared is None else list(self._shared.by_client_id)

    def _proxied(self, client_id: str) -> ProxiedClient | None:
        return None if self._shared is None else self._shared.by_client_id.get(client_id)

    def row(self, client_id: str) -> ClientRow | None:
        """Return what a list shows of a client; None where it is not connected."""
        proxied = self._proxied(client_id)
        if proxied is None:
            return None
        client, link = proxied.client, proxied.link
        withheld = client.outbox.n_withheld
        return ClientRow(
            client_id=client_id,
            username=link.username,
            address=proxied.peer.rpartition(":")[0],
            listener=link.listener,
            version=VERSIONS.get(proxied.version, ""),
            is_connected=True,
            connected_seconds=max(0.0, self._clock() - proxied.began_at),
            rtt=link.rtt_latest,
            withheld=withheld,
            withheld_total=client.ledger.withheld_total,
            queued=client.n_waiting - withheld,
            queued_bytes=client.outbox.n_bytes + client.qos0_backlog.n_bytes,
            inflight=client.acks.n_inflight,
            delivered=client.ledger.delivered,
            dropped=sum(client.ledger.dropped.values()),
        )

    def report(self, client_id: str) -> ClientReport | None:
        """Return a client's report, also of one that has gone; None where it is not known."""
        shared, proxied = self._shared, self._proxied(client_id)
        if shared is None:
            return None
        if proxied is not None:
            return report(_subject_of(proxied, shared.threshold_l), self._clock())
        last = shared.last_clients.get(client_id)
        if last is None:
            return None
        return report(subject_of_last(last, shared.threshold_l), self._clock())

    async def metrics(self) -> Sequence[Metric]:
        """Return all figures of the proxy; other tasks run in between."""
        shared, upstreams = self._shared, self._upstreams
        if shared is None or upstreams is None:
            return ()
        totals = ProxyTotals(shared.ended)
        running = list(shared.running)
        for number, proxied in enumerate(running, 1):
            totals.add(proxied)
            if not number % SLICE:
                await asyncio.sleep(0)
        now = self._clock()
        version = importlib.metadata.version("penstock-mqtt")
        counters = metrics_of([({}, shared.counters)])
        return [
            *process_metrics(version, self._started_at, machine_memory_bytes(), now),
            *gauge("draining", "1 while clients are being disconnected.", int(self.is_draining)),
            *gauge("clients_connected", "Clients connected now.", len(shared.by_client_id)),
            *(metric for metric in counters if metric.name in _METRICS),
            *message_metrics(totals, now),
            *shared.outbox_rules.record.metrics(),
            *gauge("upstreams", "Addresses of the broker.", len(upstreams.each)),
            *gauge("upstreams_up", "Those that can be reached.", _n_up(upstreams)),
            *store_metrics(shared.guard, shared.payloads.store),
        ]

    async def problems(self) -> Mapping[str, str]:
        """Return what keeps the proxy from serving: name to the reason."""
        found = {}
        if self.is_draining:
            found["draining"] = "clients are being disconnected, and none are accepted"
        elif self._listeners is None or not self._listeners.addresses:
            found["listeners"] = "none is open"
        upstreams = self._upstreams
        if upstreams is not None and not _n_up(upstreams):
            found["upstream"] = "; ".join(f"{one}: {one.why}" for one in upstreams.each)
        return found

    async def topics(self) -> Sequence[TopicRow]:
        """Return what waits by topic and size class."""
        running = () if self._shared is None else list(self._shared.running)
        return await waiting_topics((one.client.outbox for one in running), self._clock)

    # -- what is done -------------------------------------------------------------------------

    def _transport(self, client_id: str) -> ClientTransport | None:
        proxied = self._proxied(client_id)
        if self._clients is None or proxied is None:
            return None
        running = self._clients.running
        return next((one for one in running if one.proxied is proxied), None)

    def disconnect(self, client_id: str, reason: str) -> bool:
        """Disconnect a client; return whether it was connected."""
        transport = self._transport(client_id)
        if transport is None:
            return False
        told = reason or "no reason given"
        transport.logger.debug("by an operator: client %s: disconnected: %s", client_id, told)
        transport.close(ReasonCode.ADMINISTRATIVE_ACTION)
        return True

    async def ban(
        self, kind: BanKind, value: str, seconds: float, reason: str, by: str = ""
    ) -> int:
        """Let nobody of this address connect for a while, and disconnect who is there.

        Raises:
            PenstockError: it is no ban of an address, which alone a proxy refuses.
        """
        clients = self._clients
        if clients is None or kind != "address":
            raise PenstockError(
                f"ban: kind: read {kind}; allowed: address, as names are for the broker to judge"
            )
        bans = clients.reception.bans
        bans.add(kind, value, seconds, reason, by, self._clock())
        n_disconnected = 0
        for number, transport in enumerate(list(clients.running), 1):
            proxied = transport.proxied
            if proxied is not None and bans.is_of(kind, value, proxied.peer.rpartition(":")[0]):
                transport.close(ReasonCode.ADMINISTRATIVE_ACTION)
                n_disconnected += 1
            if not number % SLICE:
                await asyncio.sleep(0)
        return n_disconnected

    def bans(self) -> Sequence[Ban]:
        """Return all bans that have not ended."""
        return () if self._clients is None else self._clients.reception.bans.all(self._clock())

    def unban(self, kind: BanKind, value: str) -> bool:
        """End a ban; return whether there was one."""
        return self._clients is not None and self._clients.reception.bans.remove(kind, value)

    def end_session(self, client_id: str) -> bool:
        """Refuse: sessions are the broker's."""
        raise PenstockError(f"client {client_id}: its session is the broker's; allowed: disconnect")

    def release_held(self, client_id: str) -> int:
        """Let what the gate holds for a client leave now; return how many."""
        transport = self._transport(client_id)
        if transport is None or transport.proxied is None:
            return 0
        client = transport.proxied.client
        n_released = client.outbox.release_held()
        if n_released:
            told = "by an operator: client %s: %d held messages released"
            transport.logger.debug(told, client_id, n_released)
            client.wants_pump = True
            transport.serve()
        return n_released

    def drop_held(self, client_id: str) -> int:
        """Refuse: the broker counts on what it has sent."""
        raise PenstockError(
            f"client {client_id}: a proxy drops no message; allowed: release what is held"
        )

    def drain(self, seconds: float) -> None:
        """Accept no new clients; those that are there leave when nothing waits, or at the end.

        Raises:
            PenstockError: the proxy starts.
        """
        clients, listeners = self._clients, self._listeners
        if self.is_draining:
            return
        if clients is None or listeners is None:
            raise PenstockError("the proxy starts; allowed: once it listens")
        self.is_draining = True
        listeners.close()
        clients.drain()
        asyncio.get_running_loop().call_later(seconds, clients.disconnect_all)

    async def backup(self, path: str) -> int:
        """Refuse: a proxy keeps nothing."""
        raise PenstockError(f"backup to {path}: a proxy keeps nothing durable; allowed: a broker")

    def proxy(self) -> Mapping[str, Any] | None:
        """Return the state of the proxy: `upstreams`, `clients`, `messages` and `payload_store`.

        Of each address: `address`, `is_up`, `since_seconds` (it is up or down), `why` (it is down,
        or ""), `connections`, `silent` (those of them on which it answers no PINGREQ and says
        nothing else). Of clients: `connected`, `gone`, `refused` by reason. Of messages: where
        those of all clients are, gone ones included, with the names of a client's ledger. Of the
        store: `payloads`, which wait, and its own figures.
        """
        shared, upstreams = self._shared, self._upstreams
        if shared is None or upstreams is None:
            return None
        now = self._clock()
        store = shared.payloads.store
        return {
            "upstreams": [
                {
                    "address": str(one),
                    "is_up": one.is_up,
                    "since_seconds": max(0.0, now - one.since),
                    "why": one.why,
                    "connections": one.n_connections,
                    "silent": one.n_silent,
                }
                for one in upstreams.each
            ],
            "clients": {
                "connected": sum(proxied.is_accepted for proxied in shared.running),
                "gone": shared.n_ended,
                "refused": dict(sorted(shared.counters.connections_refused.items())),
            },
            "messages": _messages(shared),
            "payload_store": {
                "payloads": len(shared.payloads),
                **shared.guard.call(store, store.figures, otherwise={}),
            },
        }


def _n_up(upstreams: Upstreams) -> int:
    """Return how many addresses of the broker can be reached, as far as is known."""
    return sum(one.is_up for one in upstreams.each)


def _messages(shared: ProxyState) -> dict[str, Any]:
    """Return where the messages of all clients are."""
    totals = totals_of(shared)
    ledger = totals.ledger
    return {
        "matched": ledger.matched,
        "delivered": ledger.delivered,
        "inflight": totals.inflight,
        "withheld": totals.withheld,
        "queued": totals.queued,
        "expired": ledger.expired,
        "moved": ledger.moved,
        "dropped": ledger.dropped,
    }


def _subject_of(proxied: ProxiedClient, threshold_l: Callable[[Link], float | None]) -> Subject:
    client, link = proxied.client, proxied.link
    return Subject(
        link.client_id,
        is_connected=True,
        username=link.username,
        listener=link.listener,
        link=link,
        outbox=client.outbox,
        ledger=client.ledger,
        n_inflight=client.acks.n_inflight,
        threshold_l=threshold_l,
        n_apart=client.qos0_backlog.n_messages,
        apart_bytes=client.qos0_backlog.n_bytes,
    )
