"""The model's prediction for one run of a scaled fleet: for its very messages and times on and off.

A run has few outages, whose lengths are random, so the mean prediction over all schedules may
differ from it by chance. This module runs the stages of `delivery` on the schedule of the run,
which leaves chance out.

The times that TCP and MQTT take are added: a client that reconnects needs round trips until
something can be sent, and a long message on an idle connection begins with TCP's initial window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from penstock.models.kernels.closed_forms import OnOff
from penstock.models.kernels.delivery_path import NETWORK, SUBSCRIBER, Path, Stage
from penstock.models.kernels.delivery_simulation import pass_stage
from penstock.models.kernels.peer_timeline import Timeline, Times
from penstock.models.planner.fleet import Devices, Fleet, LinkClass, Subscribers
from penstock.models.planner.load import PACKET_BYTES, is_idle_after, slow_start_seconds
from penstock.models.planner.scaled_fleet import ScaledFleet

SERVICE_RATE: Final = 1e6
"""The service rate of the stages. It has no effect, as each service is given."""
DEVICE_RTTS: Final = 2.0
"""The round trips from a device's reconnecting to its first message: the handshake of TCP, then
CONNECT and CONNACK."""
SUBSCRIBER_RTTS: Final = 1.5
"""The round trips from a subscriber's reconnecting to the broker's first message: the handshake,
and the way of CONNECT."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of one client in a run.

    Attributes:
        timeline: the times for which it is on; None for always.
        created: the times at which a device creates messages, ascending, seconds.
    """

    timeline: Timeline | None
    created: Times


class Arrivals(NamedTuple):
    """The messages that one subscriber gets of devices of a kind.

    Attributes:
        seconds: ``(n,) float64``: the seconds from creation to arrival of each message that
            arrives.
        last: the time at which the last one arrives, or the last one was created.
    """

    created: int
    seconds: Times
    last: float


def make_schedule(
    each: Devices | Subscribers, seconds: float, rng: np.random.Generator
) -> Schedule:
    """Draw the times for which a client is on, and those at which a device creates messages."""
    timeline = None
    if each.on_seconds is not None and each.off_seconds is not None:
        peer = OnOff(each.on_seconds, each.off_seconds)
        timeline = Timeline.draw(peer, seconds, rng)
    if isinstance(each, Subscribers):
        return Schedule(timeline, np.zeros(0))
    n_drawn = int(each.messages_per_second * seconds * 2) + 50
    created = np.cumsum(rng.exponential(1 / each.messages_per_second, n_drawn))
    return Schedule(timeline, created[created < seconds])


def replay(
    scaled: ScaledFleet, name: str, devices: Mapping[str, Sequence[Schedule]], subscriber: Schedule
) -> dict[str, Arrivals]:
    """Return the model's prediction for one subscriber and the devices whose messages it gets.

    All messages that its session keeps share its link, first come, first served, and so do all
    that it does not keep.

    Returns:
        The arrivals of each kind.
    """
    fleet = scaled.fleet
    who = fleet.subscribers[name]
    found: dict[str, Arrivals] = {}
    for qos_kept in (True, False):
        sources = [
            source
            for source in devices
            if (who.keeps_session and fleet.devices[source].qos > 0) is qos_kept
        ]
        if sources:
            at_broker = [_reach_broker(fleet, source, devices[source]) for source in sources]
            found |= _receive(fleet, name, dict(zip(sources, at_broker, strict=True)), subscriber)
    for source, schedules in devices.items():
        last = max((float(each.created[-1]) for each in schedules if len(each.created)), default=0)
        n_created = sum(len(each.created) for each in schedules)
        got = found[source]
        found[source] = Arrivals(n_created, got.seconds, max(last, got.last))
    return found


class _AtBroker(NamedTuple):
    """The messages of a kind that reach the broker, in no order: arrival and creation of each."""

    arrivals: Times
    born: Times


def _reach_broker(fleet: Fleet, source: str, devices: Sequence[Schedule]) -> _AtBroker:
    kind = fleet.devices[source]
    up, lifetime = fleet.links[kind.link], _lifetime(kind)
    n_bytes = kind.payload_bytes + PACKET_BYTES
    waits, loses = ((NETWORK,), ()) if kind.qos else ((), (NETWORK,))
    stage = Stage("device", SERVICE_RATE, waits, loses)
    path = Path(1.0, (stage,), {}, lifetime)
    slow_start = slow_start_seconds(n_bytes, up)
    arrivals, born = [np.zeros(0)], [np.zeros(0)]
    for device in devices:
        timelines = _later(NETWORK, device.timeline, DEVICE_RTTS * up.rtt_seconds)
        services = np.full(len(device.created), n_bytes / up.bytes_per_second)
        passed, departures, _ = pass_stage(
            path, stage, device.created, device.created + lifetime, timelines, services
        )
        arrivals.append(_arrivals(departures, services[passed], slow_start, up))
        born.append(device.created[passed])
    return _AtBroker(np.concatenate(arrivals), np.concatenate(born))


def _receive(
    fleet: Fleet, name: str, at_broker: Mapping[str, _AtBroker], subscriber: Schedule
) -> dict[str, Arrivals]:
    who, kinds = fleet.subscribers[name], [fleet.devices[source] for source in at_broker]
    down = fleet.links[who.link]
    n_bytes = [kind.payload_bytes + PACKET_BYTES for kind in kinds]
    counts = [len(each.arrivals) for each in at_broker.values()]
    arrivals = np.concatenate([each.arrivals for each in at_broker.values()])
    born = np.concatenate([each.born for each in at_broker.values()])
    of_kind = np.repeat(np.arange(len(kinds)), counts)
    order = np.argsort(arrivals, kind="stable")
    arrivals, born, of_kind = arrivals[order], born[order], of_kind[order]
    deadlines = born + np.array([_lifetime(kind) for kind in kinds])[of_kind]
    services = np.array(n_bytes)[of_kind] / down.bytes_per_second
    is_kept = who.keeps_session and kinds[0].qos > 0
    waits, loses = ((SUBSCRIBER,), ()) if is_kept else ((), (SUBSCRIBER,))
    stage = Stage("subscriber", SERVICE_RATE, waits, loses)
    # Lifetimes are in the deadlines.
    path = Path(1.0, (stage,), {}, math.inf)
    timelines = _later(SUBSCRIBER, subscriber.timeline, SUBSCRIBER_RTTS * down.rtt_seconds)
    passed, departures, _ = pass_stage(path, stage, arrivals, deadlines, timelines, services)
    slow_starts = np.array([slow_start_seconds(each, down) for each in n_bytes])[of_kind[passed]]
    at = _arrivals(departures, services[passed], slow_starts, down)
    is_prompt = at < deadlines[passed]
    seconds, of_kind = (at - born[passed])[is_prompt], of_kind[passed][is_prompt]
    last = float(at.max()) if len(at) else 0.0
    return {
        source: Arrivals(0, seconds[of_kind == number], last)
        for number, source in enumerate(at_broker)
    }


def _arrivals(
    departures: Times, services: Times, slow_starts: Times | float, link: LinkClass
) -> Times:
    """Return when messages of one connection arrive, which is in their order.

    Args:
        departures: the time at which the last byte of each is sent, ascending, seconds.
        services: the sending time of each, seconds.
        slow_starts: the further time of TCP's slow start for each where the connection is idle.
        link: the link of the connection.
    """
    idle_for = np.diff(departures, prepend=-np.inf) - services
    opening = np.where(idle_for > is_idle_after(link), slow_starts, 0.0)
    return np.maximum.accumulate(departures + link.rtt_seconds / 2 + opening)


def _lifetime(kind: Devices) -> float:
    return math.inf if kind.lifetime_seconds is None else kind.lifetime_seconds


def _later(name: str, timeline: Timeline | None, seconds: float) -> dict[str, Timeline]:
    """Return when a client is of use: some time after it comes back, if it is on for so long."""
    if timeline is None:
        return {}
    starts = np.where(timeline.starts > 0, timeline.starts + seconds, timeline.starts)
    is_long = starts < timeline.ends
    return {name: Timeline(starts[is_long], timeline.ends[is_long])}
