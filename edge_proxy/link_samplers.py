"""All samplers of one client's path; one that raises harms no delivery."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link


class LinkSamplers:
    """Tells each sampler what happens on one link, and asks it when its period has passed."""

    __slots__ = ("_link", "_next_at", "_on_error", "_samplers")

    def __init__(
        self,
        samplers: Sequence[LinkSampler],
        link: Link,
        on_error: Callable[[LinkSampler, Exception], None],
    ) -> None:
        """Begin with a link that is not connected.

        Args:
            samplers: of the proxy.
            link: to this client.
            on_error: told of what a sampler raised.
        """
        self._samplers = samplers
        self._link = link
        self._on_error = on_error
        self._next_at: dict[LinkSampler, float] = {}

    def connected(self, now: float) -> None:
        """The client was accepted: sample it from now on."""
        for sampler in self._samplers:
            try:
                sampler.connected(self._link, now)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self._on_error(sampler, error)
            if sampler.period is not None:
                self._next_at[sampler] = now + sampler.period

    def next_deadline(self) -> float | None:
        """Return when `sample` is due, in monotonic seconds, or None for never."""
        return min(self._next_at.values(), default=None)

    def sample(self, fileno: int, now: float) -> bool:
        """Ask the samplers whose period has passed.

        Args:
            fileno: file descriptor of the client's socket, or -1.
            now: monotonic seconds.

        Returns:
            Whether the link has a new estimate.
        """
        is_news = False
        for sampler, at in self._next_at.items():
            if now < at or sampler.period is None:
                continue
            self._next_at[sampler] = max(now, at + sampler.period)
            try:
                is_news |= sampler.sample(self._link, fileno, now)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self._on_error(sampler, error)
        return is_news

    def sent(self, packet_id: int, payload_bytes: int, now: float) -> None:
        """A QoS 1 or 2 PUBLISH was handed to the client's connection."""
        for sampler in self._samplers:
            try:
                sampler.sent(self._link, packet_id, payload_bytes, now)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self._on_error(sampler, error)

    def acknowledged(self, packet_id: int, now: float) -> bool:
        """Its PUBACK or PUBREC has come; return whether the link has a new estimate."""
        is_news = False
        for sampler in self._samplers:
            try:
                is_news |= sampler.acknowledged(self._link, packet_id, now)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self._on_error(sampler, error)
        return is_news

    def forget(self) -> None:
        """The client has gone."""
        self._next_at.clear()
        for sampler in self._samplers:
            try:
                sampler.forget(self._link)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop delivery)
                self._on_error(sampler, error)
