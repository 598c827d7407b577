from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock.models.kernels.closed_forms import in_turn_response
from penstock.models.kernels.lease_messages import LeasedMessages, VisibleMessages
from penstock.models.kernels.lease_setting import Setting, analytic
from penstock.models.kernels.lease_simulation import Outcome, simulate


def run(setting: Setting, seconds: float = 600.0, make: Any = VisibleMessages) -> Outcome:
    """Simulate with one seed."""
    return simulate(setting, make(setting.order), seconds, np.random.default_rng(1))


@pytest.mark.parametrize("reliability", [0.99, 0.88])
def test_out_of_order_is_as_the_analytic_network(reliability: float) -> None:
    """Delivery time, waiting and both utilisations (figures 11 to 13)."""
    setting = Setting("any", 5, 5, reliability, link_delay=0.05)
    found, expected = run(setting).figures, analytic(setting)
    assert found.delivery == pytest.approx(expected.delivery, rel=0.05)
    assert found.waiting == pytest.approx(expected.waiting, rel=0.2)
    assert found.sender_utilisation == pytest.approx(expected.sender_utilisation, rel=0.03)
    assert found.broker_utilisation == pytest.approx(expected.broker_utilisation, rel=0.03)


def test_in_order_a_message_waits_for_those_before_it() -> None:
    """With threads for all, as long as the closed form says, and then for its delivery."""
    setting = Setting("arrived", 60, 60, 1.0)
    expected = in_turn_response(30.3, 10.0) + 0.1
    assert run(setting).figures.delivery == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    "setting",
    [
        Setting("any", reliability_ratio=0.88),
        Setting("arrived", reliability_ratio=0.88),
        Setting("arrived", reliability_ratio=0.88, visibility_timeout=0.15),
        Setting("any", reliability_ratio=0.88, visibility_timeout=2.0),
        Setting("settled", 3, 3, 0.9, 2.0, visibility_timeout=0.5),
        Setting("settled", 3, 3, 0.9, 2.0, visibility_timeout=0.05),
    ],
)
def test_the_queues_leases_give_the_same(setting: Setting) -> None:
    """The product's own group, and the simulation's quick queue, decide alike."""
    assert run(setting, 40.0, LeasedMessages) == run(setting, 40.0)


def test_a_short_visibility_timeout_delivers_twice_and_a_long_one_late() -> None:
    """One below a delivery's time gives duplicates; a failed message waits for a long one."""
    timely = Setting("any", reliability_ratio=0.88)
    short, long = (replace(timely, visibility_timeout=each) for each in (0.1, 5.0))
    assert run(timely).n_duplicates == 0
    assert run(short).n_duplicates > 0.2 * run(short).n_messages
    late = run(long).figures.delivery - run(timely).figures.delivery
    assert late == pytest.approx(0.12 / 0.88 * 4.9, rel=0.1)


def test_the_seed_decides() -> None:
    """A run can be had again, and another seed gives another."""
    rngs = [np.random.default_rng(seed) for seed in (1, 1, 2)]
    first, again, other = (simulate(Setting(), VisibleMessages("any"), 20, rng) for rng in rngs)
    assert first == again != other
