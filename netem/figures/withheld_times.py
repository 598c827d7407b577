"""The accuracy of withholding: the times of withholding against those of impairments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.netem.errors import NetemError
from penstock.netem.figures.intervals import Interval, intersection, total_seconds, union
from penstock.netem.figures.table_rows import Tables
from penstock.netem.runs.scenario import Scenario

GRACE_SECONDS: Final = 5.0
"""Withholding within this time after an impairment counts as explained, seconds: paper 002
probes every 5 s, so a broker may notice the end that late. A link with a long backlog takes
longer, which counts as outside."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The times of withholding compared with those of impairment, all in seconds.

    Attributes:
        both: the time for which messages were withheld during an impairment.
        outside: the time for which messages were withheld, neither in an impairment nor within
            `GRACE_SECONDS` after it.
        most_messages: the most messages that were withheld at a time.
    """

    withheld: float = 0.0
    impaired: float = 0.0
    both: float = 0.0
    outside: float = 0.0
    most_messages: int = 0

    def __add__(self, other: Accuracy) -> Accuracy:
        """Return both subscribers together."""
        return Accuracy(
            self.withheld + other.withheld,
            self.impaired + other.impaired,
            self.both + other.both,
            self.outside + other.outside,
            max(self.most_messages, other.most_messages),
        )


def find_impaired(
    scenario: Scenario, tables: Tables, broker: str, seed: int, group: str
) -> list[Interval]:
    """Return the times at which subscribers of a group could not be reached as usual.

    Returns:
        The times for which a link between them and the broker was impaired.

    Raises:
        NetemError: the scenario has no such subscribers.
    """
    if group not in scenario.subscribers:
        allowed = ", ".join(scenario.subscribers)
        raise NetemError(f"expected: group {group!r}; allowed: {allowed}")
    plan = scenario.subscribers[group]
    links = scenario.topology.way(scenario.broker_host, plan.host) or []
    way = {link.name for link in links}
    times = [
        (row.begin_s, row.end_s)
        for row in tables.links
        if row.is_impaired and row.link in way and (row.broker, row.seed) == (broker, seed)
    ]
    return union(times)


def judge_withholding(
    scenario: Scenario, tables: Tables, broker: str, seed: int, unit: str | None = None
) -> Accuracy:
    """Return the accuracy of withholding from the subscribers in focus.

    Raises:
        NetemError: a subscriber is not one of the scenario's.
    """
    groups = {
        row.subscriber: row.group
        for row in tables.expected
        if row.is_focus and (row.broker, row.seed) == (broker, seed) and unit in (None, row.unit)
    }
    impaired = {
        group: find_impaired(scenario, tables, broker, seed, group)
        for group in set(groups.values())
    }
    rows = [row for row in tables.withheld if (row.broker, row.seed) == (broker, seed)]
    accuracy = Accuracy()
    for subscriber, group in groups.items():
        of_it = [row for row in rows if row.subscriber == subscriber]
        held = [(row.begin_s, row.end_s) for row in of_it]
        allowed = [(begin, end + GRACE_SECONDS) for begin, end in impaired[group]]
        accuracy += Accuracy(
            total_seconds(held),
            total_seconds(impaired[group]),
            total_seconds(intersection(held, impaired[group])),
            total_seconds(held) - total_seconds(intersection(held, allowed)),
            max((row.most_messages for row in of_it), default=0),
        )
    return accuracy
