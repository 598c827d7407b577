"""The independent units of a run: groups of subscribers that share random values. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.mqtt.topics import matches
from penstock.netem.runs.scenario import Publisher, Scenario, Subscriber

SEED_UNIT = "seed"
"""The name of the unit that is a whole run, where `Measurements.unit` is ``seed``."""


def units(scenario: Scenario) -> dict[str, str]:
    """Return the unit of each subscriber of a scenario, by its name there.

    A unit is named after a link of the topology. Two subscribers belong to one unit if a random
    value affects both:

    * their ways to the broker share a link;
    * both get the messages of one publisher's stream, whose phase is one draw, or those of
      publishers whose ways share a link with each other.

    A subscriber on the broker's own host that shares nothing is a unit of its own name.
    """
    if scenario.measurements.unit == "seed":
        return dict.fromkeys(scenario.subscribers, SEED_UNIT)
    shared = _Shared()
    subscribers = scenario.subscribers.items()
    ways = {name: [*_way(scenario, each), name] for name, each in subscribers}
    for way in ways.values():
        shared.join(way)
    for publisher in scenario.publishers.values():
        way = _way(scenario, publisher)
        for topic in scenario.topics_of(publisher):
            getting = [
                name
                for name, each in subscribers
                if any(matches(topic_filter, topic) for topic_filter in each.filters)
            ]
            shared.join([*way, *getting] if getting else [])
    order = [*(link.name for link in scenario.topology.links), *scenario.subscribers]
    return {name: min(shared.with_it(name), key=order.index) for name in ways}


def _way(scenario: Scenario, client: Subscriber | Publisher) -> list[str]:
    links = scenario.topology.way(scenario.broker_host, client.host) or []
    return [link.name for link in links]


class _Shared:
    """Sets of links and subscribers that share something."""

    def __init__(self) -> None:
        self._sets: dict[str, set[str]] = {}

    def join(self, names: Iterable[str]) -> None:
        """Note that all of these share something."""
        every = set().union(*map(self.with_it, names))
        for name in every:
            self._sets[name] = every

    def with_it(self, name: str) -> set[str]:
        """Return a link or subscriber and all that share something with it."""
        return self._sets.get(name, {name})
