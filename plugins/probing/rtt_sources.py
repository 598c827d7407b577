"""Sources of RTT samples: acknowledgements of deliveries, probes, and the kernel's counters.

*Deliveries.* A PUBLISH is timed from the moment at which it is handed to the connection
until its PUBACK or PUBREC comes, the time included in which it queues behind earlier bytes. A
message sent now would see the same, and that is what L_now asks for (paper 002, equation 1).

One packet is timed at a time, as by TCP without timestamps: a burst behind one loss gives one
sample and not a hundred copies of it, and other packets cost one comparison. A packet that stays
without an answer is given up when a later one is timed; its age then counts as a sample, as the
lower bound of its RTT.

*Probes* are QoS 1 messages that are sent only for their PUBACK (paper 002). One probe is in flight
at a time, as the broker sends no other before it is acknowledged. Until then its age is a lower
bound of the RTT: a bad path is seen before the sample comes, and also where none ever comes.

The bound does not hold where only the client is at fault. PUBACKs come in the order of what they
answer [MQTT-4.6.0-2]. A client that acknowledges what was sent after a probe has received the
probe, over a path that works, and does not answer it. Such a probe is given up.

*The kernel* estimates the RTT of each connection. Two of its counters tell when that estimate is
stale, and when the connection stalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PACKET_IDS = 65_535
"""The number of Packet Identifiers [MQTT-2.2.1-3]."""


@dataclass(eq=False, slots=True)
class ProbeTimer:
    """Times the probe in flight to one subscriber.

    Attributes:
        packet_id: the Packet Identifier of the probe that is being timed; 0 for none (no packet has
            it [MQTT-2.2.1-4]).
        sent_at: monotonic seconds at which it was handed over.
    """

    packet_id: int = 0
    sent_at: float = 0.0

    def acknowledged(self, first_packet_id: int, n_packets: int, now: float) -> float | None:
        """Take acknowledgements with successive Packet Identifiers.

        Returns:
            The probe's RTT in seconds, where it is among them. Where one of them was sent after the
            probe, the probe is given up; `packet_id` is 0 afterwards.
        """
        packet_id = self.packet_id
        if packet_id and first_packet_id <= packet_id < first_packet_id + n_packets:
            self.packet_id = 0
            return now - self.sent_at
        # Packet Identifiers are assigned in order, and wrap around after the last.
        if 0 < (first_packet_id - packet_id) % PACKET_IDS <= PACKET_IDS // 2:
            self.packet_id = 0
        return None


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
        sent_at: monotonic seconds at which the timed packet was handed over; None while there is
            none.
        payload_bytes: the payload bytes of that packet.
    """

    sent_at: float | None = None
    payload_bytes: int = 0
    _packet_id: int = 0

    def sent(self, packet_id: int, payload_bytes: int, now: float) -> PubackSample | None:
        """Time a packet; return the sample of one that is given up for it."""
        given_up = None
        if self.sent_at is not None:
            given_up = PubackSample(now - self.sent_at, self.payload_bytes)
        self._packet_id, self.payload_bytes = packet_id, payload_bytes
        self.sent_at = now
        return given_up

    def acknowledged(self, first_packet_id: int, n_packets: int, now: float) -> PubackSample | None:
        """Return the sample of the timed packet, if it is among these successive ones."""
        sent_at = self.sent_at
        if sent_at is None or not 0 <= self._packet_id - first_packet_id < n_packets:
            return None
        self.sent_at = None
        return PubackSample(now - sent_at, self.payload_bytes)


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
