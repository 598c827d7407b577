"""The bytes of incomplete packets on all connections, and their limit.

Theory of operation. Each client may send a packet of 256 MB and stop in the middle of it. One such
packet is harmless, those of a thousand clients are not. Above a limit for all connections together,
the connection that holds the most is closed: first among clients whose CONNECT was not accepted
yet, then among all. Back-pressure would be no remedy: connections that each wait for the others'
packets to complete would wait without end.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.errors import PeerError, ProtocolError
from penstock.broker.mqtt.reason_codes import ReasonCode

FREE_BYTES: Final = 4096
"""A connection that holds no more than this is not counted: its own objects take as much."""


class Receiving(Protocol):
    """A client that is received from.

    Attributes:
        is_open: CONNECT was accepted and the connection has not ended.
    """

    is_open: bool

    def peer_failed(self, error: PeerError, now: float) -> None:
        """Close for what the peer sent."""


class ReceivedBytes:
    """The connections that hold more than `FREE_BYTES`.

    Invariant: `n_bytes` is the sum of what each was last counted with, and not above the limit when
    `count` returns.

    Attributes:
        n_bytes: held by all of them.
        most_bytes: limit of `n_bytes`; a lower one counts from the next `count` on.
    """

    def __init__(self, most_bytes: int) -> None:
        """Begin without connections; `n_bytes` may be `most_bytes` at most."""
        self.most_bytes = most_bytes
        self._holders: dict[Receiving, int] = {}
        self.n_bytes = 0

    def count(self, client: Receiving, n_bytes: int, now: float) -> None:
        """Note what a client holds. While the sum exceeds the limit, close the largest holder."""
        self.forget(client)
        if n_bytes <= FREE_BYTES:
            return
        self._holders[client] = n_bytes
        self.n_bytes += n_bytes
        while self.n_bytes > self.most_bytes:
            largest = max(self._holders, key=lambda c: (not c.is_open, self._holders[c]))
            held = self._holders[largest]
            self.forget(largest)
            largest.peer_failed(
                ProtocolError(
                    f"{held} bytes of incomplete packets; allowed: {self.most_bytes} of "
                    "all connections",
                    ReasonCode.QUOTA_EXCEEDED,
                ),
                now,
            )

    def forget(self, client: Receiving) -> None:
        """Stop counting a client."""
        self.n_bytes -= self._holders.pop(client, 0)
