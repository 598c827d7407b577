"""Calls the link samplers for every connected subscriber, spread over each sampler's period."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.extensions import LinkSampler
from penstock.broker.reports.periodic_work import PeriodicWork
from penstock.broker.sessions.broker_state import Core
from penstock.broker.sessions.probes import Probes
from penstock.broker.sessions.session import Session

if TYPE_CHECKING:
    from penstock.broker.sessions.client import Client

SLICE: Final = 32
"""So many sessions are sampled in one slice, some 0.2 ms: as long as a turn of the line
(`penstock.broker.network.loop_scheduler.TURNS_SECONDS`). Waking up for fewer sessions costs as much
again."""

MOST_SEEN: Final = 256
"""So many sessions are visited in one slice where most are not to be sampled, some 0.02 ms."""


class Sampling:
    """Samples all connected subscribers once in each period of one sampler."""

    def __init__(self, core: Core, sampler: LinkSampler, period: float) -> None:
        """Prepare the sampling; `start` starts it."""
        self._core = core
        self._sampler = sampler
        self._period = period
        self._probes: Probes | None = None
        if sampler.probe_topic is not None:
            self._probes = Probes(core, sampler, sampler.probe_topic)
        failed = partial(core.guard.failed, sampler)
        self._work = PeriodicWork(core.timers, self._sample_all, failed)

    def start(self, now: float) -> None:
        """Begin the first round one period from now."""
        self._work.start(now + self._period, self._period)

    def _sample_all(self, now: float) -> Generator[float, float, None]:
        """Sample every subscriber once, as work for `PeriodicWork`."""
        if self._sampler.period is not None:  # it may have changed
            self._work.period = self._period = self._sampler.period
        end = now + self._period
        waiting = list(self._core.sessions)
        waiting.reverse()
        while True:
            n_slices = len(waiting) // SLICE + 1
            self._sample_slice(waiting, now)
            if not waiting:
                break
            now = yield now + max(0.0, end - now) / n_slices
        if self._probes is not None:
            self._probes.end_round()

    def _sample_slice(self, waiting: list[Session], now: float) -> None:
        """Sample some sessions from the end of a list, and remove them from it."""
        n_sampled = 0
        stop = max(0, len(waiting) - MOST_SEEN)
        while len(waiting) > stop and n_sampled < SLICE:
            session = waiting.pop()
            client = session.client
            # The path to a client that only publishes needs no samples.
            if session.is_unused:
                continue
            if client is not None and (session.subscriptions or session.outbox.n_messages):
                n_sampled += 1
                self._sample(session, client, now)

    def _sample(self, session: Session, client: Client, now: float) -> None:
        try:
            has_news = self._sampler.sample(session.link, client.outgoing.served.fileno, now)
        except Exception as error:  # noqa: BLE001 (a plugin's fault is not its caller's)
            self._core.guard.failed(self._sampler, error)
            return
        if has_news:
            session.link_changed()
        if self._probes is not None:
            self._probes.send(session, client, now)
