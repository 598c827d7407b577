"""RTT samples from the acknowledgements of normal QoS 1 and 2 deliveries.

Theory of operation. A PUBLISH is timed from the moment it is handed to the connection until its
PUBACK or PUBREC comes. That includes the time it queues behind bytes that were handed over
before, here and in the kernel, and whatever the client does before it acknowledges: a message
sent now would see the same, and that is what L_now asks for (paper 002, equation 1). So a sample
taken behind a large message in transfer is high, on purpose: while one large message fills the
path, the next should wait.

One packet is timed at a time, as TCP without timestamps does: a burst behind one loss gives one
sample and not a hundred copies of it, and other packets cost one comparison. Packets are matched
by packet id and sent once in a connection, so a sample is never ambiguous between two
transmissions. A packet that stays without answer is given up when the next one can be timed, and
its age then counts as a sample, being the least its RTT can be.
"""

from __future__ import annotations

from typing import NamedTuple

SPACING_SECONDS = 0.1
"""Least time between a sample and the next packet that is timed. Ten samples a second describe
any congestion that is worth withholding for; a fast stream pays for no more."""


class PubackSample(NamedTuple):
    """One RTT.

    Attributes:
        rtt: seconds.
        payload_bytes: of the packet that was timed.
    """

    rtt: float
    payload_bytes: int


class PubackTimer:
    """Times one packet at a time towards one subscriber.

    Attributes:
        packet_id: of the packet that is being timed; 0 for none (no packet has it
            [MQTT-2.2.1-4]).
        payload_bytes: of that packet.
        sent_at: monotonic seconds at which it was handed over.
        next_at: monotonic seconds before which no other packet is timed.
    """

    __slots__ = ("_give_up_seconds", "next_at", "packet_id", "payload_bytes", "sent_at")

    def __init__(self, give_up_seconds: float) -> None:
        """Begin with nothing to time.

        Args:
            give_up_seconds: age at which an unanswered packet makes way for the next.
        """
        self._give_up_seconds = give_up_seconds
        self.packet_id = 0
        self.payload_bytes = 0
        self.sent_at = 0.0
        self.next_at = 0.0

    def sent(self, packet_id: int, payload_bytes: int, now: float) -> PubackSample | None:
        """Time this packet, unless it is too early for another.

        Returns:
            What the packet before it says, where that one is given up for this one.
        """
        if now < self.next_at:
            return None
        given_up = None
        if self.packet_id:
            given_up = PubackSample(now - self.sent_at, self.payload_bytes)
        self.packet_id = packet_id
        self.payload_bytes = payload_bytes
        self.sent_at = now
        self.next_at = now + self._give_up_seconds
        return given_up

    def acknowledged(self, packet_id: int, now: float) -> PubackSample | None:
        """Return a sample where this is the packet that is being timed."""
        if packet_id != self.packet_id or not packet_id:
            return None
        self.packet_id = 0
        self.next_at = now + SPACING_SECONDS
        return PubackSample(now - self.sent_at, self.payload_bytes)

    def void(self) -> None:
        """Forget the packet that is being timed: its connection is gone."""
        self.packet_id = 0
        self.next_at = 0.0
