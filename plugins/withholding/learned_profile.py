"""Latency by message size, learned from the acknowledgements of one subscriber.

Theory of operation. In calm a message takes ``fixed + per_byte * bytes``: the minimum of a path,
and its rate. Both are lower quartiles. Disturbances only add to a time, such as congestion that a
message meets in transfer, or another message that it queues behind; up to three in four disturbed
samples do no harm.

* ``fixed`` is the quartile of small messages' times, whose rate part is negligible.
* ``per_byte`` is the weighted quartile of ``(time - fixed) / bytes`` of large ones, each weighted
  by its bytes: the slope of the quantile regression through ``fixed``.

One small message and one large one at a time are timed, from the moment at which the message is
handed to the connection until its PUBACK or PUBREC, and only

* if the path was calm when the message left. In transfer a large message raises the RTT itself, so
  that later looks say nothing;
* a large one, if the connection has sent everything before it, and no other large one is
  unacknowledged; a small one, if no large one is.

Before there are `ENOUGH_SAMPLES` of both, and for sizes far beyond those seen, there is no answer,
and the default table applies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

SMALL_BYTES = 1_000
"""Payloads up to this fit into one segment of TCP."""

LARGE_BYTES = 10_000
"""Payloads above this show the rate of a path: the default of threshold_s, and the size of the
paper's query, which measures the present state and not the effect of size."""

MAX_BEYOND = 10
"""There is no answer for messages larger than the largest sample by more than this factor: the
variation in a small one's time would be multiplied as many times."""

MAX_SAMPLES = 15
"""Of each kind: the newest. The quartile of so few follows a client to a faster network after four
messages, and to a slower one after twelve."""

ENOUGH_SAMPLES = 5
"""Of each kind: with three of five wrong, the quartile is still one that is right."""

QUANTILE = 0.25

SPACING_SECONDS = 0.1
"""Least time between two timed small messages: more samples of a fast stream add nothing."""

GIVE_UP_SECONDS = 60.0
"""A timed message without an answer is given up for another one after this."""

MAX_RATIO = 100.0
"""A large message that takes longer than so many small ones is limited by the path's rate, and a
longer RTT does not lengthen it in proportion."""

_LEAST_FIXED = 1e-6


class SizeFit:
    """The times of one subscriber, in constant memory.

    Attributes:
        fixed: seconds of a small message, or None before there are enough samples.
        per_byte: seconds that each payload byte adds; valid where `fixed` is not None.
    """

    __slots__ = ("_bytes", "_large", "_small", "fixed", "per_byte")

    def __init__(self) -> None:
        self._small = array("f")
        self._large = array("f")
        self._bytes = array("f")
        self.fixed: float | None = None
        self.per_byte = 0.0

    def add(self, payload_bytes: int, seconds: float) -> None:
        """Take the time of one message; sizes between small and large are ignored."""
        if payload_bytes <= SMALL_BYTES:
            _keep(self._small, seconds)
        elif payload_bytes > LARGE_BYTES:
            _keep(self._large, seconds)
            _keep(self._bytes, payload_bytes)
        else:
            return
        if len(self._small) < ENOUGH_SAMPLES or len(self._large) < ENOUGH_SAMPLES:
            return
        fixed = weighted_quantile((seconds, 1.0) for seconds in self._small)
        self.fixed = fixed
        slopes = ((s - fixed) / n for s, n in zip(self._large, self._bytes, strict=True))
        self.per_byte = max(0.0, weighted_quantile(zip(slopes, self._bytes, strict=True)))

    def relative(self, payload_bytes: int, floor_seconds: float = 0.0) -> float | None:
        """Return the latency of a size over that of the smallest; at least 1.

        Args:
            payload_bytes: of the message.
            floor_seconds: minimum time counted for a small message: on a local network the RTT
                varies by many times its value, and says nothing.

        Returns:
            None before there are enough samples, and for sizes far beyond them.
        """
        if self.fixed is None or payload_bytes > MAX_BEYOND * max(self._bytes):
            return None
        fixed = max(self.fixed, floor_seconds, _LEAST_FIXED)
        return min(MAX_RATIO, 1 + self.per_byte * payload_bytes / fixed)


def _keep(samples: array[float], value: float) -> None:
    if len(samples) == MAX_SAMPLES:
        del samples[0]
    samples.append(value)


def weighted_quantile(weighted: Iterable[tuple[float, float]]) -> float:
    """Return the least value that, together with all below it, has `QUANTILE` of the weight.

    Args:
        weighted: (value, weight), at least one; weights are above 0.
    """
    rising = sorted(weighted)
    below = QUANTILE * sum(weight for _, weight in rising)
    for value, weight in rising:
        below -= weight
        if below <= 0:
            return value
    return rising[-1][0]  # reached only by rounding


class AckTimes:
    """Times messages towards one subscriber until they are acknowledged.

    Attributes:
        fit: learned from their times.
    """

    __slots__ = (
        "_large_at",
        "_large_bytes",
        "_large_id",
        "_last_large_at",
        "_last_large_id",
        "_small_at",
        "_small_bytes",
        "_small_id",
        "_small_next_at",
        "fit",
    )

    def __init__(self) -> None:
        self.fit = SizeFit()
        self._small_next_at = 0.0
        self.void()

    def void(self) -> None:
        """Forget what is being timed: its connection has ended."""
        self._small_id = self._large_id = self._last_large_id = 0
        self._small_bytes = self._large_bytes = 0
        self._small_at = self._large_at = self._last_large_at = 0.0

    def wants(self, payload_bytes: int, now: float) -> bool:
        """Say whether a message that leaves now would be timed on a calm, empty path."""
        is_alone = not self._last_large_id or now - self._last_large_at > GIVE_UP_SECONDS
        if payload_bytes > LARGE_BYTES:
            return is_alone
        if payload_bytes > SMALL_BYTES or now < self._small_next_at or not is_alone:
            return False
        return not self._small_id or now - self._small_at > GIVE_UP_SECONDS

    def sent(self, packet_id: int, payload_bytes: int, now: float, *, is_timed: bool) -> None:
        """A message leaves.

        Args:
            packet_id: Packet Identifier.
            payload_bytes: of its payload.
            now: monotonic seconds.
            is_timed: whether its time is usable; `wants` has returned True.
        """
        if payload_bytes > LARGE_BYTES:
            self._last_large_id = packet_id
            self._last_large_at = now
            if is_timed:
                self._large_id, self._large_bytes, self._large_at = packet_id, payload_bytes, now
        elif is_timed:
            self._small_id, self._small_bytes, self._small_at = packet_id, payload_bytes, now

    def acknowledged(self, packet_id: int, now: float) -> None:
        """A message was acknowledged, timed or not."""
        if packet_id == self._small_id:
            self._small_id = 0
            self._small_next_at = now + SPACING_SECONDS
            self.fit.add(self._small_bytes, now - self._small_at)
        if packet_id == self._large_id:
            self._large_id = 0
            self.fit.add(self._large_bytes, now - self._large_at)
        if packet_id == self._last_large_id:
            self._last_large_id = 0

    def acknowledged_run(self, first_packet_id: int, n_packets: int, now: float) -> None:
        """Messages with successive Packet Identifiers were acknowledged."""
        for packet_id in {self._small_id, self._large_id, self._last_large_id}:
            if packet_id and first_packet_id <= packet_id < first_packet_id + n_packets:
                self.acknowledged(packet_id, now)
