"""When a large message in transfer is broken off, how often, and what is held afterwards.

Theory of operation. To break a message off costs the part of it that was sent, and some seconds
until the client has reconnected. So the message must have been leaving for `break_off_after`
seconds, and must need more than that again at its recent rate; otherwise it will soon be done. What
the new connection has to repeat first must be small compared with what is spared.

A policy that reads the kernel's losses and rates has no values of the new connection, and would
judge it better than the old one. So large messages are held for that subscriber until an RTT
estimate shows that its path is calm, but no longer than the policy holds a message at most.

A path that is always bad must not keep a large message from ever arriving. A message is broken off
only while the gate would hold it, and each hold is bounded; the sojourn that counts begins, at the
latest, when the message is first broken off. Besides, after each time a subscriber is left alone
for a *pause*: `max_withhold` seconds at first, and twice as long each time the next one follows
soon after. In the end a pause is long enough for any message.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.broker.link import Link

REPEATED_RATIO: Final = 2.0
"""The unsent bytes of the message must be at least so many times those that a new connection
repeats first."""

CALM_RATIO: Final = 8.0
"""After so many pauses without another break, a subscriber counts as never broken off."""


class _Pause(NamedTuple):
    """The time in which a subscriber is left alone.

    Attributes:
        began_at: monotonic seconds.
        seconds: its length.
    """

    began_at: float
    seconds: float


class Breaking:
    """The rule, and each subscriber's pauses.

    Attributes:
        after: break_off_after, seconds.
    """

    def __init__(self, after: float, least_pause: float, most_hold: float) -> None:
        """Begin without pauses.

        Args:
            after: break_off_after, seconds.
            least_pause: least seconds between two breaks for one subscriber.
            most_hold: seconds for which large messages are held after a break, unless calm is seen.
        """
        self.after = after
        self._least_pause = least_pause
        self._most_hold = most_hold
        self._pauses: dict[Link, _Pause] = {}

    def pays(
        self, *, seconds: float, left_bytes: int, bytes_per_second: float, repeated_bytes: int
    ) -> bool:
        """Say whether other messages would gain by a break.

        Args:
            seconds: for which the message has been leaving.
            left_bytes: its unsent bytes.
            bytes_per_second: its recent rate.
            repeated_bytes: what a new connection repeats first.
        """
        return (
            seconds >= self.after
            and left_bytes > self.after * bytes_per_second
            and left_bytes >= REPEATED_RATIO * repeated_bytes
        )

    def is_in_pause(self, link: Link, now: float) -> bool:
        """Say whether a subscriber is in a pause."""
        pause = self._pauses.get(link)
        return pause is not None and now - pause.began_at < pause.seconds

    def held_until(self, link: Link, now: float, *, is_calm: bool) -> float | None:
        """Return until when large messages for a subscriber are held at most.

        The kernel's knowledge of the old connection, its losses and rate, is gone with it, so a
        policy would take the path for better than it has just been seen to be.

        Args:
            link: of the subscriber.
            now: monotonic seconds.
            is_calm: whether the path is calm, by the newest RTT estimate.

        Returns:
            Monotonic seconds; None where nothing is held, as there was no recent break or the path
            was seen to be calm since.
        """
        pause = self._pauses.get(link)
        if pause is None or (is_calm and (link.rtt_updated_at or 0.0) > pause.began_at):
            return None
        until = pause.began_at + self._most_hold
        return until if now < until else None

    def begin_pause(self, link: Link, now: float) -> None:
        """A message to this subscriber is being broken off."""
        seconds = self._least_pause
        last = self._pauses.get(link)
        if last is not None and now - last.began_at < CALM_RATIO * last.seconds:
            seconds = 2 * last.seconds
        self._pauses[link] = _Pause(now, seconds)

    def forget(self, link: Link) -> None:
        """Drop the record of a subscriber."""
        self._pauses.pop(link, None)
