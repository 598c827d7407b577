"""RTT samples from probes: QoS 1 messages that are sent only for their PUBACK (paper 002).

Theory of operation. One probe is in flight at a time, as the broker sends no other before it is
acknowledged. Until then its age is a lower bound of the RTT: a bad path is seen before the sample
comes, and also where none ever comes.

The bound does not hold where only the client is at fault. PUBACKs come in the order of what they
answer [MQTT-4.6.0-2]. A client that acknowledges what was sent after a probe has received the
probe, over a path that works, and does not answer it. Such a probe is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

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
