"""What became of messages, counted by hand."""

from __future__ import annotations

import math

from penstock.netem.figures.outcomes import Promises, join, keep_account
from penstock.netem.figures.records import Tables
from tests.helpers.netem_runs import delivery, expected, message


def account(tables: Tables) -> Promises:
    """Return how promises were kept in the one run there is."""
    (outcomes,) = join(tables).values()
    return keep_account(outcomes)


def test_latency_is_from_due_to_first_delivery() -> None:
    """What the publisher waited counts; what comes again does not."""
    tables = Tables(
        messages=[message(0, 1.0)],
        deliveries=[delivery(0, 1.75), delivery(0, 9.0, is_duplicate=True)],
        expected=[expected()],
    )
    (outcome,) = join(tables)["adaptive", 1]
    assert outcome.latency == 0.75
    assert outcome.copies == 2


def test_what_never_came_is_lost_at_qos_1_and_takes_for_ever() -> None:
    """At QoS 0 it is not lost, as nothing was promised, but counted."""
    tables = Tables(
        messages=[message(0, 1.0), message(1, 2.0), message(0, 1.0, stream="large")],
        deliveries=[delivery(1, 2.5)],
        expected=[expected(), expected(stream="large", qos=0)],
    )
    outcomes = join(tables)["adaptive", 1]
    assert [each.latency for each in outcomes] == [math.inf, 0.5, math.inf]
    assert account(tables) == Promises(1, 1, 0, 0, 0)


def test_a_redelivery_after_its_successor_is_no_reordering() -> None:
    """1 2 3 2 3 4, as after a cut connection, is in order and repeats two."""
    came = [(0, 1.0), (1, 1.1), (2, 1.2), (1, 2.0), (2, 2.1), (3, 2.2)]
    tables = Tables(
        messages=[message(number, 0.5) for number in range(4)],
        deliveries=[delivery(number, at) for number, at in came],
        expected=[expected()],
    )
    assert account(tables) == Promises(0, 0, 0, 0, 2)


def test_each_message_that_comes_first_after_a_later_one_is_reordered() -> None:
    """0 3 1 2: two have been passed, and streams do not count against each other."""
    tables = Tables(
        messages=[
            *(message(number, 0.5) for number in range(4)),
            *(message(number, 0.5, stream="large") for number in range(2)),
        ],
        deliveries=[
            *(delivery(number, 1 + place / 10) for place, number in enumerate((0, 3, 1, 2))),
            *(delivery(number, 2.0 + number, stream="large") for number in range(2)),
        ],
        expected=[expected(), expected(stream="large")],
    )
    assert account(tables) == Promises(0, 0, 2, 0, 0)


def test_messages_that_come_at_the_same_moment_are_in_order() -> None:
    """One read may bring several."""
    tables = Tables(
        messages=[message(0, 0.5), message(1, 0.5)],
        deliveries=[delivery(1, 1.0), delivery(0, 1.0)],
        expected=[expected()],
    )
    assert account(tables).reordered == 0


def test_a_second_copy_at_qos_2_is_a_duplicate() -> None:
    """Exactly once is promised there; at QoS 1 it is only repeated."""
    tables = Tables(
        messages=[message(0, 0.5)],
        deliveries=[delivery(0, 1.0, qos=2), delivery(0, 1.5, qos=2), delivery(0, 1.6, qos=2)],
        expected=[expected(qos=2)],
    )
    assert account(tables) == Promises(0, 0, 0, 2, 0)


def test_runs_do_not_mix() -> None:
    """The same message of another broker or seed is another."""
    tables = Tables(
        messages=[message(0, 0.5), message(0, 0.5, seed=2), message(0, 0.5, broker="mosquitto")],
        deliveries=[delivery(0, 1.0), delivery(0, 2.0, seed=2)],
        expected=[expected(), expected(seed=2), expected(broker="mosquitto")],
    )
    latencies = {run: [each.latency for each in of_it] for run, of_it in join(tables).items()}
    assert latencies == {
        ("adaptive", 1): [0.5],
        ("adaptive", 2): [1.5],
        ("mosquitto", 1): [math.inf],
    }
