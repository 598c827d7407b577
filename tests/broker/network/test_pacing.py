from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

import pytest

from penstock.broker.network.pacing import KNOWN_SECONDS, LOOK_SECONDS, Pacing
from penstock.broker.network.tcp_info import TcpInfo

MSS: Final = 1448
STEP: Final = 0.001
"""Seconds of the model's clock."""

BROAD, NARROW = 2_500_000.0, 125_000.0
"""Bytes per second: 20 Mbit/s and 1 Mbit/s."""

SHORT, DEEP = 0.2, 2.0
"""Seconds that the narrowest link's queue holds: a router's, and a modem's."""


class Model:
    """A sender with TCP's window on a path with one queue; the kernel's figures of it.

    Attributes:
        now: virtual seconds.
        pace: bytes per second; None for no limit but the window.
        unsent: segments that the sender still has.
        queue: seconds of each step that the queue would take to run empty.
        delivered: segments.
    """

    def __init__(
        self,
        rate: Callable[[float], float],
        one_way: Callable[[float], float] = lambda _now: 0.02,
        others: Callable[[float], float] = lambda _now: 0.0,
        loss: Callable[[float], float] = lambda _now: 0.0,
        is_stalled: Callable[[float], bool] = lambda _now: False,
        holds: float = DEEP,
    ) -> None:
        """Begin idle.

        Args:
            rate: bytes per second of the link at a time.
            one_way: seconds from end to end without a queue.
            loss: share of segments that are lost.
            is_stalled: whether acknowledgements are held up, and come later, all at once.
            others: share of the link that others take, who have filled the queue by half.
            holds: seconds of the link's rate that its queue has room for.
        """
        self.now = 0.0
        self.pace: float | None = None
        self.unsent = 0
        self.queue: list[float] = []
        self.delivered = 0
        self._rate, self._one_way, self._others, self._loss = rate, one_way, others, loss
        self._is_stalled = is_stalled
        self._n_lost = 0
        self._rng = random.Random(17)  # noqa: S311 (no secret)
        self._waiting: deque[float] = deque()
        self._acks: deque[tuple[float, float]] = deque()
        self._holds = holds
        self._window, self._most = 10.0, 1e9
        self._unacked = self._acked = self._segs_in = 0
        self._credit = self._tokens = 0.0
        self._srtt = 2 * one_way(0.0)
        self._lately: deque[float] = deque()

    def step(self) -> None:
        """Let a millisecond pass."""
        now = self.now = self.now + STEP
        while self._acks and self._acks[0][0] <= now and not self._is_stalled(now):
            sent_at = self._acks.popleft()[1]
            self._unacked -= 1
            self._acked += 1
            self._segs_in += self._acked % 2
            self._window += 1 if self._window < self._most else 1 / self._window
            if self._acked % 2:
                self._srtt += (now - sent_at - self._srtt) / 8
            self._lately.append(now)
        rate = self._rate(now) * (1 - self._others(now))
        self._send(now, self._holds * rate)
        self._tokens = min(self._tokens + rate * STEP, rate * STEP if not self._waiting else 1e9)
        behind = self._holds / 2 if self._others(now) else 0.0
        while self._waiting and self._tokens >= MSS:
            self._tokens -= MSS
            self.delivered += 1
            self._acks.append((now + behind + 2 * self._one_way(now), self._waiting.popleft()))
        self.queue.append(len(self._waiting) * MSS / rate)

    def _send(self, now: float, room_bytes: float) -> None:
        pace = self.pace or 1e9
        self._credit = min(self._credit + pace * STEP, 2 * MSS + pace * STEP)
        while self.unsent >= 2 and self._unacked + 2 <= self._window and self._credit >= 2 * MSS:
            self._credit -= 2 * MSS
            is_lost = self._rng.random() < self._loss(now)
            if is_lost or (len(self._waiting) + 2) * MSS > room_bytes:  # noticed at once
                self._n_lost += 1
                self._most = self._window = max(self._window / 2, 4.0)
                break
            self.unsent -= 2
            self._unacked += 2
            self._waiting.extend((now, now))

    def info(self) -> TcpInfo:
        """Return what the kernel would tell."""
        while self._lately and self._lately[0] < self.now - self._srtt:
            self._lately.popleft()
        rate = int(len(self._lately) * MSS / self._srtt)
        limited = self.unsent < 2
        acked, unsent = self._acked * MSS, self.unsent * MSS
        return TcpInfo(
            self._srtt,
            0.0,
            MSS,
            self._unacked,
            self._n_lost,
            acked,
            self._segs_in,
            unsent,
            0,
            rate,
            limited,
        )

    @property
    def is_idle(self) -> bool:
        """Whether all was delivered and acknowledged."""
        return self.unsent < 2 and not self._unacked


def run(
    model: Model, seconds: float, *, is_paced: bool = True, pacing: Pacing | None = None
) -> Pacing:
    """Let a model send all the time, and pace it as it would be, from the beginning or on."""
    begins, pacing = pacing is None, pacing or Pacing()
    if is_paced and begins:
        model.pace = pacing.rest(model.info(), model.now)
    for step in range(round(seconds / STEP)):
        model.unsent = 1_000
        model.step()
        if is_paced and step % round(LOOK_SECONDS / STEP) == 0:
            model.pace = pacing.look(model.info(), model.now)
    return pacing


def late_share(model: Model, seconds: float) -> float:
    """Return the share of time in which the queue was longer."""
    return sum(queue > seconds for queue in model.queue) / len(model.queue)


def cliffs(now: float) -> float:
    """Return a rate of 20 Mbit/s, and of 1 Mbit/s in every other ten seconds."""
    return NARROW if now % 20 >= 10 else BROAD


def test_a_deep_queue_is_kept_short_over_cliffs_and_the_link_stays_full() -> None:
    """Without a pace, the queue is long almost all the time."""
    free, paced = Model(cliffs), Model(cliffs)
    run(free, 60, is_paced=False)
    run(paced, 60)
    assert late_share(free, 0.6) > 0.6
    assert late_share(paced, 0.6) < 0.3
    assert paced.delivered > 0.9 * free.delivered


def test_a_short_queue_is_not_yielded_to() -> None:
    """It keeps no alarm for long, and each large message would take longer."""
    model = Model(lambda _now: NARROW, holds=SHORT)
    pacing = run(model, 60)
    assert pacing.pace is None
    assert not pacing.has_yielded


def test_a_path_that_has_become_longer_is_no_queue() -> None:
    """A pace has not shortened its round trips; the next ones are at full rate."""
    model = Model(lambda _now: BROAD, one_way=lambda now: 0.02 if now < 10 else 0.1)
    pacing = run(model, 20)
    assert pacing.pace is None or pacing.pace > BROAD / 2
    assert sum(model.queue[-5_000:]) / 5_000 < 0.1
    delivered = model.delivered
    for _ in range(2_000):
        model.unsent = 1_000
        model.step()
    assert (model.delivered - delivered) * MSS > 0.9 * 2 * BROAD


def seconds_of_messages(model: Model, *, is_paced: bool) -> float:
    """Send a megabyte every five seconds for a minute; return what all of them took together."""
    pacing, total = Pacing(), 0.0
    for _ in range(12):
        begun = model.now
        model.unsent = 690
        model.pace = pacing.rest(model.info(), model.now) if is_paced else None
        while not model.is_idle:
            model.step()
            if is_paced and round((model.now - begun) / STEP) % round(LOOK_SECONDS / STEP) == 0:
                model.pace = pacing.look(model.info(), model.now)
        total += model.now - begun
        while model.now < begun + 5.0:
            model.step()
    return total


@pytest.mark.parametrize(("least", "most"), [(0.02, 0.06), (0.02, 0.045), (0.05, 0.1)])
def test_round_trips_that_vary_by_themselves_are_no_queue(least: float, most: float) -> None:
    """As those of radio links: a pace is proven before long, and messages are hardly later."""
    rng = random.Random(5)  # noqa: S311 (no secret)
    ways = [rng.uniform(least, most) for _ in range(2_000)]

    def one_way(now: float) -> float:
        return ways[round(now / 0.03)]

    free = seconds_of_messages(Model(lambda _now: BROAD, one_way), is_paced=False)
    paced = seconds_of_messages(Model(lambda _now: BROAD, one_way), is_paced=True)
    assert paced < 1.6 * free


def test_losses_on_a_longer_path_are_no_queue() -> None:
    """What limits the rate then is TCP's window, and no pace."""
    model = Model(
        lambda _now: BROAD,
        one_way=lambda now: 0.02 if now < 5 else 0.2,
        loss=lambda now: 0.0 if now < 5 else 0.2,
    )
    pacing = run(model, 7)
    for _ in range(10):
        before = model.delivered
        run(model, 2, pacing=pacing)
        assert pacing.pace is None or pacing.pace > 2 * (model.delivered - before) * MSS / 2


def test_stalls_cost_little() -> None:
    """Such as of a radio link: every 0.7 s, nothing comes for 0.15 s."""
    model = Model(lambda _now: NARROW, is_stalled=lambda now: now % 0.7 < 0.15)
    run(model, 60)
    assert model.delivered * MSS > 0.9 * 60 * NARROW


def test_a_queue_that_others_fill_is_not_yielded_to() -> None:
    """The large lane has most of its share of the link again, some seconds later."""
    model = Model(lambda _now: BROAD, others=lambda now: 0.5 if now >= 10 else 0.0)
    pacing = run(model, 20)
    before = model.delivered
    run(model, 20, pacing=pacing)
    assert (model.delivered - before) * MSS > 0.8 * 20 * BROAD / 2


def test_a_message_begins_at_the_pace_that_was_found_last() -> None:
    """At full rate, where none was found within a minute."""
    model = Model(lambda _now: NARROW)
    pacing = run(model, 20)
    assert pacing.has_yielded
    assert pacing.rest(model.info(), model.now) == pytest.approx(NARROW, rel=0.15)
    assert not pacing.has_yielded
    assert pacing.rest(model.info(), model.now + 2 * KNOWN_SECONDS) is None


def test_a_pace_is_never_so_low_that_a_segment_takes_a_few_round_trips() -> None:
    """Whatever rate was found: at 10 bytes per second, the kernel would wait for minutes."""
    pacing = Pacing()
    model = Model(lambda _now: NARROW)
    info = model.info()._replace(rtt=0.04, is_app_limited=False, unacked=20, notsent_bytes=400_000)
    pacing.rest(info, 0.0)
    for n, (rtt, rate) in enumerate([(0.04, 10), (0.3, 11), (0.3, 12), (0.04, 13), (0.04, 14)], 1):
        info = info._replace(rtt=rtt, delivery_rate=rate, segs_in=40 * n, bytes_acked=MSS * n)
        pace = pacing.look(info, LOOK_SECONDS * n)
        assert pace is None or pace >= MSS / rtt
    assert pacing.has_yielded
    assert (pacing.rest(info, 10.0) or 0.0) >= MSS / 0.04
    assert (pacing.look(info._replace(segs_in=1_000), 10.1) or 0.0) >= MSS / 0.04


def test_short_messages_find_a_wider_path_within_a_minute_or_so() -> None:
    """Each of them ends before its pace has risen, and begins anew at the rate that is known."""
    model = Model(lambda now: NARROW if now < 10 else BROAD)
    pacing = run(model, 8)
    model.unsent = 0
    while model.now < 12:
        model.step()
    seconds: list[float] = []
    while model.now < 2 * KNOWN_SECONDS:
        model.unsent = 20
        model.pace, begun = pacing.rest(model.info(), model.now), model.now
        while not model.is_idle:
            model.step()
            if round((model.now - begun) / STEP) % round(LOOK_SECONDS / STEP) == 0:
                model.pace = pacing.look(model.info(), model.now)
        seconds.append(model.now - begun)
        for _ in range(1_000):
            model.step()
    assert min(seconds[:10]) > 2 * max(seconds[-10:])


def test_a_wider_path_is_found_within_a_second() -> None:
    """By small steps first, and then by long ones."""
    model = Model(lambda now: NARROW if now < 10 else BROAD)
    pacing = run(model, 11)
    assert pacing.pace is not None
    assert pacing.pace > BROAD / 2


def test_without_a_sign_of_a_queue_the_rate_is_full() -> None:
    """As long as the path has never been full."""
    model = Model(lambda _now: 1e9)
    pacing = run(model, 0.2)
    assert pacing.pace is None
    assert not pacing.has_yielded
    assert pacing.look(model.info(), model.now) is None  # nothing was acknowledged since
