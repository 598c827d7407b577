"""RTT samples from the acknowledgements of normal QoS 1 and 2 deliveries.

Theory of operation. A PUBLISH is timed from the moment at which it is handed to the connection
until its PUBACK or PUBREC comes. That includes the time in which it queues behind earlier bytes,
here and in the kernel, and whatever the client does before it acknowledges. A message sent now
would see the same, and that is what L_now asks for (paper 002, equation 1). So a sample taken
behind a large message in transfer is high on purpose: while one large message fills the path, the
next should wait.

`OnePacketTimer` times one packet at a time, as TCP without timestamps does: a burst behind one loss
gives one sample and not a hundred copies of it, and other packets cost one comparison. The timed
packet is the first of a burst, so that its queueing time is that of the queue before the burst.

`EveryPacketTimer` times each packet. A sample behind 99 others then includes their time, too, as a
message behind as many would see and a single one would not. A loss delays everything sent after it,
and each packet shows that. Packets that left together and were acknowledged together are still one
sample.

Packets are matched by packet id and sent once in a connection, so a sample is never ambiguous
between two transmissions. A packet that stays without an answer is given up when a later one is
timed; its age then counts as a sample, as the lower bound of its RTT.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class PubackSample(NamedTuple):
    """One RTT.

    Attributes:
        rtt: seconds.
        payload_bytes: of the packet that was timed.
    """

    rtt: float
    payload_bytes: int


class PubackTimer(ABC):
    """Base of the timers of packets towards one subscriber.

    Attributes:
        sent_at: monotonic seconds at which the oldest packet that is being timed was handed over;
            None while there is none.
        payload_bytes: of that packet.
        next_at: monotonic seconds before which no packet needs to be reported.
    """

    __slots__ = ("_give_up_seconds", "next_at", "payload_bytes", "sent_at")

    def __init__(self, give_up_seconds: float) -> None:
        """Begin without a packet.

        Args:
            give_up_seconds: age at which an unanswered packet is given up for a later one.
        """
        self._give_up_seconds = give_up_seconds
        self.sent_at: float | None = None
        self.payload_bytes = 0
        self.next_at = 0.0

    @abstractmethod
    def sent(
        self, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> PubackSample | None:
        """Packets with successive Packet Identifiers leave together, none before `next_at`.

        Args:
            first_packet_id: of the oldest.
            n_packets: how many.
            payload_bytes: of each.
            now: monotonic seconds.

        Returns:
            The sample of a packet that is given up for these.
        """

    @abstractmethod
    def acknowledged(
        self, first_packet_id: int, n_packets: int, now: float
    ) -> Sequence[PubackSample]:
        """Return the samples of those among these packets that are being timed, oldest first."""

    def void(self) -> None:
        """Forget what is being timed: its connection has ended."""
        self.sent_at = None
        self.next_at = 0.0


class OnePacketTimer(PubackTimer):
    """Times one packet at a time, and the next one some time after its answer."""

    __slots__ = ("_packet_id", "_spacing_seconds")

    def __init__(self, give_up_seconds: float, spacing_seconds: float) -> None:
        """Begin without a packet.

        Args:
            give_up_seconds: age at which an unanswered packet is given up for the next.
            spacing_seconds: least time between a sample and the next timed packet.
        """
        super().__init__(give_up_seconds)
        self._spacing_seconds = spacing_seconds
        self._packet_id = 0

    def sent(
        self,
        first_packet_id: int,
        n_packets: int,  # noqa: ARG002 (the base's signature: the others are too early)
        payload_bytes: int,
        now: float,
    ) -> PubackSample | None:
        """Time the first of them."""
        given_up = None
        if self.sent_at is not None:
            given_up = PubackSample(now - self.sent_at, self.payload_bytes)
        self._packet_id = first_packet_id
        self.payload_bytes = payload_bytes
        self.sent_at = now
        self.next_at = now + self._give_up_seconds
        return given_up

    def acknowledged(
        self, first_packet_id: int, n_packets: int, now: float
    ) -> Sequence[PubackSample]:
        """Return the sample of the packet that is being timed, if it is among these."""
        sent_at = self.sent_at
        if sent_at is None or not 0 <= self._packet_id - first_packet_id < n_packets:
            return ()
        self.sent_at = None
        self.next_at = now + self._spacing_seconds
        return (PubackSample(now - sent_at, self.payload_bytes),)


class EveryPacketTimer(PubackTimer):
    """Times every packet until its answer, as many as may be unacknowledged."""

    __slots__ = ("_unanswered",)

    def __init__(self, give_up_seconds: float) -> None:
        super().__init__(give_up_seconds)
        # By packet id, oldest first; packets that left together share one value. An OrderedDict, as
        # a plain dict finds its first item by passing over all removed ones.
        self._unanswered: OrderedDict[int, tuple[float, int]] = OrderedDict()

    def sent(
        self, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> PubackSample | None:
        """Time all of them."""
        unanswered = self._unanswered
        given_up = None
        while self.sent_at is not None and now - self.sent_at >= self._give_up_seconds:
            unanswered.popitem(last=False)
            given_up = PubackSample(now - self.sent_at, self.payload_bytes)
            self._find_oldest()
        flight = (now, payload_bytes)
        for packet_id in range(first_packet_id, first_packet_id + n_packets):
            unanswered[packet_id] = flight
        if self.sent_at is None:
            self.sent_at, self.payload_bytes = flight
        return given_up

    def acknowledged(
        self, first_packet_id: int, n_packets: int, now: float
    ) -> Sequence[PubackSample]:
        """Return a sample for each packet that left at another time or in another size."""
        samples = []
        pop = self._unanswered.pop
        before = None
        for packet_id in range(first_packet_id, first_packet_id + n_packets):
            flight = pop(packet_id, None)
            if flight is not None and flight is not before:
                samples.append(PubackSample(now - flight[0], flight[1]))
                before = flight
        self._find_oldest()
        return samples

    def void(self) -> None:
        """Forget what is being timed: its connection has ended."""
        super().void()
        self._unanswered.clear()

    def _find_oldest(self) -> None:
        if self._unanswered:
            self.sent_at, self.payload_bytes = next(iter(self._unanswered.values()))
        else:
            self.sent_at = None
