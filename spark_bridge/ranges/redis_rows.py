"""The columns of messages, made from the values that a Redis server keeps.

Theory of operation. The server has two values for a message (`messages.INFO` and `messages.BODY`).
Both begin with fields of a fixed width. In the rest, nearly all messages of one publisher are
equal but for the payload. So a column is a slice of all values at once, and a text is decoded once
for all values that share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plugins.queue.engines.redis.messages import BODY, INFO
from penstock.spark_bridge.rows import Texts

_WALL: Final = (24, 32)
_SIZE: Final = (32, 36)
_KEY_BYTES: Final = (37, 39)
"""Offsets of fields in `INFO`: the first byte, and the byte behind the last."""

_TO_THE_END: Final = 1 << 30
"""More bytes than a value has, as Arrow 26 refuses a slice without an end."""


def topic_of(info: bytes) -> bytes:
    """Return the topic of a message."""
    return info[INFO.size + int.from_bytes(info[_KEY_BYTES[0] : _KEY_BYTES[1]], "little") :]


def sizes_of(infos: Sequence[bytes]) -> list[int]:
    """Return the payload bytes of messages."""
    sizes = b"".join([info[_SIZE[0] : _SIZE[1]] for info in infos])
    return list(memoryview(sizes).cast("I"))


class RedisRows:
    """Messages of one physical queue."""

    def __init__(
        self, offsets: Sequence[int], infos: Sequence[bytes], bodies: Sequence[bytes] | None
    ) -> None:
        self.n_messages = len(offsets)
        self.texts: dict[str, Texts] = {}
        self._infos = pa.array(infos, pa.binary())
        self._fixed = {
            "offset": pa.array(offsets, pa.int64()),
            "enqueued_at": self._number(_WALL, pa.float64()),
            "payload_bytes": self._number(_SIZE, pa.uint32()),
        }
        self._payloads: pa.Array = None
        # From the length of the key on.
        ends = pc.binary_slice(self._infos, _KEY_BYTES[0], _TO_THE_END).dictionary_encode()
        before = bytes(_KEY_BYTES[0])
        topics = [topic_of(before + end) for end in ends.dictionary.to_pylist()]
        self.texts["topic"] = Texts(topics, [ends.indices])
        if bodies is not None:
            self._take(bodies)

    def _take(self, bodies: Sequence[bytes]) -> None:
        """Cut bodies in what precedes the payload, and the payload."""
        array = pa.array(bodies, pa.binary())
        heads = pc.binary_slice(array, 0, BODY.size).dictionary_encode()
        ends = [BODY.size + sum(BODY.unpack(one)[1:]) for one in heads.dictionary.to_pylist()]
        if len(set(ends)) == 1:
            before = pc.binary_slice(array, 0, ends[0])
            self._payloads = pc.binary_slice(array, ends[0], _TO_THE_END)
        else:
            cuts = [ends[index] for index in heads.indices.to_pylist()]
            pairs = list(zip(bodies, cuts, strict=True))
            before = pa.array([body[:cut] for body, cut in pairs], pa.binary())
            self._payloads = pa.array([body[cut:] for body, cut in pairs], pa.binary())
        befores = before.dictionary_encode()
        all_qos, publishers, properties = [], [], []
        for one in befores.dictionary.to_pylist():
            qos, publisher_bytes, _ = BODY.unpack_from(one)
            at = BODY.size + publisher_bytes
            all_qos.append(qos)
            publishers.append(one[BODY.size : at])
            properties.append(one[at:])
        self._fixed["qos"] = pa.array(all_qos, pa.int8()).take(befores.indices)
        self.texts["publisher"] = Texts(publishers, [befores.indices])
        self.texts["properties"] = Texts(properties, [befores.indices])

    def fixed(self, name: str) -> pa.Array:
        """Return a column of numbers."""
        return self._fixed[name]

    def payloads(self) -> pa.Array:
        """Return the payloads."""
        return self._payloads

    def _number(self, field: tuple[int, int], arrow_type: pa.DataType) -> pa.Array:
        data = pc.binary_slice(self._infos, *field).buffers()[2]
        return pa.Array.from_buffers(arrow_type, self.n_messages, [None, data])
