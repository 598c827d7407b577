"""What a node that has died cannot do any more: another one, which has its duties, does it.

Messages of shared subscriptions in its inbox go to other members; some may have been delivered
before. What was for its own subscribers is for nobody: their sessions have ended. The wills of its
clients are published; one that is delayed is not if its client is back by then [MQTT-3.1.3-9].
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.counters import count
from penstock.broker.extensions import LocalClients
from penstock.plugins.cluster import node_wills
from penstock.plugins.cluster.engine import Absence, ClusterEngine
from penstock.plugins.cluster.forwarder import Forwarder
from penstock.plugins.cluster.frames import LANE_5, FrameError, read_frames
from penstock.plugins.cluster.node_sink import Shared
from penstock.plugins.cluster.shared import Groups, awaited
from penstock.plugins.redis.calls import heed
from penstock.plugins.redis.errors import StorageError

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 5.0
"""The interval at which the session of a delayed will is looked at."""


class Inheritance:
    """Does for dead nodes what they cannot do any more.

    Args:
        engine: of this node.
        groups: the shared subscriptions.
        clients: connects local clients.

    Attributes:
        n_wills: wills that were published.
        dropped: messages that dead nodes had in their inboxes, and refused wills, by reason.
    """

    def __init__(self, engine: ClusterEngine, groups: Groups, clients: LocalClients) -> None:
        self.n_wills = 0
        self.dropped: dict[str, int] = {}
        self._engine = engine
        self._groups = groups
        self._forwarder = Forwarder(
            clients, "wills", LANE_5, groups.give_back, self.dropped, is_forwarded=False
        )

    async def take(self, node: str, epoch: int) -> None:
        """Do what a dead node has left; it is begun anew where this node dies before it is done.

        Raises:
            StorageError: the engine cannot be asked. Nothing is done then.
        """
        waiting: list[asyncio.Future[None]] = []
        entries = [data async for _, data in self._engine.inbox_of(node, epoch)]
        wills: list[tuple[str, bytes, float, Absence | None]] = []
        for client, will in (await self._engine.wills_of(node, epoch)).items():
            client_id = client.decode()
            delay, origin, packet = node_wills.read(will)
            absence = await self._engine.absence(client_id) if delay else None
            if absence is not None and absence.origin != origin:
                absence = None  # the session has ended, maybe as the client has begun another one
            wills.append((client_id, packet, delay, absence))
        for data in entries:
            try:
                frames = list(read_frames(data))
            except FrameError:
                count(self.dropped, "unreadable")
                continue
            for frame in frames:
                if frame.lane.share:
                    self._groups.give_back(Shared(*frame, awaited(waiting)))
                else:
                    count(self.dropped, "node_left", frame.n_messages)
        await asyncio.gather(*(self._take_will(node, epoch, *one) for one in wills), *waiting)

    async def _take_will(
        self,
        node: str,
        epoch: int,
        client_id: str,
        packet: bytes,
        delay: float,
        was: Absence | None,
    ) -> None:
        """Publish a will, or not; `was` is None where there is nothing to wait for."""
        if was is None or await self._is_due(client_id, was, delay):
            self.n_wills += 1
            waiting: list[asyncio.Future[None]] = []
            await self._forwarder.send(packet, packet[0] >> 1 & 3, 1, awaited(waiting))
            await waiting[0]
        self._engine.forget_will(node, epoch, client_id).add_done_callback(heed)

    async def _is_due(self, client_id: str, was: Absence, delay: float) -> bool:
        """Wait for a will's delay, or the session's end; return False where the client is back."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + was.will_delay(delay)
        while True:
            try:
                now = await self._engine.absence(client_id)
            except StorageError:  # beginning anew would publish others twice
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if was.is_over(now):
                return False
            left = due_at - loop.time()
            if now.origin != was.origin or left <= 0:
                return True
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    def close(self) -> None:
        """End what is under way."""
        self._forwarder.close()
