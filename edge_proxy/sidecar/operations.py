"""The `Operations` of a proxy, for the plugin `console`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.client_report import ClientReport
from penstock.broker.counters import Metric
from penstock.broker.reports.client_reports import Subject, report, subject_of_last

if TYPE_CHECKING:
    from penstock.broker.link import Link
    from penstock.broker.operations_contract import Reloaded
    from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient
    from penstock.edge_proxy.sidecar.proxy_state import ProxyState
    from penstock.edge_proxy.upstream import Upstreams


class ProxyOperations:
    """Reports on a proxy's clients that their broker has accepted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shared: ProxyState | None = None
        self._upstreams: Upstreams | None = None
        self._reload: Callable[[], Awaitable[Reloaded]] | None = None

    def attach(
        self,
        shared: ProxyState,
        upstreams: Upstreams | None = None,
        reload: Callable[[], Awaitable[Reloaded]] | None = None,
    ) -> None:
        """Report on this proxy's clients and on the addresses of its broker from now on.

        Args:
            shared: the state of the proxy.
            upstreams: the addresses of the broker.
            reload: reads all files of the program again.
        """
        self._shared = shared
        self._upstreams = upstreams
        self._reload = reload

    async def reload(self) -> Reloaded:
        """Read all files again, as at SIGHUP."""
        assert self._reload is not None  # noqa: S101 (for the type checker)
        return await self._reload()

    def client_ids(self) -> list[str]:
        """Return the Client Identifier of every connected client."""
        return [] if self._shared is None else list(self._shared.by_client_id)

    def report(self, client_id: str) -> ClientReport | None:
        """Return a client's report, also of one that has gone; None where it is not known."""
        shared = self._shared
        if shared is None:
            return None
        proxied = shared.by_client_id.get(client_id)
        if proxied is not None:
            return report(_subject_of(proxied, shared.threshold_l), self._clock())
        last = shared.last_clients.get(client_id)
        if last is None:
            return None
        return report(subject_of_last(last, shared.threshold_l), self._clock())

    def withholding(self) -> Sequence[Metric]:
        """Return the metrics of large messages, over all clients."""
        return () if self._shared is None else self._shared.outbox_rules.record.metrics()

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


def _messages(shared: ProxyState) -> dict[str, Any]:
    """Return where the messages of all clients are."""
    ledger = shared.ledger()
    clients = [proxied.client for proxied in shared.running]
    inflight = sum(client.acks.n_inflight for client in clients)
    withheld = sum(client.outbox.n_withheld for client in clients)
    return {
        "matched": ledger.matched,
        "delivered": ledger.delivered,
        "inflight": inflight,
        "withheld": withheld,
        "queued": sum(client.n_waiting for client in clients) - withheld,
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
