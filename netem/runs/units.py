"""Which subscribers share their luck: the independent units of a run with one seed. Pure."""

from __future__ import annotations

from penstock.netem.runs.scenario import Scenario


def units(scenario: Scenario) -> dict[str, str]:
    """Return the unit of each subscriber of a scenario, by its name there.

    A unit is a link, named as in the topology. Two subscribers belong to one unit if their ways to
    the broker share a link, or have links whose random times are common, or links that a bulk flow
    joins. A subscriber on the broker's own host is a unit of its own name.
    """
    shared = _Shared()
    common = [each.link for each in scenario.impairments if each.common_times]
    for link in common:
        shared.join(common[0], link)
    ways = {
        name: [
            link.name for link in scenario.topology.way(scenario.broker_host, subscriber.host) or []
        ]
        for name, subscriber in scenario.subscribers.items()
    }
    for way in ways.values():
        for link in way:
            shared.join(way[0], link)
    for flow in scenario.bulk_flows.values():
        links = scenario.topology.way(*flow.between) or []
        for plan in links:
            shared.join(links[0].name, plan.name)
    order = [link.name for link in scenario.topology.links]
    return {
        name: min(shared.with_it(way[0]), key=order.index) if way else name
        for name, way in ways.items()
    }


class _Shared:
    """Sets of links that share something."""

    def __init__(self) -> None:
        self._sets: dict[str, set[str]] = {}

    def join(self, one: str, other: str) -> None:
        """Note that two links share something; both may be the same."""
        both = self.with_it(one) | self.with_it(other)
        for link in both:
            self._sets[link] = both

    def with_it(self, link: str) -> set[str]:
        """Return a link and all that share something with it."""
        return self._sets.get(link, {link})
