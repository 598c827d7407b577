"""Cuts one message into parts while its payload comes."""

from __future__ import annotations

from collections import deque
from hashlib import sha256

from penstock.edge_proxy.parts.part_format import Part, Trailer

Buffer = bytes | bytearray | memoryview


class Cutter:
    """Cuts one message.

    The payload is kept by reference until it is cut: a part is a slice of the received piece, and
    is copied once, when it is written.

    Attributes:
        sent_bytes: bytes of the parts that were taken or skipped, from the payload's beginning.
        is_done: whether the last part was taken.
    """

    def __init__(
        self,
        message_id: bytes,
        total_bytes: int,
        *,
        qos: int,
        retain: bool,
        properties: bytes,
        part_bytes: int,
        skip_bytes: int = 0,
        is_kept: bool = False,
    ) -> None:
        """Begin a message; `feed` follows.

        Args:
            message_id: 16 bytes that no other message has.
            total_bytes: length of the payload.
            qos: QoS of the message.
            retain: RETAIN flag of the message.
            properties: properties of its PUBLISH, encoded as in MQTT 5 with their length.
            part_bytes: payload bytes of each part but the last.
            skip_bytes: bytes from the payload's beginning that the other end has: parts within them
                are not made.
            is_kept: see `Part.is_kept`.
        """
        self.message_id = message_id
        self.total_bytes = total_bytes
        self.sent_bytes = 0
        self._qos = qos
        self._retain = retain
        self._properties = properties
        self._part_bytes = part_bytes
        self._skip_bytes = skip_bytes
        self._is_kept = is_kept
        self._hash = sha256()
        self._pieces: deque[memoryview] = deque()
        self._fed_bytes = 0
        self.is_done = False

    @property
    def waiting_bytes(self) -> int:
        """Payload bytes that were fed and not cut yet."""
        return self._fed_bytes - self.sent_bytes

    def feed(self, piece: Buffer) -> None:
        """Add the next piece of the payload, which must not change any more."""
        if piece:
            self._pieces.append(memoryview(piece))
            self._fed_bytes += len(piece)

    def take(self) -> Part | None:
        """Return the next part; None until more of the payload is fed, and after the last part."""
        while not self.is_done:
            left = self.total_bytes - self.sent_bytes
            n_bytes = min(self._part_bytes, left)
            if self.waiting_bytes < n_bytes:
                return None
            data = self._cut(n_bytes)
            self._hash.update(data)
            offset = self.sent_bytes
            self.sent_bytes += n_bytes
            trailer = None
            if n_bytes == left:
                self.is_done = True
                trailer = Trailer(self._hash.digest(), self._properties)
            elif self.sent_bytes <= self._skip_bytes:
                continue
            return Part(
                self.message_id,
                offset,
                self.total_bytes,
                self._qos,
                self._retain,
                trailer,
                data,
                self._is_kept,
            )
        return None

    def _cut(self, n_bytes: int) -> memoryview:
        """Remove and return the first bytes that were fed; of one piece by reference."""
        taken: list[memoryview] = []
        missing = n_bytes
        while missing:
            piece = self._pieces.popleft()
            if len(piece) > missing:
                self._pieces.appendleft(piece[missing:])
                piece = piece[:missing]
            taken.append(piece)
            missing -= len(piece)
        return taken[0] if len(taken) == 1 else memoryview(b"".join(taken))
