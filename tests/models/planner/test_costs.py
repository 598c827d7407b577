from __future__ import annotations

from dataclasses import fields

from penstock.models.planner.costs import SOURCE, Costs


def test_each_cost_says_where_it_is_from() -> None:
    """A number without a source is one that nobody can check."""
    assert [each.name for each in fields(Costs)] == list(SOURCE)
    assert all(SOURCE.values())


def test_a_faster_machine_takes_less_time_and_the_same_memory() -> None:
    """The speed is over that of the machine on which costs were measured."""
    costs = Costs()
    faster = costs.faster(2.0)
    assert faster.deliver == costs.deliver / 2
    assert faster.alone == costs.alone / 2
    assert faster.connection_bytes == costs.connection_bytes
