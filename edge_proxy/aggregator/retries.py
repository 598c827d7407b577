"""When an uplink connects again."""

from __future__ import annotations

import random
from typing import Final

from penstock.edge_proxy.aggregator.config import ReconnectKeys

SHORT_SECONDS: Final = 10.0
"""A connection that ends sooner may be one that another client takes over."""

SHORT_IN_A_ROW: Final = 3
"""So many short connections in a row are told as such."""

SUSPICIOUS_FAILURES: Final = 1
"""While the uplink finds out at what the cloud's broker hangs up, no wait is longer than after so
many failures: nothing passes meanwhile."""


class Retries:
    """The waits between attempts: each is twice as long as the one before.

    Attributes:
        n_short: connections in a row that the cloud's broker had accepted and that were short.
    """

    def __init__(self, keys: ReconnectKeys, rng: random.Random) -> None:
        """Begin with the first wait.

        Args:
            keys: of the uplink.
            rng: shortens each wait by up to a half.
        """
        self.n_short = 0
        self._keys = keys
        self._rng = rng
        self._n_failures = 0

    def ended(self, seconds: float, *, was_accepted: bool) -> None:
        """Note that a connection has ended, or that an attempt has failed after some seconds."""
        is_short = was_accepted and seconds < SHORT_SECONDS
        self.n_short = self.n_short + 1 if is_short else 0

    def is_stable(self, seconds: float, *, was_accepted: bool) -> bool:
        """Say whether a connection has stood for so long that it was a success."""
        return was_accepted and seconds >= self._keys.stable_seconds

    def succeeded(self) -> None:
        """Begin anew with the first wait."""
        self._n_failures = 0

    def wait_seconds(self, *, is_suspicious: bool) -> float:
        """Return how long to wait before the next attempt, and count it.

        Args:
            is_suspicious: the cloud's broker may have hung up at something that was sent.
        """
        if is_suspicious:
            self._n_failures = min(self._n_failures, SUSPICIOUS_FAILURES)
        keys = self._keys
        longest = min(keys.max_seconds, keys.min_seconds * 2.0 ** min(self._n_failures, 30))
        self._n_failures += 1
        return longest * self._rng.uniform(0.5, 1.0)
