"""A fleet scaled down so that one machine can run it within a minute.

Times on and off, lifetimes and the times between messages become shorter by the same factor. So the
shares of messages that expire, that find a subscriber off and that wait stay the same. Back ends
are left out. Where the run has emulated links, they are the fleet's in their good phases; otherwise
the links are those of this machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.models.planner.fleet import Devices, Fleet, LinkClass, Subscribers

LINK: Final = "loopback"
MOST_DEVICES: Final = 40
LEAST_SUBSCRIBERS: Final = 8
"""The least number of subscribers, which are the independent units of the measured figures."""
MOST_SUBSCRIBERS: Final = 16
MOST_RATE: Final = 60.0
"""The most messages a second that the devices of a kind send."""
LEAST_RATE: Final = 5.0
"""The least messages a second that one subscriber gets of each kind."""
LEAST_PAYLOAD_BYTES: Final = 20
"""The least payload, which holds the head that identifies a message."""
MOST_PAYLOAD_BYTES: Final = 100_000
MOST_LINK_RATIO: Final = 0.3
"""The share of a link that messages of a kind may take."""
LEAST_LIFETIME: Final = 4.0
"""The least lifetime, seconds. MQTT has whole seconds, and half of one must weigh little."""
CYCLES: Final = 3.0
"""How many cycles of the slowest peer a run has, if lifetimes allow it."""


@dataclass(frozen=True, slots=True)
class ScaledFleet:
    """A fleet for a run.

    Attributes:
        picked: the number of devices whose messages one subscriber gets, by the names of both
            kinds.
        has_links: whether clients are to have the fleet's links, in their good phases.
    """

    fleet: Fleet
    time_ratio: float
    picked: dict[tuple[str, str], int]
    has_links: bool = False


def scale(fleet: Fleet, seconds: float, *, has_links: bool = False) -> ScaledFleet:
    """Return a fleet for a run of some seconds.

    Each subscriber gets messages of some devices of each kind, in the share that the least of its
    kinds needs; so one share holds for all of them.
    """
    time_ratio = _time_ratio(fleet, seconds)
    devices = {name: _devices(each, time_ratio) for name, each in fleet.devices.items()}
    subscribers = {}
    picked = {}
    for name, who in fleet.subscribers.items():
        share = max(LEAST_RATE / devices[source].total_rate for source in who.devices)
        share = min(1.0, max(share, who.share_ratio))
        # A share that is one of whole devices for each kind: of all if they are few.
        numbers = [math.ceil(share * devices[source].count) for source in who.devices]
        counts = [devices[source].count for source in who.devices]
        ratios = {number / count for number, count in zip(numbers, counts, strict=True)}
        ratio = ratios.pop() if len(ratios) == 1 else 1.0
        for source in who.devices:
            picked[source, name] = round(ratio * devices[source].count)
        subscribers[name] = replace(
            who,
            count=min(MOST_SUBSCRIBERS, max(LEAST_SUBSCRIBERS, who.count)),
            link=who.link if has_links else LINK,
            share_ratio=ratio,
            on_seconds=_shorter(who.on_seconds, time_ratio),
            off_seconds=_shorter(who.off_seconds, time_ratio),
        )
    links: Mapping[str, LinkClass] = {LINK: LinkClass(0.001, 100e6)}
    if has_links:
        links = {
            name: LinkClass(each.rtt_seconds, each.bytes_per_second)
            for name, each in fleet.links.items()
        }
        devices = {
            name: replace(each, link=fleet.devices[name].link) for name, each in devices.items()
        }
    scaled = replace(fleet, links=links, devices=devices, subscribers=subscribers, back_ends={})
    fitting = {name: _fitting(scaled, name) for name in devices}
    return ScaledFleet(replace(scaled, devices=fitting), time_ratio, picked, has_links)


def _fitting(fleet: Fleet, name: str) -> Devices:
    """Return devices whose messages take a part of each link at most: the run has more of them."""
    each = fleet.devices[name]
    most = fleet.links[each.link].bytes_per_second / each.messages_per_second
    for who in fleet.subscribers.values():
        if name in who.devices:
            rate = each.total_rate * who.share_ratio
            most = min(most, fleet.links[who.link].bytes_per_second / rate)
    n_bytes = max(LEAST_PAYLOAD_BYTES, int(MOST_LINK_RATIO * most))
    return replace(each, payload_bytes=min(each.payload_bytes, n_bytes))


def _time_ratio(fleet: Fleet, seconds: float) -> float:
    peers: list[Devices | Subscribers] = [*fleet.devices.values(), *fleet.subscribers.values()]
    cycles = [
        each.on_seconds + each.off_seconds
        for each in peers
        if each.on_seconds is not None and each.off_seconds is not None
    ]
    lifetimes = [
        each.lifetime_seconds
        for each in fleet.devices.values()
        if each.lifetime_seconds is not None
    ]
    wanted = CYCLES * max(cycles, default=0.0) / seconds
    return max(1.0, min(wanted, min(lifetimes, default=math.inf) / LEAST_LIFETIME))


def _devices(each: Devices, time_ratio: float) -> Devices:
    count = min(MOST_DEVICES, each.count)
    rate = min(MOST_RATE, max(LEAST_RATE, each.total_rate * time_ratio))
    lifetime = each.lifetime_seconds
    return replace(
        each,
        count=count,
        messages_per_second=rate / count,
        payload_bytes=min(MOST_PAYLOAD_BYTES, max(LEAST_PAYLOAD_BYTES, each.payload_bytes)),
        link=LINK,
        qos=1 if each.qos else 0,
        lifetime_seconds=None if lifetime is None else float(round(lifetime / time_ratio)),
        on_seconds=_shorter(each.on_seconds, time_ratio),
        off_seconds=_shorter(each.off_seconds, time_ratio),
    )


def _shorter(seconds: float | None, time_ratio: float) -> float | None:
    return None if seconds is None else seconds / time_ratio
