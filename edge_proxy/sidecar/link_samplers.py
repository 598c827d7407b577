"""Calls all samplers of one client's path; an exception in one of them affects no delivery."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.broker.plugin_guard import Guard
from penstock.broker.sending.core_context import times_packets


class LinkSamplers:
    """Passes the events of one link to each sampler, and calls each once in its period.

    Attributes:
        next_at: monotonic seconds at which `sample` is due; None for never.
    """

    __slots__ = ("_due_at", "_guard", "_link", "_samplers", "_spares", "_timing", "next_at")

    def __init__(self, samplers: Sequence[LinkSampler], link: Link, guard: Guard) -> None:
        self._samplers = samplers
        self._timing = tuple(sampler for sampler in samplers if times_packets(sampler))
        self._spares = len(self._timing) == 1 and self._timing[0].is_sparing
        self._link = link
        self._guard = guard
        self._due_at: dict[LinkSampler, float] = {}
        self.next_at: float | None = None

    def connected(self, now: float) -> None:
        """Sample the client from now on, as it was accepted."""
        for sampler in self._samplers:
            self._guard.call(sampler, sampler.connected, self._link, now, otherwise=None)
            if sampler.period is not None:
                self._due_at[sampler] = now + sampler.period
        self.next_at = min(self._due_at.values(), default=None)

    def sample(self, fileno: int, now: float) -> bool:
        """Call the samplers whose period has passed; return whether there is a new estimate."""
        is_news = False
        for sampler, at in self._due_at.items():
            if now < at or sampler.period is None:
                continue
            self._due_at[sampler] = max(now, at + sampler.period)
            if self._guard.call(sampler, sampler.sample, self._link, fileno, now, otherwise=False):
                is_news = True
        self.next_at = min(self._due_at.values(), default=None)
        return is_news

    def sent(self, packet_id: int, payload_bytes: int, now: float) -> None:
        """Note that a PUBLISH of QoS 1 or 2 was handed to the client's connection."""
        link = self._link
        if self._timing and not (self._spares and now < link.quiet_until):
            self._guard.tell_each(
                self._timing, lambda s: s.sent(link, packet_id, payload_bytes, now)
            )

    def sent_run(self, packet_ids: bytes | bytearray, payload_bytes: int, now: float) -> None:
        """Note several of them, of one size, by their packet ids of two bytes each."""
        if self._timing and not (self._spares and now < self._link.quiet_until):
            for high, low in zip(packet_ids[::2], packet_ids[1::2], strict=True):
                self.sent(high << 8 | low, payload_bytes, now)
                if self._spares and now < self._link.quiet_until:
                    break

    @property
    def wants_acknowledgements(self) -> bool:
        """Whether one of them waits for an acknowledgement."""
        waits = not self._spares or self._link.outstanding_since is not None
        return bool(self._timing) and waits

    def acknowledged(self, packet_id: int, now: float) -> bool:
        """Note a PUBACK or PUBREC; return whether there is a new estimate."""
        is_news = False
        if not self.wants_acknowledgements:
            return False
        for sampler in self._timing:
            if self._guard.call(
                sampler, sampler.acknowledged, self._link, packet_id, now, otherwise=False
            ):
                is_news = True
        return is_news

    def forget(self) -> None:
        """Note that the client has left."""
        self._due_at.clear()
        self.next_at = None
        self._guard.tell_each(self._samplers, lambda sampler: sampler.forget(self._link))
