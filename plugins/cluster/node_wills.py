"""Wills of clients whose node dies: another node publishes them.

A will is in the engine while its client is connected. So a node that dies costs each of its clients
the will once, whichever node has to do what it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import Logger
from struct import Struct
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.broker.events import ClientConnected, ClientDisconnected
from penstock.broker.mqtt.enums import PUBLISH
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.writer import publish_header

_DELAY: Final = Struct(">I")

Keep = Callable[[str, bytes], "asyncio.Future[object]"]
"""Keeps the will of a client; b"" for none."""


class NodeWills:
    """Keeps the wills of this node's clients in the engine.

    Args:
        keep: keeps one.
        logger: gets faults.

    Attributes:
        n_kept: wills that are in the engine.
        failure: why the last one is not; "" where it is.
    """

    def __init__(self, keep: Keep, logger: Logger) -> None:
        self.failure = ""
        self._keep = keep
        self._logger = logger
        self._kept: dict[str, bytes] = {}

    @property
    def n_kept(self) -> int:
        """Wills that are in the engine."""
        return len(self._kept)

    def connected(self, event: ClientConnected) -> None:
        """Keep the will of a client that has one."""
        will, client_id = event.session.will, event.session.client_id
        if will is not None:
            self._kept[client_id] = written(will)
            self._call(client_id, self._kept[client_id])
        elif client_id in self._kept:
            del self._kept[client_id]
            self._call(client_id, b"")

    def disconnected(self, event: ClientDisconnected) -> None:
        """Drop the will of a client: this node publishes it or not, once that is due."""
        client_id = event.session.client_id
        will = self._kept.get(client_id)
        if will is None or event.session.is_connected:
            return
        delay = read(will)[0]
        if delay and event.session.will is not None:
            asyncio.get_running_loop().call_later(delay, self._drop, client_id, will)
        else:
            self._drop(client_id, will)

    def _drop(self, client_id: str, will: bytes) -> None:
        """Drop a will, where the client has not connected again since."""
        if self._kept.get(client_id) is will:
            del self._kept[client_id]
            self._call(client_id, b"")

    def keep_again(self) -> None:
        """Keep all wills in the engine, which has none of this epoch."""
        for client_id, will in self._kept.items():
            self._call(client_id, will)

    def _call(self, client_id: str, will: bytes) -> None:
        try:
            self._keep(client_id, will).add_done_callback(self._answered)
        except PenstockError as error:
            self.failure = str(error)

    def _answered(self, call: asyncio.Future[object]) -> None:
        error = None if call.cancelled() else call.exception()
        if error is not None and not self.failure:
            self._logger.warning("wills are not kept for the case that this node dies: %s", error)
        self.failure = "" if error is None else str(error)


def written(will: Will) -> bytes:
    """Return what is kept of a will: its delay, and its PUBLISH packet in the form of MQTT 5."""
    properties = dict(will.properties)
    delay = properties.pop("will_delay_interval", 0)
    head = publish_header(
        will.topic.encode(),
        len(will.payload),
        will.qos,
        will.retain,
        packet_id=1,
        properties=write_properties(properties, PUBLISH),
    )
    return b"".join((_DELAY.pack(delay), head, will.payload))


def read(will: bytes) -> tuple[int, bytes]:
    """Return the Will Delay Interval in seconds and the PUBLISH packet of what was kept."""
    return _DELAY.unpack_from(will)[0], will[_DELAY.size :]
