"""Paper 001's store of queues (chapter 2) as a cost model: what pipelining on a connection gains.

Requests that are under way together leave and are answered together. Such a round has a cost of its
own, for the way there and back, system calls and waking up, and each request has one more. So with
d requests under way a message takes ``round / d + request``, however the two are shared between
client and store. Paper 001's store is quicker than a simple one because it needs fewer requests a
message and because many share a round (2.3.3).
"""

from __future__ import annotations

from typing import NamedTuple


class StoreCosts(NamedTuple):
    """The costs of a message on one connection.

    Attributes:
        round_seconds: the cost that all requests of a round share.
    """

    round_seconds: float
    message_seconds: float

    @classmethod
    def of_rates(cls, rate_alone: float, depth: int, rate: float) -> StoreCosts:
        """Return the costs with which two rates were measured.

        Args:
            rate_alone: the messages a second with one request under way.
            depth: the number of requests under way at the other rate, above 1.
            rate: the messages a second with `depth` requests under way.
        """
        alone, together = 1 / rate_alone, 1 / rate
        shared = (alone - together) / (1 - 1 / depth)
        return cls(shared, alone - shared)

    def rate(self, depth: int) -> float:
        """Return messages a second with so many under way."""
        return 1 / (self.round_seconds / depth + self.message_seconds)
