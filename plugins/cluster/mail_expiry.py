"""Ends kept sessions that have waited for their clients for too long.

One node does it for all, the first by name. The engine's clock decides. It forgets a session that
has ended once all nodes are told: where this node ends before, another one tells them. It gives
what waited for the session as a member of shared subscriptions to other members before (MQTT 5.0,
4.8.2), whatever has ended it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from struct import error as StructError  # noqa: N812 (it is a class)
from typing import Final

from penstock.broker.plugin_guard import is_logged
from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.frames import Lane
from penstock.plugins.cluster.mail_engine import MailEngine
from penstock.plugins.cluster.mail_entries import read_head
from penstock.plugins.cluster.mail_sessions import KeptSessions
from penstock.plugins.cluster.node_sink import Give, Shared
from penstock.plugins.cluster.shared import awaited
from penstock.plugins.redis.errors import StorageError

ROUND_SECONDS: Final = 4.0
"""All buckets are looked at in this time."""
AGAIN_SECONDS: Final = 0.05
"""The interval at which one is looked at while sessions end there."""


class MailExpiry:
    """Looks at all buckets, again and again.

    Args:
        engine: calls of the engine.
        mail: tells all nodes.
        announcer: knows whether they are told.
        give: takes messages of shared subscriptions.
        is_first: whether this node is the first of all.
        logger: gets faults.

    Attributes:
        n_expired: sessions that have ended, by this node or before it looked.
        n_dropped: messages that had waited for them.
    """

    def __init__(
        self,
        engine: MailEngine,
        mail: KeptSessions,
        announcer: Announcer,
        give: Give,
        is_first: Callable[[], bool],
        logger: Logger,
    ) -> None:
        self.n_expired = 0
        self.n_dropped = 0
        self._engine = engine
        self._mail = mail
        self._announcer = announcer
        self._give = give
        self._is_first = is_first
        self._logger = logger
        self._n_failed = 0
        self._told: dict[tuple[str, str], int] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        buckets = self._engine.engine.buckets
        while True:
            for bucket in buckets:
                await asyncio.sleep(ROUND_SECONDS / len(buckets))
                try:
                    while self._is_first() and await self._look_at(bucket):  # noqa: ASYNC110 (time)
                        await asyncio.sleep(AGAIN_SECONDS)
                except StorageError as error:
                    self._n_failed += 1
                    if is_logged(self._n_failed):
                        self._logger.warning("sessions cannot expire: %s", error)
                except Exception:
                    self._logger.exception("sessions cannot expire")
                if not self._is_first():
                    self._told.clear()  # another node forgets what this one has told

    async def _look_at(self, bucket: str) -> bool:
        """End what is due, and forget what all nodes know of; return whether there was any."""
        ended = await self._engine.expire(bucket)
        known, told = [], []
        for one in ended:
            origin, client_id = one
            number = self._told.get(one)
            if number is None or number > self._announcer.last_number():
                self.n_expired += number is None
                self._mail.gone(client_id, origin)
                self._told[one] = self._announcer.last_number()
                told.append(one)
            elif number <= self._announcer.answered:
                known.append(one)
        if known:
            given = await asyncio.gather(*(self._hand_on(bucket, *one) for one in known))
            self.n_dropped += max(0, await self._engine.forget(bucket, known) - sum(given))
            for one in known:
                del self._told[one]
        return bool(known or told)

    async def _hand_on(self, bucket: str, origin: str, client_id: str) -> int:
        """Give messages to other members; return how many, once they are stored for those."""
        waiting: list[asyncio.Future[None]] = []
        for _, head, packet in await self._engine.left_by(bucket, origin, client_id):
            try:
                version, _, share = read_head(head)
            except (ValueError, StructError):
                continue  # it goes with the session, as a message that nobody else can have
            if share:
                lane, qos = Lane(version, share), packet[0] >> 1 & 3
                self._give(Shared(lane, qos, 1, packet, awaited(waiting)))
        await asyncio.gather(*waiting)
        return len(waiting)
