"""RTT samples from probes: QoS 1 messages that are sent for nothing but their PUBACK (paper 002).

Theory of operation. One probe is on its way at a time, as the broker sends no other before it is
acknowledged. While it is, its age is a lower bound of the RTT: the path is seen to be bad before
the sample comes, and where none ever comes.

Unless the client alone is at fault. PUBACKs come in the order of what they answer [MQTT-4.6.0-2],
so a client that acknowledges what was sent after a probe has got the probe, over a path that works,
and leaves it unanswered. That probe says nothing more.
"""

from __future__ import annotations

PACKET_IDS = 65_535
"""How many Packet Identifiers there are [MQTT-2.2.1-3]."""


class ProbeTimer:
    """Times the probe that is on its way to one subscriber.

    Attributes:
        packet_id: of the probe that is being timed; 0 for none (no packet has it
            [MQTT-2.2.1-4]).
        sent_at: monotonic seconds at which it was handed over.
        is_told: somebody was told that it is overdue; the owner's to use.
    """

    __slots__ = ("is_told", "packet_id", "sent_at")

    def __init__(self) -> None:
        self.packet_id = 0
        self.sent_at = 0.0
        self.is_told = False

    def sent(self, packet_id: int, now: float) -> None:
        """Time this probe."""
        self.packet_id = packet_id
        self.sent_at = now
        self.is_told = False

    def acknowledged(self, first_packet_id: int, n_packets: int, now: float) -> float | None:
        """Take acknowledgements with Packet Identifiers that follow each other.

        Returns:
            The probe's RTT in seconds, where it is among them. Where one of them was sent after the
            probe, that is given up; `packet_id` is 0 afterwards.
        """
        packet_id = self.packet_id
        if not packet_id:
            return None
        if first_packet_id <= packet_id < first_packet_id + n_packets:
            self.packet_id = 0
            return now - self.sent_at
        # Packet Identifiers are given one after the other, and begin anew behind the last.
        if 0 < (first_packet_id - packet_id) % PACKET_IDS <= PACKET_IDS // 2:
            self.packet_id = 0
        return None

    def void(self) -> None:
        """Forget the probe: its connection is gone."""
        self.packet_id = 0
