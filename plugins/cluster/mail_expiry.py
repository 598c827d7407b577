"""Ends kept sessions that have waited for their clients for too long.

One node does it for all, the first by name. The engine's clock decides. It forgets a session that
has ended once all nodes are told: where this node ends before, another one tells them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from typing import Final

from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.mail_engine import MailEngine
from penstock.plugins.cluster.mail_sessions import KeptSessions
from penstock.plugins.redis.errors import StorageError

ROUND_SECONDS: Final = 4.0
"""All buckets are looked at in this time."""
_STEPS: Final = 32
"""Parts of a round."""


class MailExpiry:
    """Looks at all buckets, again and again.

    Args:
        engine: calls of the engine.
        mail: tells all nodes.
        announcer: knows whether they are told.
        is_first: whether this node is the first of all.
        logger: gets faults.

    Attributes:
        n_expired: sessions that have ended, by this node or before it looked.
    """

    def __init__(
        self,
        engine: MailEngine,
        mail: KeptSessions,
        announcer: Announcer,
        is_first: Callable[[], bool],
        logger: Logger,
    ) -> None:
        self.n_expired = 0
        self._engine = engine
        self._mail = mail
        self._announcer = announcer
        self._is_first = is_first
        self._logger = logger
        self._told: dict[tuple[str, str], int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="penstock-cluster expiry")

    async def _run(self) -> None:
        buckets = self._engine.engine.buckets
        n = -(-len(buckets) // _STEPS)
        while True:
            for at in range(0, len(buckets), n):
                await asyncio.sleep(ROUND_SECONDS * n / len(buckets))
                if not self._is_first():
                    self._told.clear()  # another node forgets what this one has told
                else:
                    try:
                        await asyncio.gather(*map(self._look_at, buckets[at : at + n]))
                    except StorageError as error:
                        self._logger.warning("sessions cannot expire: %s", error)

    async def _look_at(self, bucket: str) -> None:
        """End what is due; forget what all nodes know of."""
        ended = await self._engine.expire(bucket)
        known = []
        for one in ended:
            origin, client_id = one
            number = self._told.get(one)
            if number is None or number > self._announcer.last_number():
                self.n_expired += number is None
                self._mail.gone(client_id, origin)
                self._told[one] = self._announcer.last_number()
            elif number <= self._announcer.answered:
                known.append(one)
        if known:
            await self._engine.forget(bucket, known)
            for one in known:
                del self._told[one]

    async def close(self) -> None:
        """Look no more; may be called again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
