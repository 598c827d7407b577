"""What all connections hold of what their peers have sent: packets that are not whole yet.

Theory of operation. Each client may send a packet of 256 MB, and stop in the middle of it. One such
packet is no trouble, those of a thousand clients are. Above a limit for all of them together the
connection that holds the most is closed: first of those whose clients are not let in yet, then of
all. Nobody is merely kept from sending: whoever waits for the others' packets to be whole, when
these wait for the same, waits for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.errors import ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from penstock.broker.receiving.connection import Connection

FREE_BYTES: Final = 4096
"""So little of a connection is not worth to be counted: its own objects take as much."""


class ReceivedBytes:
    """The connections that hold more than `FREE_BYTES`.

    Invariant: `n_bytes` is the sum of what they were last counted with, and at most the limit
    whenever `count` has returned.

    Attributes:
        n_bytes: that they hold.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin with none.

        Args:
            most_bytes: limit of `n_bytes`.
        """
        self._most_bytes = most_bytes
        self._holders: dict[Connection, int] = {}
        self.n_bytes = 0

    def count(self, connection: Connection, n_bytes: int, now: float) -> None:
        """Note what a connection holds; close those that hold the most while it is too much.

        Args:
            connection: not closing.
            n_bytes: bytes that it holds.
            now: monotonic seconds.
        """
        self.forget(connection)
        if n_bytes <= FREE_BYTES:
            return
        self._holders[connection] = n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self._most_bytes:
            largest = max(self._holders, key=lambda c: (not c.is_open, self._holders[c]))
            held = self._holders[largest]
            self.forget(largest)
            largest.peer_failed(
                ProtocolError(
                    f"{held} bytes of packets that are not whole; allowed: {self._most_bytes} of "
                    "all connections",
                    ReasonCode.QUOTA_EXCEEDED,
                ),
                now,
            )

    def forget(self, connection: Connection) -> None:
        """Count a connection no more."""
        self.n_bytes -= self._holders.pop(connection, 0)
