"""Gates that know the link, to compare policies with.

`OracleGate` does what a perfect estimator could do on one connection. `LateGate` knows the end of a
bad phase as well, but notices its beginning only as any broker can: by a longer RTT or losses, or
else by a large message that was slow. The part of the oracle's gain that `LateGate` misses is out
of reach of every policy that sends no probes.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.broker.extensions import DeliveryGate, Verdict
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.models.kernels.link_simulation import GOOD, Bottleneck
from penstock.plugins.withholding.config import DEFAULT_MAX_WITHHOLD
from penstock.plugins.withholding.policies import DEFAULT_EXPOSURE

LOOK_SECONDS: Final = 0.05
"""The time between two looks at the link."""

SEEN_RTT_RATIO: Final = 2.0
"""From this ratio to the good RTT on, a broker sees that the path to a client is bad."""

SEEN_LOSS: Final = 0.05


class OracleGate(DeliveryGate):
    """Hold a large message while the link would take longer for it than the exposure.

    It holds a message for `max_withhold` at most, and sends one at a time, as `adaptive` does.
    """

    def __init__(self, bottleneck: Bottleneck) -> None:
        self._bottleneck = bottleneck
        self._n_on_way = 0

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:  # noqa: ARG002
        """Compare what the link carries with the size of the message."""
        if self._n_on_way:
            return Verdict(deliver=False, look_again_at=None)
        left = DEFAULT_MAX_WITHHOLD - sojourn
        if left < 0 or not self._would_hold(message):
            return Verdict(deliver=True)
        return Verdict(deliver=False, look_again_at=now + min(LOOK_SECONDS, left + 0.001))

    def large_sent(self, link: Link, payload_bytes: int, now: float) -> None:  # noqa: ARG002
        """Count it."""
        self._n_on_way += 1

    def large_acknowledged(self, link: Link, now: float) -> bool:  # noqa: ARG002
        """Count it off."""
        self._n_on_way -= 1
        return True

    def _would_hold(self, message: Message) -> bool:
        rate = self._bottleneck.state.rate
        seconds = message.payload_bytes / rate if rate else math.inf
        return seconds > DEFAULT_EXPOSURE


class LateGate(OracleGate):
    """An oracle that learns of the beginning of a bad phase only as a broker could."""

    def __init__(self, bottleneck: Bottleneck) -> None:
        super().__init__(bottleneck)
        self._sent_at = 0.0
        self._is_known = False

    def large_sent(self, link: Link, payload_bytes: int, now: float) -> None:
        """Note when it left."""
        super().large_sent(link, payload_bytes, now)
        self._sent_at = now

    def large_acknowledged(self, link: Link, now: float) -> bool:
        """Note whether it was slow."""
        self._is_known |= now - self._sent_at > DEFAULT_EXPOSURE
        return super().large_acknowledged(link, now)

    def _would_hold(self, message: Message) -> bool:
        state = self._bottleneck.state
        if not super()._would_hold(message):
            self._is_known = False
        elif state.rtt > SEEN_RTT_RATIO * GOOD.rtt or state.loss > SEEN_LOSS:
            self._is_known = True
        return self._is_known
