"""When the sending of a large message is broken off, how often, and what is held after it.

Theory of operation. To break a message off costs what was sent of it, and some seconds until the
client is back. So it must have been leaving for `break_off_after` seconds, and would take longer
than that again at the rate at which it left lately; by less, it is soon out of the way. What the
new connection has to repeat first must be little beside what is spared.

A policy that reads the kernel's losses and rates takes the new connection, of which nothing is
known, for better than the old one was. So what is large is held for that subscriber until an RTT
estimate shows that its path is calm, for as long as the policy holds a message at most.

A path that is always bad must not keep a large message from ever arriving. A message is broken off
only while the gate would hold it, and the gate holds none for ever; the sojourn that counts begins,
at the latest, when it is broken off for the first time. Besides, a subscriber is left alone for a
*pause* each time: `max_withhold` seconds at first, twice as long each time that the next one
follows soon after. In the end there is one in which any message gets through.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.link import Link

REPEATED_RATIO: Final = 2.0
"""Bytes left of the message must be so many times those that a new connection begins with."""

CALM_RATIO: Final = 8.0
"""After so many pauses without another, a subscriber is as one that was never broken off."""


class _Pause(NamedTuple):
    """The time in which a subscriber is left alone.

    Attributes:
        began_at: monotonic seconds.
        seconds: how long it lasts.
    """

    began_at: float
    seconds: float


class Breaking:
    """The rule, and each subscriber's pauses.

    Attributes:
        after: break_off_after, seconds.
    """

    def __init__(self, after: float, least_pause: float, most_hold: float) -> None:
        """Begin with nobody in a pause.

        Args:
            after: break_off_after, seconds.
            least_pause: seconds from one time to the next of a subscriber.
            most_hold: seconds for which what is large is held after it, unless calm is seen.
        """
        self.after = after
        self._least_pause = least_pause
        self._most_hold = most_hold
        self._pauses: dict[Link, _Pause] = {}

    def pays(
        self, *, seconds: float, left_bytes: int, bytes_per_second: float, repeated_bytes: int
    ) -> bool:
        """Say whether others would gain by it.

        Args:
            seconds: for which the message has been leaving.
            left_bytes: that have not left yet.
            bytes_per_second: at which they did lately.
            repeated_bytes: that a new connection begins with.
        """
        return (
            seconds >= self.after
            and left_bytes > self.after * bytes_per_second
            and left_bytes >= REPEATED_RATIO * repeated_bytes
        )

    def is_in_pause(self, link: Link, now: float) -> bool:
        """Say whether a subscriber is to be left alone now."""
        pause = self._pauses.get(link)
        return pause is not None and now - pause.began_at < pause.seconds

    def held_until(self, link: Link, now: float, *, is_calm: bool) -> float | None:
        """Return until when what is large is held for a subscriber at the most.

        What the kernel knew of the old connection, its losses and its rate, is gone with it, so
        that a policy would take the path for better than it has just been seen to be.

        Args:
            link: of the subscriber.
            now: monotonic seconds.
            is_calm: the path is, by the newest RTT estimate.

        Returns:
            Monotonic seconds; None where it is not, as nothing was broken off lately or the path
            was seen to be calm since.
        """
        pause = self._pauses.get(link)
        if pause is None or (is_calm and (link.rtt_updated_at or 0.0) > pause.began_at):
            return None
        until = pause.began_at + self._most_hold
        return until if now < until else None

    def begin_pause(self, link: Link, now: float) -> None:
        """A message to this subscriber is broken off now."""
        seconds = self._least_pause
        last = self._pauses.get(link)
        if last is not None and now - last.began_at < CALM_RATIO * last.seconds:
            seconds = 2 * last.seconds
        self._pauses[link] = _Pause(now, seconds)

    def forget(self, link: Link) -> None:
        """Drop what is kept for a subscriber."""
        self._pauses.pop(link, None)
