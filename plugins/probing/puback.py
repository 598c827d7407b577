"""RTT samples from the acknowledgements of normal QoS 1 and 2 deliveries.

Theory of operation. A PUBLISH is timed from the moment at which it is handed to the connection
until its PUBACK or PUBREC comes, the time included in which it queues behind earlier bytes. A
message sent now would see the same, and that is what L_now asks for (paper 002, equation 1).

One packet is timed at a time, as by TCP without timestamps: a burst behind one loss gives one
sample and not a hundred copies of it, and other packets cost one comparison. A packet that stays
without an answer is given up when a later one is timed; its age then counts as a sample, as the
lower bound of its RTT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SPACING_SECONDS = 0.1
"""Time from a sample to the next packet that is timed. Ten samples a second describe any congestion
that is worth withholding for."""


class PubackSample(NamedTuple):
    """One RTT.

    Attributes:
        rtt: seconds.
        payload_bytes: the payload bytes of the packet that was timed.
    """

    rtt: float
    payload_bytes: int


@dataclass(eq=False, slots=True)
class PubackTimer:
    """Times one packet towards one subscriber at a time.

    Attributes:
        give_up_seconds: age at which an unanswered packet is given up for the next.
        sent_at: monotonic seconds at which the timed packet was handed over; None while there is
            none.
        payload_bytes: the payload bytes of that packet.
        next_at: monotonic seconds before which no packet needs to be reported.
    """

    give_up_seconds: float
    sent_at: float | None = None
    payload_bytes: int = 0
    next_at: float = 0.0
    _packet_id: int = 0

    def sent(self, packet_id: int, payload_bytes: int, now: float) -> PubackSample | None:
        """Time a packet, not before `next_at`; return the sample of one that is given up for it."""
        given_up = None
        if self.sent_at is not None:
            given_up = PubackSample(now - self.sent_at, self.payload_bytes)
        self._packet_id, self.payload_bytes = packet_id, payload_bytes
        self.sent_at, self.next_at = now, now + self.give_up_seconds
        return given_up

    def acknowledged(self, first_packet_id: int, n_packets: int, now: float) -> PubackSample | None:
        """Return the sample of the timed packet, if it is among these successive ones."""
        sent_at = self.sent_at
        if sent_at is None or not 0 <= self._packet_id - first_packet_id < n_packets:
            return None
        self.sent_at, self.next_at = None, now + SPACING_SECONDS
        return PubackSample(now - sent_at, self.payload_bytes)
