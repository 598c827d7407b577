"""Wills of clients whose node dies: another node publishes them.

A will is in the engine while its client is connected, and while it is delayed. So a node that dies,
or leaves, costs each of its clients the will once, whichever node has to do what it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from logging import Logger
from struct import Struct
from typing import Final

from penstock.broker.events import ClientConnected, ClientDisconnected
from penstock.broker.mqtt.enums import PUBLISH
from penstock.broker.mqtt.packets import Will
from penstock.broker.mqtt.properties import write_properties
from penstock.broker.mqtt.writer import publish_header

_HEAD: Final = Struct(">I16s")
"""The Will Delay Interval in seconds, and the origin of the session, where it is kept."""

Keep = Callable[[str, bytes], "asyncio.Future[object]"]
"""Keeps the will of a client; b"" for none."""


class NodeWills:
    """Keeps the wills of this node's clients in the engine.

    Args:
        keep: keeps one.
        origin_of: returns the origin of a client's kept session here; "" where it has none.
        logger: gets faults.

    Attributes:
        n_kept: wills that are in the engine.
        failure: why the last one is not; "" where it is.
    """

    def __init__(self, keep: Keep, origin_of: Callable[[str], str], logger: Logger) -> None:
        self.failure = ""
        self._keep = keep
        self._origin_of = origin_of
        self._logger = logger
        self._kept: dict[str, bytes] = {}
        self._refused: dict[str, None] = {}  # clients

    @property
    def n_kept(self) -> int:
        """Wills that are in the engine."""
        return len(self._kept)

    def connected(self, event: ClientConnected) -> None:
        """Keep the will of a client that has one."""
        will, client_id = event.session.will, event.session.client_id
        if will is not None:
            self._kept[client_id] = written(will, self._origin_of(client_id))
            self._call(client_id, self._kept[client_id])
        else:
            self.gone(client_id)

    def disconnected(self, event: ClientDisconnected) -> None:
        """Drop the will of a client, but one that is delayed: this node publishes it or not."""
        will, client_id = event.session.will, event.session.client_id
        delay = will.properties.get("will_delay_interval") if will is not None else None
        if not event.session.is_connected and not (delay and self._origin_of(client_id)):
            self.gone(client_id)

    def gone(self, client_id: str) -> None:
        """Drop the will of a client that is back, or whose session this node has no more."""
        if self._kept.pop(client_id, None) is not None:
            self._call(client_id, b"")

    def keep_again(self) -> None:
        """Keep all wills in the engine, which has none of this epoch."""
        for client_id, will in self._kept.items():
            self._call(client_id, will)

    def beaten(self) -> None:
        """Try again what the engine has refused: one will, and all others once it takes that."""
        for client_id in islice(self._refused, 1):
            self._call(client_id, self._kept.get(client_id, b""))

    def _call(self, client_id: str, will: bytes) -> None:
        self._keep(client_id, will).add_done_callback(partial(self._answered, client_id))

    def _answered(self, client_id: str, call: asyncio.Future[object]) -> None:
        error = None if call.cancelled() else call.exception()
        if error is not None:
            if not self.failure:
                told = "wills are not kept for the case that this node dies: %s"
                self._logger.warning(told, error)
            self._refused[client_id] = None
        elif self._refused:
            again, self._refused = self._refused, {}
            for other in again.keys() - {client_id}:
                self._call(other, self._kept.get(other, b""))
        self.failure = "" if error is None else str(error)


def written(will: Will, origin: str) -> bytes:
    """Return what is kept of a will: its delay, the origin of a kept session, and its packet."""
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
    return b"".join((_HEAD.pack(delay, origin.encode()), head, will.payload))


def read(will: bytes) -> tuple[int, bytes, bytes]:
    """Return delay, origin of the session and PUBLISH packet of MQTT 5 of what was kept."""
    delay, origin = _HEAD.unpack_from(will)
    return delay, origin.rstrip(b"\0"), will[_HEAD.size :]
