"""PINGREQ packets of one client, and whether its broker can be heard at all.

Theory of operation. PINGREQ and PINGRESP pass. A broker that is frozen, as a process that was
stopped or a machine that swaps, keeps its connections, takes bytes into the kernel's buffers and
says nothing. Its clients would leave after their Keep Alive, all at once, and come back to the same
silence. So a connection on which a PINGREQ has no answer for half of the Keep Alive, and nothing
else comes either, is *silent*: from then on the proxy answers PINGREQ in the broker's place, for a
limited time. Acknowledgements are the broker's alone. What the broker answers late is discarded.
"""

from __future__ import annotations

from typing import Final

MOST_PATIENCE_SECONDS: Final = 30.0
"""Without an answer until a connection is silent, also where the client's Keep Alive is long, or
none: a broker that works answers within milliseconds."""

LOOK_SECONDS: Final = 1.0
"""Between two looks at a silent connection: another address may be up."""


class Pings:
    """The PINGREQ packets of one client.

    Attributes:
        n_unanswered: packets without an answer.
        heard_at: monotonic seconds of the last bytes of the broker.
        silent_since: monotonic seconds from which a silent broker has said nothing; None for one
            that is heard.
        due_at: monotonic seconds at which `handle_timeout` has work; None for never.
    """

    def __init__(self, keep_alive: int, cover_seconds: float | None) -> None:
        """Begin without any.

        Args:
            keep_alive: seconds, of the client; 0 for none.
            cover_seconds: how long PINGREQ is answered in place of a silent broker; None: not at
                all.
        """
        self.n_unanswered = 0
        self.heard_at = 0.0
        self.silent_since: float | None = None
        self.due_at: float | None = None
        self._cover_seconds = cover_seconds
        self._n_answered = 0  # whose PINGRESP from the broker is to be discarded
        self.keep(keep_alive)

    def keep(self, keep_alive: int) -> None:
        """Take another Keep Alive, in seconds: the broker's [MQTT-3.1.2-21]."""
        half = keep_alive / 2 or MOST_PATIENCE_SECONDS
        self._patience_seconds = min(half, MOST_PATIENCE_SECONDS)

    @property
    def is_covered(self) -> bool:
        """Whether the proxy answers in place of a silent broker."""
        return self.silent_since is not None and self._cover_seconds is not None

    def pinged(self, now: float) -> None:
        """Take note of a PINGREQ, which is passed on."""
        self.n_unanswered += 1
        if self.due_at is None:
            self.heard_at = max(self.heard_at, now)
            self.due_at = now + self._patience_seconds

    def take_unanswered(self) -> int:
        """Return how many are to be answered in the broker's place, which is done with this."""
        n_pings, self.n_unanswered = self.n_unanswered, 0
        self._n_answered += n_pings
        if self.silent_since is None:
            self.due_at = None
        return n_pings

    def answered(self) -> bool:
        """Take a PINGRESP of the broker; return whether it is passed on."""
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
        """Look whether the broker can be heard.

        Args:
            now: monotonic seconds.
            is_read: the broker's connection is read from.
        """
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
        """Say whether the broker has been silent for longer than the proxy answers for it."""
        since, seconds = self.silent_since, self._cover_seconds
        return since is not None and seconds is not None and now >= since + seconds
