"""The log's lines about clients: connections, disconnections, and dropped messages.

Connections and disconnections are debug lines. Drops are logged when a client connects, disconnects
or its session ends: one line each time, however many messages were dropped. `$SYS` has the sums at
any time.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from penstock.broker.events import Callbacks, ClientConnected, ClientDisconnected, SessionEnded
from penstock.broker.extensions import LOCAL_CLIENT_PREFIX
from penstock.broker.mqtt.reason_codes import describe_reason_code
from penstock.broker.outbox.message_counts import BACKLOG_REASONS

if TYPE_CHECKING:
    from penstock.broker.sessions.session import Session


class ClientLog:
    """Logs what happens to clients.

    Invariant: it remembers existing sessions only.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._look()
        self._told: dict[str, Counter[str]] = {}

    def _look(self) -> None:
        """See whether debug lines are written: it is not asked for each client."""
        self._root_level = logging.root.level
        self._is_debug = self._logger.isEnabledFor(logging.DEBUG)

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks that write the log."""
        return Callbacks(
            client_connected=(self._connected,),
            client_disconnected=(self._disconnected,),
            session_ended=(self._ended,),
        )

    def _connected(self, event: ClientConnected) -> None:
        if logging.root.level != self._root_level:
            self._look()
        session: Any = event.session  # a `Session`
        client = session.client
        if client is not None and self._is_debug:
            self._logger.debug(
                "client %s: connected, user %r, protocol level %d, from %s:%d on listener %s",
                session.client_id,
                session.username,
                client.version,
                client.remote_address,
                client.remote_port,
                client.listener,
                extra={"address": f"{client.remote_address}:{client.remote_port}"},
            )
        if not session.is_unused and session.ledger.dropped:
            self._tell_drops(session, "while it was away")

    def _disconnected(self, event: ClientDisconnected) -> None:
        if logging.root.level != self._root_level:
            self._look()
        session: Any = event.session  # a `Session`
        if self._is_debug:
            code = event.reason_code
            why = (
                "connection lost" if code is None else describe_reason_code(code) if code else None
            )
            fields = {"address": event.peer or None, "reason": why}
            self._logger.debug("client %s: disconnected", session.client_id, extra=fields)
        if not session.is_unused and session.ledger.dropped:
            self._tell_drops(session, "while it was connected")

    def _ended(self, event: SessionEnded) -> None:
        if logging.root.level != self._root_level:
            self._look()
        session: Any = event.session  # a `Session`
        if self._is_debug:
            self._logger.debug("client %s: session ended", session.client_id)
        if not session.is_unused and session.ledger.dropped:
            self._tell_drops(session, "with its session")
            self._told.pop(session.client_id, None)

    def _tell_drops(self, session: Session, when: str) -> None:
        """Log what was dropped since the last such line, if anything was."""
        dropped = session.ledger.dropped
        news = Counter(dropped) - self._told.get(session.client_id, Counter())
        if news:
            self._told[session.client_id] = Counter(dropped)
            is_of_uplink = session.client_id.startswith(LOCAL_CLIENT_PREFIX)
            is_lost = is_of_uplink and not BACKLOG_REASONS.isdisjoint(news)
            self._logger.log(
                logging.WARNING if is_lost else logging.INFO,
                "client %s: messages for it dropped %s, %d: %s",
                session.client_id,
                when,
                news.total(),
                ", ".join(f"{reason} {n_messages}" for reason, n_messages in news.items()),
            )
