"""Calls the link samplers for every connected subscriber, spread over their period."""

from __future__ import annotations

from broker.core import Core
from broker.extensions import LinkSampler, ProbingSampler
from broker.probes import Probes
from broker.session import Session

SLICE = 16
"""Sessions sampled in one go: 0.15 ms or so, in which nothing else is served."""


class Sampling:
    """Samples all connected subscribers once in each period of one sampler."""

    def __init__(self, core: Core, sampler: LinkSampler, period: float) -> None:
        """Make it; `start` sets it going.

        Args:
            core: whose subscribers.
            sampler: to be called.
            period: seconds from one sample of a subscriber to its next.
        """
        self._core = core
        self._sampler = sampler
        self._period = period
        self._probes: Probes | None = None
        if isinstance(sampler, ProbingSampler) and sampler.probe_topic is not None:
            self._probes = Probes(core, sampler, sampler.probe_topic)
        self._round: list[Session] = []
        self._round_began = 0.0

    def start(self, now: float) -> None:
        """Begin the first round one period from now."""
        self._core.timers.at(now + self._period, self._begin_round)

    def _begin_round(self, now: float) -> None:
        # Nothing is decided about, and nothing kept of, the path to who only publishes.
        self._round = [
            session
            for session in self._core.sessions
            if session.connection is not None
            and (session.subscriptions or session.outbox.n_messages)
        ]
        self._round_began = now
        self._sample_slice(now)

    def _sample_slice(self, now: float) -> None:
        n_sessions = len(self._round)
        n_slices = n_sessions // SLICE + 1
        for session in self._round[:SLICE]:
            connection = session.connection
            if connection is None:
                continue
            link = session.link
            try:
                has_news = self._sampler.sample(link, connection.driver.fileno, now)
            except Exception as error:  # noqa: BLE001 (a plugin's fault must not stop the rest)
                self._core.on_extension_error(type(self._sampler).__name__, error)
                continue
            if has_news:
                session.link_changed()
            if self._probes is not None:
                self._probes.send(session, connection, now)
        del self._round[:SLICE]
        if self._round:
            rest = self._round_began + self._period - now
            self._core.timers.at(now + max(0.0, rest) / n_slices, self._sample_slice)
        else:
            if self._probes is not None and n_sessions:
                self._probes.end_round()
            at = max(now, self._round_began + self._period)
            self._core.timers.at(at, self._begin_round)
