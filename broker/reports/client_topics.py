"""Reports of single clients under `$SYS/broker/penstock/clients/ID/`, on request.

Each client with a session has four topics, each with a part of its report as JSON: ``link``,
``withholding``, ``ledger``, ``subscriptions`` (see `penstock.broker.client_report`). The figures of
one moment belong together, such as a ledger that balances, so they are one document and not a topic
each; a client with 40 topics would also cost 40 messages.

Theory of operation. There may be 10,000 clients, most of which no subscriber asks about, and many
tools subscribe to ``$SYS/#``. So a client's documents are published only where a topic filter names
the level ``clients`` and below it that client, or ``+`` or ``#`` for all. They then go to every
matching subscription. The documents of one round are spread over the interval, a few in each turn.
They are not retained: a SUBSCRIBE that names a client gets its documents at once, as if they were,
and every subscriber gets them once in each interval. Their delivery plans are not cached either.

A Client Identifier may have characters that a topic level cannot. ``/``, ``+`` and ``#`` are
written as ``%2F``, ``%2B`` and ``%23``, and so ``%`` as ``%25``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any, Final
from urllib.parse import unquote

from penstock.broker.client_report import as_json
from penstock.broker.message import Message
from penstock.broker.mqtt.enums import MAX_STRING_BYTES
from penstock.broker.plugin_guard import note_fault
from penstock.broker.reports.client_reports import (
    Subject,
    ledger_figures,
    link_figures,
    subject_of,
    subscription_figures,
    withholding_figures,
)
from penstock.broker.reports.periodic_work import PeriodicWork
from penstock.broker.sessions.broker_state import Core

ROOT: Final = "$SYS/broker/penstock/clients"

SLICE: Final = 8
"""So many clients are published in one slice, 0.5 ms with all of their documents."""

DOCUMENTS: Final[dict[str, Callable[[Subject, float], Any]]] = {
    "link": link_figures,
    "withholding": withholding_figures,
    "ledger": ledger_figures,
    "subscriptions": subscription_figures,
}
"""The function that makes a document, by the last level of its topic."""

_ESCAPES: Final = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"})


def topic_level(client_id: str) -> str:
    """Return the topic level that stands for a client."""
    return client_id.translate(_ESCAPES)


class ClientTopics:
    """Publishes the documents of those clients that a topic filter names."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._interval = 0.0
        self._asked: dict[str, None] = {}
        self._work = PeriodicWork(core.timers, self._publish_asked, self._failed)

    def start(self, now: float, interval: float) -> None:
        """Start to publish."""
        self._interval = interval
        self._core.on_sys_subscribed = self._subscribed
        self._work.start(now + interval, interval)

    def stop(self) -> None:
        """Publish no more."""
        self._core.on_sys_subscribed = None
        self._work.stop()

    def _subscribed(self, topic_filter: str) -> None:
        """Publish a client's documents soon if a SUBSCRIBE named it."""
        if not topic_filter.startswith(f"{ROOT}/"):
            return
        level = topic_filter.removeprefix(f"{ROOT}/").partition("/")[0]
        if level in ("+", "#"):
            return  # the next round publishes all
        client_id = unquote(level)
        if self._core.sessions.get(client_id) is None:
            return  # else made-up names, packet after packet, would fill the memory
        if not self._asked:
            # Not at once: SUBACK is sent first, and a packet may name thousands.
            self._core.timers.at(0.0, self._answer)
        self._asked[client_id] = None

    def _answer(self, now: float) -> None:
        client_ids = list(self._asked)[:SLICE]
        for client_id in client_ids:
            del self._asked[client_id]
        if self._asked:
            self._core.timers.at(now, self._answer)
        self._publish_all(client_ids, now)

    def _publish_asked(self, now: float) -> Generator[float, float, None]:
        """Publish the documents of every client that a filter names, as work for `PeriodicWork`."""
        end = now + self._interval
        levels = self._core.tree.levels_below(ROOT)
        if "+" in levels or "#" in levels:
            client_ids = self._core.sessions.client_ids()
        else:
            client_ids = [unquote(level) for level in levels]
        while True:
            n_slices = len(client_ids) // SLICE + 1
            self._publish_all(client_ids[-SLICE:], now)
            del client_ids[-SLICE:]
            if not client_ids:
                return
            now = yield now + max(0.0, end - now) / n_slices

    def _publish_all(self, client_ids: list[str], now: float) -> None:
        for client_id in client_ids:
            try:
                self._publish(client_id, now)
            except Exception as error:  # noqa: BLE001 (one client's must not stop the others')
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        note_fault(self._core.logger, self._core.counters.faults, "$SYS of clients", error)

    def _publish(self, client_id: str, now: float) -> None:
        """Publish those documents of a client that have a subscriber."""
        core = self._core
        session = core.sessions.get(client_id)
        if session is None:
            return
        root = f"{ROOT}/{topic_level(client_id)}/"
        subject: Subject | None = None
        for name, figures in DOCUMENTS.items():
            topic = root + name
            topic_bytes = topic.encode()
            if len(topic_bytes) > MAX_STRING_BYTES:
                return
            plan = core.tree.fresh_plan(topic, topic_bytes)
            if plan.targets or plan.shares or plan.split is not None:
                subject = subject or subject_of(session)
                text = json.dumps(as_json(figures(subject, now)))
                message = Message(topic, text.encode(), arrived_at=now, topic_bytes=topic_bytes)
                core.router.give(message, plan, now)
