"""Sessions that outlive their connection, and what waits for them: the parts, put together.

Each such session has a mailbox in the engine, where every node puts what its subscriptions match
(`mail_sink`, `mail_routes`). The node that has its client takes messages out of it
(`mail_sessions`). So nothing moves when the client connects elsewhere, or when its node dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from logging import Logger
from typing import Final

from penstock.broker.extensions import LocalClients, SinkRoutes
from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.cluster.mail_engine import MailEngine, Posted
from penstock.plugins.cluster.mail_expiry import MailExpiry
from penstock.plugins.cluster.mail_routes import MARK, Mailbox, MailRoutes
from penstock.plugins.cluster.mail_sessions import KeptSessions
from penstock.plugins.cluster.mail_sink import MailSink
from penstock.plugins.cluster.node_sink import Shared
from penstock.plugins.cluster.notes import Notes
from penstock.plugins.cluster.routes import is_routed
from penstock.plugins.cluster.shared import AWAY, Groups

MAIL: Final = "mail"
"""A note: something waits for clients; their Client Identifiers."""


class _Member:
    """A mailbox as the member of a shared subscription."""

    def __init__(self, sink: MailSink, box: Mailbox) -> None:
        self._sink = sink
        self._box = box

    def lacks(self) -> str:
        """Return why there is no room; "" where there is some."""
        return self._sink.lacks() or (AWAY if self._box.is_away else "")

    def accept_shared(self, shared: Shared) -> None:
        """Take messages of the shared subscription."""
        self._sink.accept_shared(self._box, shared)


class MailRoom:
    """Has the mailboxes of a cluster, as one node sees them.

    Args:
        engine: of the node.
        announcer: tells other nodes of subscriptions.
        notes: tells them of messages.
        sinks: the broker's.
        clients: the broker's sessions.
        is_first: whether this node is the first of all.
        groups: the shared subscriptions.
        clock: returns monotonic seconds.
        logger: gets faults.

    Attributes:
        sink: the route target of all mailboxes.
        routes: whose mailboxes get what.
        sessions: those that this node has.
        expiry: ends those that wait for too long.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        announcer: Announcer,
        notes: Notes,
        sinks: SinkRoutes,
        clients: LocalClients,
        is_first: Callable[[], bool],
        groups: Groups,
        clock: Callable[[], float],
        logger: Logger,
    ) -> None:
        calls = MailEngine(engine, lambda: clients.queue_limits[:3])
        self.sink = MailSink(
            calls, self._tell, groups.give_back, clock, lambda: clients.queue_limits[3]
        )
        self.routes = MailRoutes(engine.bucket, self._filter_changed, self._share_changed)
        self.sink.routes = self.routes
        self.sessions = KeptSessions(calls, self.routes, announcer, clients, clock, logger)
        self.sink.prefixes = self.sessions.prefixes
        self.expiry = MailExpiry(
            calls, self.sessions, announcer, groups.give_back, is_first, logger
        )
        self._engine = engine
        self._sinks = sinks
        self._notes = notes
        self._groups = groups
        self._untold: dict[str, list[str]] = {}
        notes.heard[MAIL] = self._heard

    async def take_all(self, found: Iterable[tuple[str, str]]) -> None:
        """Take all subscriptions as the engine has them; see `MailRoutes.replaced`."""
        for _ in self.routes.replaced(found):
            await asyncio.sleep(0)

    def _filter_changed(self, topic_filter: str, is_there: bool) -> None:  # noqa: FBT001
        if not is_routed(topic_filter):
            return
        if is_there:
            self._sinks.add_filter(self.sink, topic_filter)
        else:
            self._sinks.remove_filter(self.sink, topic_filter)

    def _share_changed(self, share: str, box: Mailbox, is_there: bool) -> None:  # noqa: FBT001
        name = f"{MARK}{box.client_id}{MARK}{share}"
        if is_there:
            self._groups.mailboxes[name] = _Member(self.sink, box)
        self._groups.change(share, name, int(is_there))
        if not is_there:
            del self._groups.mailboxes[name]

    def _tell(self, posted: Posted) -> None:
        """Tell the owner of a mailbox that something has come."""
        assert posted.owner is not None  # noqa: S101 (who calls this looks)
        node = posted.owner.node
        if node == self._engine.node:
            self.sessions.told(posted.client_id)
            return
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._untold.setdefault(node, []).append(posted.client_id)

    def _tell_all(self) -> None:
        untold, self._untold = self._untold, {}
        for node, clients in untold.items():
            self._notes.tell(node, MAIL, clients)

    def _heard(self, _node: str, clients: Iterable[str]) -> None:
        for client_id in clients:
            self.sessions.told(client_id)

    async def close(self) -> None:
        """Fetch nothing more; wait until what was accepted is in the engine."""
        await self.sessions.close()
        await self.sink.finish()
        self.sink.close()
