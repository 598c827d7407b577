"""The sampler behind ``profile: learned``: acknowledgements of small and large messages."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.extensions import LinkSampler
from penstock.broker.link import Link
from penstock.plugins.withholding.learned_profile import LARGE_BYTES, AckTimes, SizeFit


class AckSizes(LinkSampler):
    """A `LinkSampler` that writes no link: what it learns is for its plugin's gate."""

    def __init__(self, fits: dict[Link, SizeFit], is_calm: Callable[[Link, float], bool]) -> None:
        """Begin with nothing learned.

        Args:
            fits: where the gate finds what was learned of each link.
            is_calm: says of a link at a time whether the gate takes it for uncongested.
        """
        self._fits = fits
        self._is_calm = is_calm
        self._times: dict[Link, AckTimes] = {}

    def sent(self, link: Link, packet_id: int, payload_bytes: int, now: float) -> None:
        """Time a message, if its time would depend on its size alone."""
        times = self._times.get(link)
        if times is None:
            times = self._times[link] = AckTimes()
            self._fits[link] = times.fit
        is_large = payload_bytes > LARGE_BYTES
        if times.wants(payload_bytes, now):
            is_timed = not (is_large and link.unsent_bytes) and self._is_calm(link, now)
            times.sent(packet_id, payload_bytes, now, is_timed=is_timed)
        elif is_large:
            times.sent(packet_id, payload_bytes, now, is_timed=False)

    def sent_run(
        self, link: Link, first_packet_id: int, n_packets: int, payload_bytes: int, now: float
    ) -> None:
        """Time the first of the messages; the others queue behind it."""
        self.sent(link, first_packet_id, payload_bytes, now)
        if n_packets > 1 and payload_bytes > LARGE_BYTES:
            self.sent(link, first_packet_id + n_packets - 1, payload_bytes, now)

    def acknowledged(self, link: Link, packet_id: int, now: float) -> bool:
        """Take the time of a message."""
        times = self._times.get(link)
        if times is not None:
            times.acknowledged(packet_id, now)
        return False

    def acknowledged_run(
        self, link: Link, first_packet_id: int, n_packets: int, now: float
    ) -> bool:
        """Take the times of those among these messages that are being timed."""
        times = self._times.get(link)
        if times is not None:
            times.acknowledged_run(first_packet_id, n_packets, now)
        return False

    def connected(self, link: Link, now: float) -> None:  # noqa: ARG002 (the contract's)
        """Forget what was in flight; what was learned of the path stays."""
        times = self._times.get(link)
        if times is not None:
            times.void()

    def forget(self, link: Link) -> None:
        """Drop the records of this subscriber."""
        self._times.pop(link, None)
