"""A plan: the predictions for a fleet, and the settings that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.models.planner import back_ends, delivery, link_policies, load
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import Fleet
from penstock.plugins.withholding.config import PolicyName

SPARE_CONNECTIONS: Final = 1.25
"""The ratio of allowed connections to the fleet's: a client that reconnects may be counted
twice."""
LEAST_SPARE_CONNECTIONS: Final = 10
"""The least number of spare connections, for a small fleet and the people who inspect it."""
QUEUE_SECONDS: Final = 3600.0
"""How long a queue keeps messages while its back end is away."""
REFERENCE_BYTES: Final = 144
"""The memory of each session that a message waits for (`total_queued_bytes` in the policy file)."""
READ_AHEAD_BYTES: Final = 64 * 2**20
"""The payload bytes that the queue reads ahead for receivers by default."""
LEAST_QUEUED_MESSAGES: Final = 1000
LEAST_QUEUED_BYTES: Final = 2**20
MEMORY_RATIO: Final = 0.8
"""Payloads are to wait on the disk above this share of the machine's memory."""


class BackEndPlan(NamedTuple):
    """The results of one back end."""

    receivers: Sequence[back_ends.ReceiverResult]
    strategies: Sequence[back_ends.StrategyResult]


@dataclass(frozen=True, slots=True)
class Plan:
    """The predictions for a fleet.

    Attributes:
        stages: the fullest first.
        deliveries: the deliveries by devices and subscribers of a kind: as in the file, then the
            alternatives.
        held: the policies that were compared for subscribers whose links have bad phases and who
            get messages of two sizes.
        two_lanes: subscribers of `held` for whom a second connection is shown to give small
            messages a lower p99.
    """

    fleet: Fleet
    costs: Costs
    stages: Sequence[load.LoadStage]
    deliveries: Mapping[tuple[str, str], Sequence[delivery.Delivery]]
    held: Mapping[str, link_policies.PolicyResults]
    policy: PolicyName
    two_lanes: AbstractSet[str]
    queues: Mapping[str, BackEndPlan]

    @property
    def sizes(self) -> link_policies.SizeBorder:
        """The border between small and large messages."""
        return link_policies.threshold(self.fleet)

    @property
    def bad_seconds(self) -> float | None:
        """Mean length of bad phases of the subscribers that were simulated, the longest."""
        found = [each.case.mean_seconds[1] for each in self.held.values()]
        return max(found, default=None)

    @property
    def probe_period(self) -> float:
        """T_Q, seconds."""
        return load.probe_period(self.fleet, self.costs)

    @property
    def core_ratio(self) -> float:
        """Share of one core that the broker is to be busy with: rho."""
        return next(each.utilisation for each in self.stages if each.name == load.BROKER)

    @property
    def connections(self) -> int:
        """The number of connections that the broker is to allow."""
        n_clients = self.fleet.n_clients
        spare = delivery.round_up(SPARE_CONNECTIONS * n_clients)
        return max(spare, n_clients + LEAST_SPARE_CONNECTIONS)

    @property
    def queued_messages(self) -> int:
        """The number of messages that may wait for one session."""
        return max(LEAST_QUEUED_MESSAGES, self.waiting_messages)

    @property
    def waiting_messages(self) -> int:
        """The messages that are predicted to wait for one session, at most."""
        return delivery.round_up(max(self._waiting(0), default=0))

    @property
    def queued_bytes(self) -> int:
        """The payload bytes that may wait for one session."""
        return max(LEAST_QUEUED_BYTES, self.waiting_bytes)

    @property
    def waiting_bytes(self) -> int:
        """The payload bytes that are predicted to wait for one session."""
        return delivery.round_up(max(self._waiting(1), default=0))

    def _waiting(self, what: int) -> Iterator[float]:
        """Yield messages or bytes that wait for one subscriber of each kind."""
        for name in self.fleet.subscribers:
            found = [each[0] for (_, who), each in self.deliveries.items() if who == name]
            yield sum((each.backlog_messages, each.backlog_bytes)[what] for each in found)

    def memory(self) -> dict[str, float]:
        """Return bytes of memory by what takes them, while all subscribers are off at once."""
        found = load.memory(self.fleet, self.costs)
        for (source, name), given in self.deliveries.items():
            each, who = given[0], self.fleet.subscribers[name]
            n_references = each.backlog_messages * who.count
            # Of one message there is one payload, however many sessions it waits for.
            n_payloads = n_references / max(1.0, who.count * who.share_ratio)
            payload = each.variant.devices.payload_bytes
            if n_references:
                n_bytes = n_payloads * (payload + self.costs.queued_bytes)
                n_bytes += n_references * REFERENCE_BYTES
                found[f"{source} that wait for {name}, all off at once"] = n_bytes
        if self.queues:
            found["payloads that queues read ahead"] = READ_AHEAD_BYTES
        return found

    @property
    def spills(self) -> bool:
        """Return whether waiting payloads are to be moved to the disk."""
        return sum(self.memory().values()) > MEMORY_RATIO * self.fleet.machine.memory_bytes

    @property
    def least_memory(self) -> float:
        """Bytes of memory that the machine needs wherever payloads wait."""
        fixed = sum(load.memory(self.fleet, self.costs).values())
        return (fixed + (READ_AHEAD_BYTES if self.queues else 0)) / MEMORY_RATIO

    def queue_limits(self, name: str) -> tuple[int, float]:
        """Return messages that a queue keeps, and their bytes on the disk."""
        back_end = self.fleet.back_ends[name]
        sources = self.fleet.sources(back_end).values()
        n_messages = delivery.round_up(QUEUE_SECONDS * back_ends.arrival_rate(self.fleet, back_end))
        n_bytes = sum(
            each.total_rate * (each.payload_bytes + load.PACKET_BYTES) for each in sources
        )
        return n_messages, QUEUE_SECONDS * n_bytes

    def scaled(self) -> Iterator[str]:
        """Yield what was simulated in part, in words."""
        for (source, name), given in self.deliveries.items():
            ratio = given[0].simulated_ratio
            if ratio < 1:
                share = f"{ratio:.0%} of the" if ratio > 2 / 3 else f"1 of {1 / ratio:,.0f}"
                yield (
                    f"{source} to {name}: {share} messages, so that peers go on and off often"
                    " enough; the others take their share of the link"
                )
        for name, held in self.held.items():
            yield (
                f"large messages of {name}: 1 of {self.fleet.subscribers[name].count:,}"
                f" subscribers, {len(held.by_policy[link_policies.NONE])} times for"
                f" {held.seconds:,.0f} s"
            )
            if held.small_ratio < 1:
                yield (
                    f"large messages of {name}: 1 of {1 / held.small_ratio:,.0f} small messages,"
                    " each as long as so many"
                )
        for name, queue in self.queues.items():
            yield f"back end {name}: {queue.receivers[0].seconds:,.0f} s of its arrivals, 6 times"


def make_plan(fleet: Fleet, tell: Callable[[str], None]) -> Plan:
    """Make the predictions for a fleet.

    Raises:
        UnstableError: with a line for each stage that overflows.
    """
    costs = Costs().faster(fleet.machine.speed_ratio)
    stages = load.stages(fleet, costs)
    load.check(stages)
    deliveries = {}
    for name, who in fleet.subscribers.items():
        for source in who.devices:
            tell(f"{source} to {name}")
            deliveries[source, name] = [
                delivery.predict(fleet, costs, source, name, variant)
                for variant in delivery.variants(fleet, source, name)
            ]
    held = {}
    threshold_s = link_policies.threshold(fleet).threshold_s
    for name in fleet.subscribers:
        case = link_policies.make_case(fleet, name, threshold_s)
        if case is not None and threshold_s is not None:
            held[name] = link_policies.simulate_policies(
                *case, threshold_s, load.probe_period(fleet, costs), tell
            )
    policy = link_policies.choose(list(held.values()))
    two_lanes = {
        name
        for name, each in held.items()
        if each.over(link_policies.TWO_LANES, policy, 0.99).high < 1
    }
    queues = {}
    for name in fleet.back_ends:
        tell(f"back end {name}")
        queues[name] = BackEndPlan(
            [
                back_ends.predict(fleet, costs, name, count)
                for count in back_ends.counts(fleet, name)
            ],
            back_ends.strategies(fleet, costs, name),
        )
    return Plan(fleet, costs, stages, deliveries, held, policy, two_lanes, queues)
