"""Cuts retained messages for clients that subscribe to their parts later.

Parts cannot be retained: a topic has one retained message, and a message has many parts. So a
retained message is cut once more for each new subscription to its parts, as fast as the client
takes them. The parts go to this client alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from logging import Logger
from typing import Any

from penstock.broker.counters import count
from penstock.broker.message import Message
from penstock.broker.mqtt.topics import matches
from penstock.broker.plugin_guard import is_logged
from penstock.edge_proxy.parts.config import PartsConfig
from penstock.edge_proxy.parts.cutting import Cutter
from penstock.edge_proxy.parts.part_format import ID_BYTES, NUMBER_BYTES, STREAM_BYTES, write_part
from penstock.edge_proxy.parts.parts_context import PartsCounts
from penstock.edge_proxy.parts.splitter import PART_ID, divided


class RetainedParts:
    """Cuts the retained messages of the topics that are split.

    Attributes:
        stream: the stream of all that is cut here; it is set before a client connects.
    """

    def __init__(self, config: PartsConfig, counts: PartsCounts, logger: Logger) -> None:
        self._config = config
        self._counts = counts
        self._logger = logger
        self.stream = bytes(STREAM_BYTES)
        self._random = secrets.token_bytes(ID_BYTES - STREAM_BYTES - NUMBER_BYTES)

    def parts(self, message: Message, number: int) -> Iterator[Message]:
        """Yield the parts of a retained message; the payload is read as they are taken.

        Args:
            message: the retained message.
            number: its number in the stream, the same for both lanes of an uplink, as long as the
                process runs.
        """
        if not any(matches(name, message.topic) for name in self._config.split):
            return
        found, marks = divided(
            message.properties, message.publisher, tells_publisher=self._config.tells_publisher
        )
        cutter = Cutter(
            self.stream + number.to_bytes(NUMBER_BYTES) + self._random,
            message.payload_bytes,
            qos=message.qos,
            retain=True,
            properties=found,
            part_bytes=self._config.part_bytes,
            is_kept=True,
        )
        properties: dict[str, Any] = dict(marks)
        if message.expires_at is not None:
            interval = message.properties["message_expiry_interval"]
            properties["message_expiry_interval"] = interval
        topic = f"{self._config.prefix}/{message.topic}"
        fed_bytes = 0
        while not cutter.is_done:
            part = cutter.take()
            if part is None:
                try:
                    piece = _read(message, fed_bytes)
                except OSError as error:
                    self._tell_lost(message, error)
                    return
                cutter.feed(piece)
                fed_bytes += len(piece)
                continue
            self._counts.kept_parts += 1
            yield Message(
                topic,
                write_part(part),
                qos=1,
                arrived_at=message.arrived_at,
                expires_at=message.expires_at,
                properties=properties,
                publisher=PART_ID,
            )

    def _tell_lost(self, message: Message, error: OSError) -> None:
        """Count and log a message whose payload cannot be read to its end."""
        count(self._counts.split_dropped, "disk")
        if is_logged(n_lost := self._counts.split_dropped["disk"]):
            self._logger.error(
                "%d retained messages were not cut to their end (disk), the last of topic %r: %s",
                n_lost,
                message.topic,
                error,
            )


def _read(message: Message, start: int) -> bytes:
    """Return the next bytes of a payload.

    Raises:
        OSError: its store cannot read them.
    """
    payload = message.payload
    return payload if isinstance(payload, bytes) else payload.read_piece(start)
