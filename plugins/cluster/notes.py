"""What nodes tell each other beside messages: it is read at once, however many messages wait.

A note is a list of texts and numbers, the first of which is its kind. It may come twice, and much
later, after a lost connection; where the engine was away, not at all: who waits for an answer asks
again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from logging import Logger
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.plugin_guard import is_logged
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.redis.calls import heed

if TYPE_CHECKING:
    from penstock.plugins.cluster.routes import Member

Note: TypeAlias = list[Any]
Hear: TypeAlias = Callable[..., None]
"""Is given the node that tells something, and what follows the kind."""
DRAIN: Final = "drain"
"""A note of ``penstock cluster drain``, no node: within how many seconds all clients leave."""
_MOST_ENTRIES: Final = 500
_LARGE_BYTES: Final = 1024
"""Longer notes do not stay in the engine until others push them out."""


class Notes:
    """Sends and reads notes.

    Args:
        engine: of this node.
        members: the other members.
        logger: gets faults.

    Attributes:
        heard: what is called for each kind of note.
        n_unknown: notes that this version does not know, or that have failed.
    """

    def __init__(
        self, engine: ClusterEngine, members: Mapping[str, Member], logger: Logger
    ) -> None:
        self.heard: dict[str, Hear] = {}
        self.n_unknown = 0
        self._engine = engine
        self._members = members
        self._logger = logger
        self._task: asyncio.Task[None] | None = None

    def tell(self, node: str, *note: Any) -> None:
        """Send a note to a member; it goes nowhere where that has ended or is not known."""
        there = self._members.get(node)
        if there is not None:
            call = self._engine.tell(node, there.epoch, json.dumps(note).encode())
            call.add_done_callback(heed)

    def start(self) -> None:
        """Read what comes for this epoch of the node."""
        self.stop()
        self._task = asyncio.create_task(self._read(), name="penstock-cluster notes")

    def stop(self) -> None:
        """Read nothing more; may be called again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _read(self) -> None:
        reader = self._engine.notes_reader()
        try:
            async for entries in reader.anew(_MOST_ENTRIES):
                large: list[bytes] = []
                for identifier, fields in entries:
                    if fields[1]:  # the first entry has nothing
                        self._hear(fields[0].decode(), fields[1])
                    if len(fields[1]) > _LARGE_BYTES:
                        large.append(identifier)
                if large:
                    self._engine.forget_notes(large).add_done_callback(heed)
                await asyncio.sleep(0)
        finally:
            await reader.close()

    def _hear(self, node: str, data: bytes) -> None:
        try:
            kind, *rest = json.loads(data)
            self.heard[kind](node, *rest)
        except Exception as error:  # noqa: BLE001 (those behind it are to be heard)
            self.n_unknown += 1
            if is_logged(self.n_unknown):
                self._logger.warning(
                    "a note of node %s is not understood, or fails: %.80r: %r", node, data, error
                )
