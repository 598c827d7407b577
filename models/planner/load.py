"""The load of a fleet on each stage, and the stages that cannot keep up.

The broker is one process whose work is done by one thread, so its stage is one core. Its queues are
served by that thread, too. A link is as fast as TCP makes it, over good and bad phases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.models.kernels.closed_forms import UnstableError, check_stable
from penstock.models.planner.costs import Costs
from penstock.models.planner.fleet import Devices, Fleet, LinkClass

BROKER: Final = "broker's core"
PACKET_BYTES: Final = 120
"""The bytes of a small message beside its payload: the headers of MQTT, TCP and IP, and its
acknowledgement."""
SEGMENT_BYTES: Final = 1448
INITIAL_WINDOW_BYTES: Final = 10 * SEGMENT_BYTES
"""TCP's initial window, which also applies after an idle time (RFC 6928, RFC 2861)."""
IDLE_SECONDS: Final = 0.2
"""Linux calls a connection idle after this time without a packet and a round trip: its
retransmission timeout where the RTT varies little."""
WARNING_RATIO: Final = 0.7
"""A stage is called nearly full from this utilisation on: a burst a third higher would be too
much."""
MOST_PROBE_RATIO: Final = 0.03
"""The share of the core that looking at subscribers' RTTs may take."""
PROBE_PERIODS: Final = (1.0, 2.0, 5.0)
"""The periods to choose from, seconds. An estimate of over 10 s does not count
(`max_age_seconds`)."""


class Flow(NamedTuple):
    """Messages to one subscriber from devices of a kind.

    Attributes:
        rate: the messages a second.
    """

    devices: str
    rate: float
    payload_bytes: int

    @property
    def bytes_per_second(self) -> float:
        """Return the bytes a second on the link, headers included."""
        return self.rate * (self.payload_bytes + PACKET_BYTES)


@dataclass(frozen=True, slots=True)
class LoadStage:
    """A stage that serves work, such as the broker's core or a link.

    Attributes:
        rate: the arriving work a second.
        most: the most work a second that it can do.
        work: the unit of the work: messages, bytes or processor seconds.
        source: the source of `most`.
    """

    name: str
    rate: float
    most: float
    work: str
    source: str

    @property
    def utilisation(self) -> float:
        """The work over what it can do, rho."""
        return self.rate / self.most


def flows(fleet: Fleet, subscribers: str) -> list[Flow]:
    """Return what one subscriber of a kind gets."""
    who = fleet.subscribers[subscribers]
    return [
        Flow(name, each.total_rate * who.share_ratio, each.payload_bytes)
        for name, each in fleet.sources(who).items()
    ]


def slow_start_seconds(n_bytes: int, link: LinkClass) -> float:
    """Return for how long TCP waits for acknowledgements while it sends a message after idling.

    The window doubles with each round trip, until it fills the link (RFC 5681, section 3.1).
    """
    waits, sent, window = 0.0, 0, INITIAL_WINDOW_BYTES
    while sent + window < n_bytes:
        idle = link.rtt_seconds - window / link.bytes_per_second
        if idle <= 0:
            break
        waits += idle
        sent += window
        window *= 2
    return waits


def is_idle_after(link: LinkClass) -> float:
    """Return the seconds without a packet after which TCP begins with its initial window again."""
    return IDLE_SECONDS + link.rtt_seconds


def idle_ratio(rate: float, link: LinkClass) -> float:
    """Return the share of messages that find their connection idle."""
    return math.exp(-rate * is_idle_after(link))


class BrokerWork(NamedTuple):
    """A kind of work that takes the broker's core.

    Attributes:
        rate: the number of times that the work occurs, a second.
        seconds: the processor time of each while the broker is busy.
        alone_seconds: the further processor time of each while the broker is not busy.
    """

    name: str
    rate: float
    seconds: float
    alone_seconds: float

    @property
    def ratio(self) -> float:
        """Share of one core while the broker is busy."""
        return self.rate * self.seconds

    @property
    def alone_ratio(self) -> float:
        """Share of one core while it is not."""
        return self.rate * (self.seconds + self.alone_seconds)


def broker_work(fleet: Fleet, costs: Costs) -> list[BrokerWork]:
    """Return what the broker does, without looks at RTTs."""
    found = []
    for name, each in fleet.devices.items():
        one = costs.receive_acknowledged if each.qos else costs.receive
        one += each.payload_bytes * costs.receive_byte
        alone = costs.alone if each.qos else costs.alone_qos_0
        if each.qos:
            keepers = [who for who in fleet.subscribers.values() if who.keeps_session]
            sessions = sum(who.count * who.share_ratio for who in keepers if name in who.devices)
            alone += min(1.0, sessions) * costs.alone_commit  # of what some session keeps
        found.append(BrokerWork(f"receive from {name}", each.total_rate, one, alone))
    for name, who in fleet.subscribers.items():
        for source, each in fleet.sources(who).items():
            one = costs.deliver_acknowledged if each.qos else costs.deliver
            one += each.payload_bytes * costs.deliver_byte
            alone = costs.alone_delivery
            if who.keeps_session and each.qos:
                one += costs.keep
                alone += (
                    costs.alone_commit
                )  # of its PUBACK, which each client sends at its own time
            rate = each.total_rate * who.share_ratio * who.count
            found.append(BrokerWork(f"deliver {source} to {name}", rate, one, alone))
    for name, back_end in fleet.back_ends.items():
        sources = fleet.sources(back_end).values()
        rate = sum(each.total_rate for each in sources)
        n_bytes = sum(each.total_rate * each.payload_bytes for each in sources)
        one = costs.enqueue + costs.dequeue / back_end.success_ratio
        one += n_bytes / rate * costs.deliver_byte
        found.append(BrokerWork(f"queue {name}", rate, one, costs.alone_commit))
    return found


def probe_period(fleet: Fleet, costs: Costs) -> float:
    """Return the shortest period, seconds, in which looks at all subscribers cost little."""
    for period in PROBE_PERIODS:
        if fleet.n_subscribers * costs.look / period <= MOST_PROBE_RATIO:
            return period
    return PROBE_PERIODS[-1]


def probing(fleet: Fleet, costs: Costs) -> BrokerWork:
    """Return the work of looking at each subscriber's RTT; the broker has none of publishers."""
    return BrokerWork(
        "look at RTTs", fleet.n_subscribers / probe_period(fleet, costs), costs.look, 0.0
    )


def core_ratio(fleet: Fleet, costs: Costs) -> float:
    """Return the share of one core that the broker takes, at most.

    Each message is taken to find it idle. The busier it is, the fewer do.
    """
    work = (*broker_work(fleet, costs), probing(fleet, costs))
    return min(1.0, costs.idle + sum(each.alone_ratio for each in work))


def stages(fleet: Fleet, costs: Costs) -> list[LoadStage]:
    """Return every stage, the fullest first."""
    work = (*broker_work(fleet, costs), probing(fleet, costs))
    used, fullest = sum(each.ratio for each in work), max(work, key=lambda each: each.ratio)
    source = f"most for {fullest.name}, {fullest.ratio / used:.0%}"
    found = [LoadStage(BROKER, used, 1.0, "processor seconds", source)]
    found += [_uplink(name, each, fleet) for name, each in fleet.devices.items()]
    for name, who in fleet.subscribers.items():
        rate = sum(each.bytes_per_second for each in flows(fleet, name))
        most = fleet.links[who.link].mean_rate
        if who.on_seconds is not None and who.off_seconds is not None:
            most *= who.on_seconds / (who.on_seconds + who.off_seconds)
        found.append(LoadStage(f"link of {name}", rate, most, "bytes", f"link {who.link}"))
    for name, back_end in fleet.back_ends.items():
        rate = sum(each.total_rate for each in fleet.sources(back_end).values())
        most = back_end.receivers / back_end.seconds_per_message
        offered = rate / back_end.success_ratio
        source = f"{back_end.receivers} receivers, {back_end.seconds_per_message:g} s a message"
        found.append(LoadStage(f"receivers of {name}", offered, most, "messages", source))
    return sorted(found, key=lambda each: -each.utilisation)


def _uplink(name: str, each: Devices, fleet: Fleet) -> LoadStage:
    rate = each.messages_per_second * (each.payload_bytes + PACKET_BYTES)
    most = fleet.links[each.link].mean_rate
    if each.on_seconds is not None and each.off_seconds is not None:
        most *= each.on_seconds / (each.on_seconds + each.off_seconds)
    return LoadStage(f"link of {name}", rate, most, "bytes", f"link {each.link}")


def check(found: list[LoadStage]) -> None:
    """Check that each stage keeps up.

    Raises:
        UnstableError: with a line for each that does not.
    """
    problems = list(_overflows(found))
    if problems:
        raise UnstableError("\n".join(problems))


def _overflows(found: list[LoadStage]) -> Iterator[str]:
    for each in found:
        try:
            check_stable(each.name, each.rate, each.most, each.work)
        except UnstableError as error:
            yield f"{error} ({each.source})"


def memory(fleet: Fleet, costs: Costs) -> dict[str, float]:
    """Return bytes of memory without messages that wait."""
    n_subscriptions = sum(each.count * len(each.devices) for each in fleet.subscribers.values())
    return {
        "broker": costs.base_bytes,
        f"{fleet.n_clients:,} connections": fleet.n_clients * costs.connection_bytes,
        f"{n_subscriptions:,} subscriptions": n_subscriptions * costs.subscription_bytes,
    }
