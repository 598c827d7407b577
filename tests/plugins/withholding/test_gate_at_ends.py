"""Each policy on a durable session, whose client and broker come and go."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock.plugins.withholding.config import Ordering, PolicyName, WithholdingConfig
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.effort import examples
from tests.helpers.held_machine import LARGE, HeldMachine

POLICIES: list[PolicyName] = ["none", "conservative", "probabilistic", "historic", "adaptive"]
ORDERINGS: list[Ordering] = ["topic", "none"]
GOOD_RTT = 0.1
BAD_RTT = 8.0


class PolicyMachine(HeldMachine):
    """No policy loses a message, delivers one of QoS 2 twice, or breaks a topic's order."""

    large_bytes = 20_000

    @initialize(
        policy=st.sampled_from(POLICIES),
        ordering=st.sampled_from(ORDERINGS),
        priority=st.sampled_from([[], ["b"]]),
        version=st.sampled_from([4, 5]),
    )
    def make(
        self, policy: PolicyName, ordering: Ordering, priority: list[str], version: int
    ) -> None:
        """On a path that is bad at first."""
        config = WithholdingConfig(
            policy=policy,
            ordering=ordering,
            priority=priority,
            threshold_s=LARGE,
            threshold_l=0.5,
            profile={100: 1.0, LARGE: 10.0},
        )
        self.begin(WithholdingGate(config), version)
        self.turn(is_good=False)

    @rule(n_bytes=st.integers(1, 16_000), seconds=st.floats(3, 12))
    def stall(self, n_bytes: int, seconds: float) -> None:
        """The path turns bad while a large message is on its way, with a small one behind it."""
        self.turn(is_good=True)
        self.clog(n_bytes)
        self.publish("a", 2, is_large=True)
        self.publish("b", 2, is_large=False)
        self.turn(is_good=False)
        self.broker.advance(seconds)

    def turn(self, *, is_good: bool) -> None:
        """Let a sampler have an estimate."""
        session = self.broker.session("s")
        session.link.rtt_latest = GOOD_RTT if is_good else BAD_RTT
        session.link.rtt_updated_at = self.broker.now
        session.link_changed()
        self.broker.settle()


TestPolicyMachine = PolicyMachine.TestCase
TestPolicyMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
