"""The effect of each withholding policy on small and large messages of one subscriber.

`penstock.models.kernels.link_simulation` runs the broker's own gate and policies, with small and
large messages on one connection whose link is good and bad in turn. The planner runs it where a
subscriber's link has bad phases and its messages are of two sizes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.models.kernels.link_simulation import (
    Latencies,
    LinkChange,
    LinkState,
    Traffic,
    in_turn,
    simulate,
)
from penstock.models.planner.fleet import Fleet
from penstock.models.planner.load import Flow, flows
from penstock.netem.figures.estimates import (
    Estimate,
    bootstrap,
    pooled_mean,
    pooled_quantile,
    ratio,
)
from penstock.plugins.withholding.config import (
    DEFAULT_CONGESTION_RATE,
    DEFAULT_MAX_WITHHOLD,
    PolicyName,
    WithholdingConfig,
)
from penstock.plugins.withholding.gate import WithholdingGate

NONE: Final[PolicyName] = "none"
DEFAULT: Final[PolicyName] = "adaptive"
"""The product's default policy."""
POLICIES: Final[tuple[PolicyName, ...]] = (
    NONE,
    "conservative",
    "probabilistic",
    "historic",
    "adaptive",
)
TWO_LANES: Final = "none, two connections"
DEFAULT_THRESHOLD_S: Final = 10_000
"""The default threshold_s of the product and of paper 002, bytes."""
LEAST_STEP: Final = 4.0
"""Two sizes count as small and large if the next size is this many times larger."""
MOST_LARGE_RATIO: Final = 1.1
"""A policy is chosen if the mean latency of large messages is at most this ratio to that without a
policy."""
MOST_SMALL_RATE: Final = 20.0
"""The most small messages a second that are simulated: more cost time and change the result
little."""
LINKS: Final = 8
CYCLES: Final = 8
LEAST_SECONDS: Final = 300.0
MOST_SECONDS: Final = 600.0
D_OVER_MEAN: Final = DEFAULT_MAX_WITHHOLD * DEFAULT_CONGESTION_RATE
"""D over the mean length of congestion: 20 s over 17.5 s in paper 002."""


class LinkCase(NamedTuple):
    """The link and the traffic of one subscriber.

    Attributes:
        good: the link's good state, in which it begins.
        mean_seconds: the mean lengths of good and bad phases.
    """

    about: str
    good: LinkState
    bad: LinkState
    mean_seconds: tuple[float, float]
    traffic: Traffic


class SizeBorder(NamedTuple):
    """The border between small and large messages.

    Attributes:
        threshold_s: payload bytes above which a message is large; None: all are alike.
    """

    threshold_s: int | None
    why: str


def threshold(fleet: Fleet) -> SizeBorder:
    """Choose threshold_s: the product's if it parts the fleet's sizes, or the widest gap."""
    sizes = sorted({each.payload_bytes for each in fleet.devices.values()})
    if sizes[0] <= DEFAULT_THRESHOLD_S < sizes[-1]:
        return SizeBorder(DEFAULT_THRESHOLD_S, "it parts the fleet's sizes")
    gaps = [(above / below, below, above) for below, above in pairwise(sizes)]
    step, below, above = max(gaps, default=(1.0, 0, 0))
    if step < LEAST_STEP:
        return SizeBorder(None, "all messages are of about one size")
    return SizeBorder(
        round(math.sqrt(below * above)), f"in the gap from {below:,} to {above:,} bytes"
    )


SHARES: Final = (0.5, 0.9, 0.99)
"""The quantiles of the latency of small messages that the tables show."""


class PolicyLatencies(NamedTuple):
    """The latencies under a policy.

    Attributes:
        small: quantiles of the latency of small messages, seconds, by share.
        large: the mean latency of large messages, seconds.
    """

    small: Mapping[float, Estimate]
    large: Estimate


def figures_of(found: Sequence[Latencies]) -> PolicyLatencies:
    """Return the figures of some links, with intervals over them."""
    small, large = [each.small for each in found], [each.large for each in found]
    return PolicyLatencies(
        {share: bootstrap(len(found), pooled_quantile(small, share)) for share in SHARES},
        bootstrap(len(found), pooled_mean(large)),
    )


@dataclass(frozen=True, slots=True)
class PolicyResults:
    """The results of all policies for subscribers of a kind.

    Attributes:
        by_policy: the latencies on each link, by policy or `TWO_LANES`.
        small_ratio: share of the small messages that was simulated.
    """

    case: LinkCase
    by_policy: Mapping[str, Sequence[Latencies]]
    figures: Mapping[str, PolicyLatencies]
    small_ratio: float
    seconds: float

    def small(self, policy: str, share: float) -> Estimate:
        """Return the quantile for one of `SHARES` of the latency of small messages, seconds."""
        return self.figures[policy].small[share]

    def over(self, policy: str, other: str, share: float = 0.9) -> Estimate:
        """Return a quantile of small messages over that under another policy, of the same links."""
        one, two = (
            pooled_quantile([each.small for each in self.by_policy[name]], share)
            for name in (policy, other)
        )
        return bootstrap(len(self.by_policy[policy]), ratio(one, two))

    def large(self, policy: str) -> Estimate:
        """Return the mean latency of large messages, seconds."""
        return self.figures[policy].large


def make_case(fleet: Fleet, name: str, threshold_s: int | None) -> tuple[LinkCase, float] | None:
    """Return the case of one subscriber, and the share of its small messages that is simulated.

    Returns:
        None where the link has no bad phases, or no messages of two sizes.
    """
    link = fleet.links[fleet.subscribers[name].link]
    if link.bad is None or link.good_seconds is None or link.bad_seconds is None:
        return None
    if threshold_s is None:
        return None
    got = flows(fleet, name)
    small = [each for each in got if each.payload_bytes <= threshold_s]
    large = [each for each in got if each.payload_bytes > threshold_s]
    if not small or not large:
        return None
    small_rate = sum(each.rate for each in small)
    simulated_rate = min(small_rate, MOST_SMALL_RATE)
    case = LinkCase(
        name,
        LinkState(link.bytes_per_second, link.rtt_seconds),
        LinkState(link.bad.bytes_per_second, link.bad.rtt_seconds, link.bad.loss_ratio),
        (link.good_seconds, link.bad_seconds),
        Traffic(
            1 / simulated_rate,
            1 / sum(each.rate for each in large),
            # Fewer and longer ones take the same of the link.
            small_bytes=round(_mean_bytes(small) * small_rate / simulated_rate),
            large_bytes=round(_mean_bytes(large)),
            is_random=True,
        ),
    )
    return case, simulated_rate / small_rate


def _mean_bytes(got: Sequence[Flow]) -> float:
    return sum(each.bytes_per_second for each in got) / sum(each.rate for each in got)


def config(policy: PolicyName, bad_seconds: float, threshold_s: int) -> WithholdingConfig:
    """Return the settings of a policy: D and lambda from the mean length of bad phases."""
    return WithholdingConfig(
        policy=policy,
        threshold_s=threshold_s,
        max_withhold=round(D_OVER_MEAN * bad_seconds, 1),
        congestion_rate=1 / bad_seconds,
    )


def simulate_policies(
    case: LinkCase,
    small_ratio: float,
    threshold_s: int,
    probe_period: float,
    tell: Callable[[str], None],
) -> PolicyResults:
    """Run every policy on the same links, and small messages on a connection of their own."""
    seconds = min(max(CYCLES * sum(case.mean_seconds), LEAST_SECONDS), MOST_SECONDS)
    bad_seconds = case.mean_seconds[1]

    def run(traffic: Traffic, policy: PolicyName) -> list[Latencies]:
        tell(f"{case.about}: {policy}")
        settings = config(policy, bad_seconds, min(threshold_s, traffic.large_bytes - 1))
        return [
            simulate(
                _changes(case, link, seconds),
                lambda _: WithholdingGate(settings),
                traffic,
                link,
                seconds,
                probe_period=probe_period,
            )
            for link in range(LINKS)
        ]

    found: dict[str, Sequence[Latencies]] = {name: run(case.traffic, name) for name in POLICIES}
    small = run(case.traffic._replace(large_seconds=math.inf), NONE)
    large = run(case.traffic._replace(small_seconds=math.inf), NONE)
    found[TWO_LANES] = [
        Latencies(one.small, other.large) for one, other in zip(small, large, strict=True)
    ]
    figures = {name: figures_of(each) for name, each in found.items()}
    return PolicyResults(case, found, figures, small_ratio, seconds)


def _changes(case: LinkCase, seed: int, seconds: float) -> list[LinkChange]:
    rng = random.Random(f"{case.about} {seed}")  # noqa: S311 (a simulation)
    good_seconds, bad_seconds = case.mean_seconds
    return in_turn(
        rng,
        seconds,
        lambda at, _end: [LinkChange(at, case.bad)],
        good=case.good,
        mean_good_seconds=good_seconds,
        mean_bad_seconds=bad_seconds,
    )


def choose(found: Sequence[PolicyResults]) -> PolicyName:
    """Choose a policy for all subscribers, as the policy file has one.

    It is the product's default, which needs no parameters, unless another one is shown to give
    small messages a lower p90 and keeps the mean of large ones within `MOST_LARGE_RATIO` of that
    without a policy, for every kind of subscribers.
    """
    better = {
        name: math.fsum(each.over(name, DEFAULT).value for each in found)
        for name in POLICIES
        if found
        and all(each.over(name, DEFAULT).high < 1 for each in found)
        and all(
            each.large(name).value <= MOST_LARGE_RATIO * each.large(NONE).value for each in found
        )
    }
    return min(better, key=better.__getitem__, default=DEFAULT)
