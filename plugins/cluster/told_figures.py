"""What nodes tell each other of themselves every few seconds: for `$SYS` and ``penstock cluster``.

Nobody is asked: each node writes its figures to the engine and reads what the others have written.
By that it sees that an engine stores nothing: as its memory or its disk is full, or as it has no
replica.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from logging import Logger
from typing import Any, Final

from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.redis.errors import StorageError

TELL_SECONDS: Final = 5.0

OF_A_NODE: Final = (
    *("version", "uptime", "heap/", "retained messages/", "messages/retained/"),
    *("messages/stored", "store/messages/"),
)
"""Topics that begin so, below `$SYS/broker/`, are those of each node alone."""


class ToldFigures:
    """Tells this node's figures, and knows those of the others.

    Args:
        engine: of this node.
        members: the other nodes.
        own: returns what this node tells of itself beside what `$SYS` has.
        logger: gets faults.

    Attributes:
        failure: why the engine stores nothing, or may lose it; "" where it does not, or cannot be
            reached.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        members: Collection[str],
        own: Callable[[], dict[str, Any]],
        logger: Logger,
    ) -> None:
        self._engine = engine
        self._members = members
        self._own = own
        self._logger = logger
        self._sys: dict[str, str] = {}
        self._others: dict[str, Mapping[str, str]] = {}
        self._most_clients = 0
        self.failure = ""

    def sys_topics(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return what `$SYS` shows of all nodes, by what it has of this one."""
        self._sys = {name: value for name, value in own.items() if not name.startswith(OF_A_NODE)}
        others = [one for node, one in self._others.items() if node in self._members]
        found = dict(own)
        for name, value in self._sys.items():
            values = [value, *(one[name] for one in others if name in one)]
            if "." in value:
                found[name] = f"{sum(map(float, values)):.2f}"
            else:
                found[name] = str(sum(map(int, values)))
        seen = self._most_clients, int(found["clients/connected"]), int(own["clients/maximum"])
        self._most_clients = max(seen)
        found["clients/maximum"] = str(self._most_clients)
        return found

    async def run(self) -> None:
        """Tell again and again."""
        while True:
            await self.tell()
            await asyncio.sleep(TELL_SECONDS)

    async def tell(self) -> None:
        """Tell now, and take what the others have told."""
        figures = self._own() | {"sys": self._sys}
        try:
            found = await self._engine.tell_figures(json.dumps(figures))
            self._note(await self._engine.eviction())
        except StorageError as error:
            if self._engine.failure is None:
                self._note(f"the engine stores nothing: {error}")
            return
        found.pop(self._engine.node, None)  # it is not there where this node was just evicted
        self._others = {node: json.loads(told).get("sys", {}) for node, told in found.items()}

    def _note(self, failure: str | None) -> None:
        if failure and not self.failure:
            self._logger.error("%s", failure)
        elif self.failure and not failure:
            self._logger.info("the engine stores again")
        self.failure = failure or ""
