"""State that all clients of one proxy share, and the ledgers of those that have left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.counters import Counters, Histogram, Metric
from penstock.broker.extensions import DeliveryGate, LinkSampler, PayloadStore
from penstock.broker.link import Link
from penstock.broker.outbox.last_clients import LastClients
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.payload import PIECE_BYTES, Payload, PayloadReader
from penstock.broker.plugin_guard import Guard
from penstock.edge_proxy.sidecar.content_index import ContentIndex
from penstock.edge_proxy.sidecar.publish_cache import TopicCache

if TYPE_CHECKING:
    from penstock.edge_proxy.sidecar.config import ProxyLimits
    from penstock.edge_proxy.sidecar.proxied_client import ProxiedClient

_Read = TypeVar("_Read")


def describe_large(metrics: Iterable[Metric]) -> str:
    """Return counters and histograms on one line, without what is 0."""
    words = []
    for name, _type, _help, samples, _across in metrics:
        for labels, value in samples:
            named = f"{name.removeprefix('withholding_')} {' '.join(labels.values())}"
            if not isinstance(value, Histogram):
                words.append(f"{named}: {value}")
            elif n_values := value.buckets()["+Inf"]:
                words.append(f"{named}: {n_values}, mean {value.total / n_values:.3g}")
    return "; ".join(words)


def describe(ledger: Ledger) -> str:
    """Return the ledger of clients that have left on one line."""
    by_reason = ", ".join(f"{reason} {n}" for reason, n in sorted(ledger.dropped.items()))
    return (
        f"messages matched {ledger.matched}, delivered {ledger.delivered}, "
        f"expired {ledger.expired}, dropped {sum(ledger.dropped.values())}"
        f"{f' ({by_reason})' if by_reason else ''}, left to the broker {ledger.moved}; "
        f"withheld {ledger.withheld_total}, released {ledger.released_total}"
    )


class ProxyState:
    """What all clients of one proxy share.

    Attributes:
        counters: counts of connections that were refused.
        ended: sum of the ledgers of clients that have left. What they had not acknowledged counts
            as `moved`: the broker sends it again to a persistent session.
        running: clients that have sent a CONNECT to the broker, until they end.
        by_client_id: the clients that the broker has accepted, by Client Identifier.
        last_clients: the clients that have left last.
        n_ended: how many clients have left, without those that the broker has refused.
        extension_errors: exceptions raised by plugins, by the name of the plugin.
        guard: makes each call into a plugin.
        user_properties_ignored: CONNECT packets with a user property for the gate whose value it
            could not use.
    """

    def __init__(
        self,
        limits: ProxyLimits,
        *,
        logger: logging.Logger,
        gate: DeliveryGate | None = None,
        samplers: Sequence[LinkSampler] = (),
        payload_store: PayloadStore | None = None,
    ) -> None:
        self.limits = limits
        self.logger = logger
        self.counters = Counters()
        self.extension_errors: dict[str, int] = {}
        self.guard = Guard(logger, self.extension_errors)
        self.gate = DeliveryGate() if gate is None else gate
        # The limits are enforced by not reading: messages that were read must not be dropped.
        self.outbox_rules = OutboxLimits(self.gate, self.guard, logger=logger)
        self.samplers = tuple(samplers)
        self.topics = TopicCache(
            partial(self.guard.call, self.gate, self.gate.threshold_s, otherwise=None)
        )
        self.payloads = ContentIndex(payload_store)
        self.ended = Ledger()
        self.running: set[ProxiedClient] = set()
        self.by_client_id: dict[str, ProxiedClient] = {}
        self.last_clients = LastClients()
        self.n_ended = 0
        self.user_properties_ignored = 0

    def gate_changed(self) -> None:
        """Ask anew which messages are large, and for the name of the gate's policy."""
        self.outbox_rules.gate_changed()
        self.topics.known.clear()

    def threshold_l(self, link: Link) -> float | None:
        """Return the RTT above which the gate takes a path for congested; None if it has none."""
        return self.guard.call(self.gate, self.gate.threshold_l, link, otherwise=None)

    def keep(self, data: bytes) -> Payload | None:
        """Store a payload and return its handle; None where its store has no room for it."""
        payloads = self.payloads
        return self.guard.call(payloads.store, payloads.keep, data, otherwise=None)

    def read(self, read: Callable[[], _Read]) -> _Read | None:
        """Return what a call reads of a payload; None where the store cannot read it back."""
        return self.guard.call(self.payloads.store, read, otherwise=None)

    def begin_to_read(self, payload: Payload) -> bytes | PayloadReader | None:
        """Return a payload, or a reader of its pieces; None where it cannot be read back."""
        return self.read(partial(_begin_to_read, payload))

    def introduce(self, link: Link, user_properties: Sequence[tuple[str, str]]) -> None:
        """Pass the user properties of a client's CONNECT to the gate."""
        gate = self.gate
        ignored = self.guard.call(gate, gate.connected, link, user_properties, otherwise="")
        if ignored:
            self.user_properties_ignored += 1
            self.logger.info("client %s: CONNECT: %s; ignored", link.client_id, ignored)


def _begin_to_read(payload: Payload) -> bytes | PayloadReader:
    """Return a payload, or a reader of its pieces.

    A payload in memory is read in pieces, too: the reader refers to what the index shares, so that
    equal payloads are found until the last client has the last piece.

    Raises:
        OSError: its store cannot read it back.
    """
    if isinstance(payload, bytes):
        return payload
    return payload.read() if len(payload) <= PIECE_BYTES else PayloadReader(payload)
