"""PINGREQ packets of one client, and whether its broker is silent.

Theory of operation. PINGREQ and PINGRESP pass. A frozen broker, such as a stopped process or a
machine that swaps, keeps its connections, takes bytes into the kernel's buffers and says nothing.
Its clients would all leave after their Keep Alive, and come back to the same silence. So a
connection is *silent* when a PINGREQ has had no answer for half of the Keep Alive, and nothing else
has come. From then on, the proxy answers PINGREQ in the broker's place for a limited time. It sends
no acknowledgements in its place. Late answers of the broker are discarded.
"""

from __future__ import annotations

from typing import Final

MOST_PATIENCE_SECONDS: Final = 30.0
"""A connection is silent after so long at most, whatever the client's Keep Alive is: a broker that
works answers within milliseconds."""

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at a silent connection, while another address may come up."""


class Pings:
    """The PINGREQ packets of one client.

    Attributes:
        heard_at: monotonic seconds at which the broker's last bytes came.
        silent_since: monotonic seconds since which a silent broker has said nothing; None for a
            broker that is heard.
        due_at: monotonic seconds at which `handle_timeout` is due; None for never.
    """

    def __init__(self, keep_alive: int, cover_seconds: float | None) -> None:
        """Begin without a PINGREQ.

        Args:
            keep_alive: Keep Alive of the client in seconds; 0 for none.
            cover_seconds: how long PINGREQ is answered in place of a silent broker; None for never.
        """
        self.n_unanswered = 0
        self.heard_at = 0.0
        self.silent_since: float | None = None
        self.due_at: float | None = None
        self._cover_seconds = cover_seconds
        self._n_answered = 0  # whose PINGRESP from the broker is to be discarded
        self.keep(keep_alive)

    def keep(self, keep_alive: int) -> None:
        """Use another Keep Alive in seconds, such as the broker's [MQTT-3.1.2-21]."""
        half = keep_alive / 2 or MOST_PATIENCE_SECONDS
        self._patience_seconds = min(half, MOST_PATIENCE_SECONDS)

    @property
    def is_covered(self) -> bool:
        """Whether the proxy answers in place of a silent broker."""
        return self.silent_since is not None and self._cover_seconds is not None

    def pinged(self, now: float) -> None:
        """Note a PINGREQ, which is passed on."""
        self.n_unanswered += 1
        if self.due_at is None:
            self.heard_at = max(self.heard_at, now)
            self.due_at = now + self._patience_seconds

    def take_unanswered(self) -> int:
        """Return how many PINGREQs to answer in the broker's place; they count as answered."""
        n_pings, self.n_unanswered = self.n_unanswered, 0
        self._n_answered += n_pings
        if self.silent_since is None:
            self.due_at = None
        return n_pings

    def answered(self) -> bool:
        """Handle a PINGRESP of the broker; return whether it is passed on."""
        if self._n_answered:
            self._n_answered -= 1
            return False
        self.n_unanswered = max(0, self.n_unanswered - 1)
        if not self.n_unanswered:
            self.due_at = None
        return True

    def heard_again(self) -> None:
        """Note that a silent broker has sent something."""
        self.silent_since = None
        self.due_at = self.heard_at + self._patience_seconds if self.n_unanswered else None

    def handle_timeout(self, now: float, *, is_read: bool) -> None:
        """Check whether the broker is silent; `is_read`: its connection is being read."""
        if self.due_at is None or now < self.due_at:
            return
        if not is_read:
            self.heard_at = now
        if self.silent_since is None:
            if now < self.heard_at + self._patience_seconds:
                self.due_at = self.heard_at + self._patience_seconds
                return
            self.silent_since = self.heard_at
        self.due_at = now + LOOK_SECONDS

    def is_over(self, now: float) -> bool:
        """Say whether the broker has been silent for longer than the proxy answers in its place."""
        since, seconds = self.silent_since, self._cover_seconds
        return since is not None and seconds is not None and now >= since + seconds
