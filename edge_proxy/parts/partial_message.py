"""What has come so far of a message in parts."""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b
from typing import NamedTuple

from penstock.edge_proxy.parts.part_format import (
    ID_BYTES,
    NUMBER_BYTES,
    STREAM_BYTES,
    Part,
    Trailer,
)


class StreamPlace(NamedTuple):
    """The place of a message among those of its topic and stream.

    Attributes:
        of: identifies topic, stream and `Part.is_kept`.
    """

    of: bytes
    number: int

    @property
    def of_kept(self) -> bytes:
        """The same for messages that were retained before their receiver subscribed."""
        return self.of[:-1] + b"\1"


def key_of(part: Part, topic: str) -> bytes:
    """Return the key of a message: its identifier, topic and `Part.is_kept`."""
    of_topic = blake2b(topic.encode(), digest_size=ID_BYTES).digest()
    return part.message_id + of_topic + bytes((part.is_kept,))


def place_of(key: bytes) -> StreamPlace:
    """Return the place of the message with a key."""
    number_end = STREAM_BYTES + NUMBER_BYTES
    number = int.from_bytes(key[STREAM_BYTES:number_end])
    return StreamPlace(key[:STREAM_BYTES] + key[ID_BYTES:], number)


class Span(NamedTuple):
    """A range of bytes of a payload: from `start` up to and without `end`."""

    start: int
    end: int


class PartialMessage:
    """The parts of one message that have come, in any order and any number of times.

    Invariants, tested by `check_invariants`: spans are in their order, not empty, and neither touch
    nor overlap.

    Attributes:
        trailer: what only the last part has; None until that has come.
    """

    def __init__(self, part: Part, topic: str) -> None:
        """Begin with what every part says of its message; the part is not added."""
        self.message_id = part.message_id
        self.topic = topic
        self.total_bytes = part.total_bytes
        self.qos = part.qos
        self.retain = part.retain
        self.trailer: Trailer | None = None
        self.spans: list[Span] = []
        self.n_pieces = 0

    @property
    def is_whole(self) -> bool:
        """Whether everything has come."""
        if self.trailer is None:
            return False
        return self.spans == ([Span(0, self.total_bytes)] if self.total_bytes else [])

    @property
    def received_bytes(self) -> int:
        """Payload bytes that have come."""
        return sum(span.end - span.start for span in self.spans)

    def mismatch(self, part: Part, topic: str) -> str:
        """Say how a part contradicts the earlier ones of its message; "" for not at all."""
        for what, read, known in (
            ("topic", topic, self.topic),
            ("total", part.total_bytes, self.total_bytes),
            ("QoS", part.qos, self.qos),
            ("RETAIN", part.retain, self.retain),
        ):
            if read != known:
                return f"{what}: read {read!r}; allowed: {known!r}, as in the parts before"
        if part.trailer and self.trailer and part.trailer.digest != self.trailer.digest:
            return "SHA-256: read another one than in the last part before"
        return ""

    def add(self, part: Part) -> list[Span]:
        """Add a part, and return the ranges of the payload that are new."""
        if part.trailer is not None:
            self.trailer = part.trailer
        return self.add_span(Span(part.offset, part.offset + len(part.data)))

    def add_span(self, new: Span) -> list[Span]:
        """Add a range, and return what of it is new."""
        start, end = new
        if start == end:
            return []
        spans = self.spans
        first = bisect_left(spans, start, key=lambda span: span.end)
        gaps = []
        position, low, high = start, start, end
        last = first
        while last < len(spans) and spans[last].start <= end:
            span = spans[last]
            if span.start > position:
                gaps.append(Span(position, span.start))
            position = max(position, span.end)
            low, high = min(low, span.start), max(high, span.end)
            last += 1
        if position < end:
            gaps.append(Span(position, end))
        spans[first:last] = [Span(low, high)]
        self.n_pieces += len(gaps)
        return gaps

    def check_invariants(self) -> None:
        """Check what the class promises."""
        position = -1
        for start, end in self.spans:
            assert position < start < end <= self.total_bytes  # noqa: S101 (what this is for)
            position = end
