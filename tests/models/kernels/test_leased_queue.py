from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.models.kernels.closed_forms import UnstableError, in_turn_response
from penstock.models.kernels.lease_messages import LeasedMessages, Messages, VisibleMessages
from penstock.models.kernels.lease_setting import LeaseSetting, Order, analytic
from penstock.models.kernels.lease_simulation import LeaseOutcome, simulate


def run(setting: LeaseSetting, seconds: float = 600.0, make: Any = VisibleMessages) -> LeaseOutcome:
    """Simulate with one seed."""
    return simulate(setting, make(setting.order), seconds, np.random.default_rng(1))


@pytest.mark.parametrize("reliability", [0.99, 0.88])
def test_out_of_order_is_as_the_analytic_network(reliability: float) -> None:
    """Delivery time, waiting and both utilisations (figures 11 to 13)."""
    setting = LeaseSetting("any", 5, 5, reliability, link_delay=0.05)
    found, expected = run(setting).figures, analytic(setting)
    assert found.delivery == pytest.approx(expected.delivery, rel=0.05)
    assert found.waiting == pytest.approx(expected.waiting, rel=0.2)
    assert found.sender_utilisation == pytest.approx(expected.sender_utilisation, rel=0.03)
    assert found.broker_utilisation == pytest.approx(expected.broker_utilisation, rel=0.03)


def test_in_order_a_message_waits_for_those_before_it() -> None:
    """With threads for all, as long as the closed form says, and then for its delivery."""
    setting = LeaseSetting("arrived", 60, 60, 1.0)
    expected = in_turn_response(30.3, 10.0) + 0.1
    assert run(setting).figures.delivery == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    "setting",
    [
        LeaseSetting("any", reliability_ratio=0.88),
        LeaseSetting("arrived", reliability_ratio=0.88),
        LeaseSetting("arrived", reliability_ratio=0.88, visibility_timeout=0.15),
        LeaseSetting("any", reliability_ratio=0.88, visibility_timeout=2.0),
        LeaseSetting("settled", 3, 3, 0.9, 2.0, visibility_timeout=0.5),
        LeaseSetting("settled", 3, 3, 0.9, 2.0, visibility_timeout=0.05),
    ],
)
def test_the_queues_leases_give_the_same(setting: LeaseSetting) -> None:
    """The product's own group, and the simulation's quick queue, decide alike."""
    assert run(setting, 40.0, LeasedMessages) == run(setting, 40.0)


def test_a_short_visibility_timeout_delivers_twice_and_a_long_one_late() -> None:
    """One below a delivery's time gives duplicates; a failed message waits for a long one."""
    timely = LeaseSetting("any", reliability_ratio=0.88)
    short, long = (replace(timely, visibility_timeout=each) for each in (0.1, 5.0))
    assert run(timely).n_duplicates == 0
    assert run(short).n_duplicates > 0.2 * run(short).n_messages
    late = run(long).figures.delivery - run(timely).figures.delivery
    assert late == pytest.approx(0.12 / 0.88 * 4.9, rel=0.1)


def test_the_seed_decides() -> None:
    """A run can be had again, and another seed gives another."""
    rngs = [np.random.default_rng(seed) for seed in (1, 1, 2)]
    first, again, other = (
        simulate(LeaseSetting(), VisibleMessages("any"), 20, rng) for rng in rngs
    )
    assert first == again != other


def test_the_analytic_network_of_one_thread_each() -> None:
    """Two M/M/1 stages, of which the second gets lambda / q (equations 3, 8 and 9)."""
    found = analytic(LeaseSetting("any", 1, 1, 0.8, 4.0, 10.0, 10.0, link_delay=0.1))
    assert found.delivery == pytest.approx(1 / 6 + 5 / 4 / 5 + 2.2 * 0.1)
    assert found.sender_utilisation == pytest.approx(0.4)
    assert found.broker_utilisation == pytest.approx(0.5)
    assert found.waiting == pytest.approx(0.4**2 / 0.6 + 0.5**2 / 0.5)


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"sender_threads": 3}, "sender overflows: 30.3 .* 30/s"),
        ({"broker_threads": 3}, "broker overflows: 30.61 .* 30/s"),
        ({"order": "settled"}, "broker, one message at a time, overflows: .* rho is 3.06"),
        (
            {"order": "settled", "arrival_rate": 5, "visibility_timeout": 60},
            "broker, one message at a time, overflows",
        ),
    ],
)
def test_the_stage_that_overflows_is_named(changes: dict[str, Any], stage: str) -> None:
    """A strict order lets one message at a time through, and a failed one holds up all others."""
    with pytest.raises(UnstableError, match=stage):
        LeaseSetting(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"order": "fifo"}, "order: read 'fifo'; allowed: any, arrived or settled"),
        ({"sender_threads": 0}, "sender_threads: read 0; allowed: 1 or more"),
        ({"broker_threads": 0}, "broker_threads: read 0"),
        ({"reliability_ratio": 0}, "reliability_ratio: read 0; allowed: above 0, up to 1"),
        ({"reliability_ratio": 1.1}, "reliability_ratio: read 1.1"),
        ({"arrival_rate": 0}, "arrival_rate: read 0; allowed: a finite number above 0"),
        ({"sender_rate": math.nan}, "sender_rate: read nan"),
        ({"broker_rate": -1}, "broker_rate: read -1"),
        ({"visibility_timeout": 0}, "visibility_timeout: read 0"),
        ({"link_delay": -1}, "link_delay: read -1; allowed: 0 or more, finite"),
    ],
)
def test_impossible_parameters_name_themselves(changes: dict[str, Any], told: str) -> None:
    """What was read, and what is allowed."""
    with pytest.raises(ValueError, match=told):
        LeaseSetting(**changes)


BOTH = pytest.mark.parametrize("make", [VisibleMessages, LeasedMessages])
Make = Callable[[Order], Messages]


@BOTH
@pytest.mark.parametrize("order", ["any", "arrived"])
def test_a_message_is_invisible_until_it_comes_back(make: Make, order: Order) -> None:
    """By its deadline or by being given back, the oldest first; a deleted one never does."""
    queue = make(order)
    for message in range(3):
        queue.add(message, 0.0)
    assert [queue.take(0.0, 10.0 + n) for n in range(4)] == [0, 1, 2, -1]
    queue.give_back(1)
    assert queue.take(5.0, 20.0) == 1
    queue.settle(2)
    queue.expire(0, 10.0)
    assert queue.take(10.0, 30.0) == 0
    queue.settle(0)
    queue.settle(1)
    assert queue.take(99.0, 100.0) == -1


@BOTH
def test_a_message_that_is_visible_again_can_be_deleted(make: Make) -> None:
    """A late acknowledgement counts as long as nobody has received the message again."""
    queue = make("arrived")
    queue.add(0, 0.0)
    assert queue.take(0.0, 1.0) == 0
    queue.expire(0, 1.0)
    queue.settle(0)
    assert queue.take(2.0, 3.0) == -1


@BOTH
def test_in_a_strict_order_a_message_waits_until_the_one_before_it_is_deleted(make: Make) -> None:
    """The queue's order of keys, with one key."""
    queue = make("settled")
    queue.add(0, 0.0)
    queue.add(1, 0.0)
    assert [queue.take(0.0, 10.0), queue.take(0.0, 10.0)] == [0, -1]
    queue.add(2, 1.0)
    assert queue.take(1.0, 10.0) == -1
    queue.expire(0, 10.0)
    assert queue.take(10.0, 20.0) == 0
    queue.settle(0)
    assert queue.take(11.0, 20.0) == 1
