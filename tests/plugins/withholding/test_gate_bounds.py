"""Each policy on the real core and a virtual clock: when a message goes, whatever the path does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plugins.withholding.config import WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.virtual import VirtualBroker

D = 20.0
STEP = 0.25
"""Seconds of the virtual clock between two looks at what has come."""

WORST_RTT = 10.0
SIZE_RATIO = 10.0

BOUNDS = {
    "none": 0.0,
    "conservative": D,
    "probabilistic": D,
    "adaptive": D,
    # Equation 6: L_now - T_Q - threshold_l / 2, at the worst RTT of a large message.
    "historic": SIZE_RATIO * WORST_RTT / 2 - 1.0 - SIZE_RATIO * 0.5 / 2,
}
"""Seconds for which each policy may withhold a message, at T_Q 1 s and threshold_l 0.5 s."""

SIZES = {"small": 10, "large": 1000}

rtts = st.floats(0.01, WORST_RTT) | st.none()
messages = st.tuples(st.sampled_from("ab"), st.sampled_from(sorted(SIZES)), st.integers(0, 1))
events = st.lists(
    st.tuples(st.integers(0, 30).map(lambda n: n * STEP), rtts | messages), min_size=1, max_size=25
)


@dataclass
class Run:
    """One subscriber of a broker with a policy; all that came, and when.

    Attributes:
        came: (topic, number) in the order of arrival, and the second at which it was seen.
    """

    policy: str
    came: list[tuple[str, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = WithholdingConfig(
            policy=self.policy,  # type: ignore[arg-type]
            threshold_s=100,
            threshold_l=0.5,
            max_withhold=D,
            profile={100: 1.0, 1000: SIZE_RATIO},
        )
        self.broker = VirtualBroker(gate=WithholdingGate(config))
        self.publisher = self.broker.connect("sensor")
        self.subscriber = self.broker.connect("site-7")
        self.subscriber.subscribe("#", qos=1)

    def estimate(self, rtt: float | None) -> None:
        """Let a sampler have a new estimate, or know that it has none."""
        session = self.broker.session("site-7")
        session.link.rtt_latest = rtt
        session.link.rtt_updated_at = self.broker.now
        session.link_changed()
        self.broker.settle()
        self._look()

    def publish(self, number: int, topic: str, size: str, qos: int) -> None:
        """Publish a message that says its number."""
        payload = b"%d" % number
        self.publisher.publish(topic, payload.ljust(SIZES[size]), qos=qos, packet_id=number + 1)
        self._look()

    def advance(self, seconds: float) -> None:
        """Let time pass, and look often at what has come."""
        for _ in range(round(seconds / STEP)):
            self.broker.advance(STEP)
            self._look()

    def _look(self) -> None:
        packets: list[Any] = list(self.subscriber.inbox)
        for packet, payload in zip(packets, self.subscriber.acknowledge(), strict=True):
            self.came.append((packet.topic, int(payload), self.broker.now))


@pytest.mark.parametrize("policy", sorted(BOUNDS))
@given(events=events)
@settings(deadline=None)
def test_every_message_comes_once_in_its_order_and_by_its_time(
    policy: str, events: list[tuple[float, Any]]
) -> None:
    """A large one is withheld for as long as the policy may, and no message behind it for longer.

    Estimates come, change and stay away as they like; acknowledgements come at once.
    """
    run = Run(policy)
    sent: dict[int, tuple[str, str, float]] = {}
    for number, (gap, event) in enumerate(events):
        run.advance(gap)
        if isinstance(event, tuple):
            topic, size, qos = event
            sent[number] = (topic, size, run.broker.now)
            run.publish(number, topic, size, qos)
        else:
            run.estimate(event)
    bound = BOUNDS[policy]
    run.advance(bound + 2.0)
    assert sorted(number for _, number, _ in run.came) == sorted(sent)
    for topic in "ab":
        numbers = [number for came_on, number, _ in run.came if came_on == topic]
        assert numbers == sorted(numbers)
    has_large = dict.fromkeys("ab", False)
    for topic, number, at in sorted(run.came, key=lambda came: came[1]):
        sent_at = sent[number][2]
        has_large[topic] |= sent[number][1] == "large"
        # A message may be released a moment after its time, and is seen a step after that.
        assert at - sent_at <= (bound + 2 * STEP if has_large[topic] else 0.0)


@pytest.mark.parametrize("policy", ["conservative", "probabilistic"])
def test_message_is_withheld_until_d_and_not_for_a_moment_longer(policy: str) -> None:
    """In congestion that lasts, the deadline alone releases: after D, of each its own."""
    run = Run(policy)
    run.estimate(WORST_RTT)
    for number in range(3):
        run.publish(number, f"t{number}", "large", 0)
        run.advance(5.0)
    run.advance(2 * D)
    began_at = run.broker.now - 2 * D - 15.0
    assert [number for _, number, _ in run.came] == [0, 1, 2]
    for _, number, at in run.came:
        assert at - (began_at + 5.0 * number) == pytest.approx(D, abs=2 * STEP)


def test_historic_releases_when_the_wait_has_made_up_for_the_latency() -> None:
    """By hand: L_now = 10 * 2 / 2 s, less T_Q = 1 s and threshold_l / 2 = 2.5 s: after 6.5 s."""
    run = Run("historic")
    run.estimate(2.0)
    run.publish(0, "t", "large", 0)
    began_at = run.broker.now
    run.advance(10.0)
    [(_, _, at)] = run.came
    assert math.isclose(at - began_at, 6.5, abs_tol=2 * STEP)
