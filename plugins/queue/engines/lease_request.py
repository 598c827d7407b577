"""What one call of `lease` wants of a physical queue, and what it has got so far."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from penstock.plugins.queue.engines.segments import Decoded
from penstock.plugins.queue.wire.frames import ReceivedMessage

MAX_LOOKED: Final = 512
"""Messages that are looked at singly in one step, which takes the loop some milliseconds."""


@dataclass(slots=True)
class Take:
    """One call of `lease` on one physical queue.

    Attributes:
        now: the engine's time.
        deadline: of its leases.
        max_messages: at most.
        max_bytes: of payload, after the first message.
        nonce: another one in each call, as receipts have it.
        received: what it has got so far.
        n_bytes: payload bytes of these.
        is_full: whether no more messages or bytes fit.
        n_looked: messages that this step has looked at singly.
        settled: bits to be settled unseen, by reason and first offset.
        sizes: payload bytes of the messages of these segments.
        dead: messages that were received too often: first offset and index.
        last_of_key: offset of the newest message of each key in this call.
    """

    now: float
    deadline: float
    max_messages: int
    max_bytes: int
    nonce: int
    received: list[ReceivedMessage] = field(default_factory=list)
    n_bytes: int = 0
    is_full: bool = False
    n_looked: int = 0
    settled: dict[str, dict[int, int]] = field(default_factory=dict)
    sizes: dict[int, array[int]] = field(default_factory=dict)
    dead: list[tuple[Decoded, int]] = field(default_factory=list)
    last_of_key: dict[str, int] = field(default_factory=dict)

    @property
    def is_interrupted(self) -> bool:
        """Whether the step has looked at so many messages that another one must follow."""
        return self.n_looked >= MAX_LOOKED

    def wants(self) -> bool:
        """Say whether this step may take another message."""
        has_room = not self.is_full and len(self.received) < self.max_messages
        return has_room and not self.is_interrupted

    def settle(self, reason: str, decoded: Decoded, index: int) -> None:
        """Note a message that is settled unseen."""
        bits = self.settled.setdefault(reason, {})
        first = decoded.first_offset
        bits[first] = bits.get(first, 0) | 1 << index
        self.sizes[first] = decoded.sizes
