"""Delivery gates that a test opens and closes."""

from __future__ import annotations

import math

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message


class SwitchGate(DeliveryGate):
    """A gate that the test opens and closes; no message of the topic `never` is large.

    Attributes:
        large_bytes: the payload length above which a message is large.
        is_open: whether large messages may go.
        most_seconds: the time after which they may go in any case.
        look_again_after: the longest time to the next question, seconds.
        unsent: the bytes that the link had unsent at each question.
        forgotten: the links that it was told to forget.
    """

    def __init__(
        self,
        large_bytes: int = 100,
        *,
        is_open: bool = False,
        most_seconds: float = math.inf,
        look_again_after: float = 1.0,
    ) -> None:
        self.large_bytes = large_bytes
        self.is_open = is_open
        self.most_seconds = most_seconds
        self.look_again_after = look_again_after
        self.unsent: list[int] = []
        self.forgotten: list[Link] = []

    def threshold_s(self, topic: str) -> int | None:
        """Return the same for every topic but `never`."""
        return None if topic == "never" else self.large_bytes

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:
        """Answer as the test has set."""
        del message
        self.unsent.append(link.unsent_bytes)
        if self.is_open or sojourn >= self.most_seconds:
            return Verdict(deliver=True, reason="open")
        seconds = min(self.look_again_after, self.most_seconds - sojourn)
        return Verdict(deliver=False, look_again_at=now + seconds, reason="closed")

    def forget(self, link: Link) -> None:
        """Note it."""
        self.forgotten.append(link)
