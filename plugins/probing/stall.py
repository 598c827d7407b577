"""Detects a stalled connection and a stale RTT estimate, from two of the kernel's counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class StallDetector:
    """Follows the acknowledged bytes of one connection from look to look.

    The kernel keeps its last RTT estimate without limit. It is new only while acknowledgements
    come. Where bytes wait and none is acknowledged between two looks, the oldest of them was in
    flight for at least that long.

    Attributes:
        stalled_since: monotonic seconds since which the same first byte waits for its
            acknowledgement, or None while the path moves or idles.
    """

    stalled_since: float | None = None
    _bytes_acked: int | None = None
    _waiting_since: float | None = None

    def look(self, bytes_acked: int, *, is_waiting: bool, now: float) -> bool:
        """Take the counters of one look; return whether an estimate can be new.

        Args:
            bytes_acked: bytes acknowledged since the connection began.
            is_waiting: whether the kernel has bytes that are not acknowledged.
            now: monotonic seconds.
        """
        is_new = bytes_acked != self._bytes_acked
        self._bytes_acked = bytes_acked
        if not is_waiting:
            self._waiting_since = None
            self.stalled_since = None
        elif is_new or self._waiting_since is None:
            self._waiting_since = now
            self.stalled_since = None
        else:
            self.stalled_since = self._waiting_since
        return is_new
