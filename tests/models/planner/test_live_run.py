from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.models.planner import live_run
from penstock.models.planner.fleet import Devices, Fleet, LinkClass, Machine, Subscribers
from penstock.models.planner.live_run import LiveRunResult, SubscriberShare, profile, run
from penstock.models.planner.scaled_fleet import LINK, ScaledFleet
from tests.helpers.networks import NEEDS_ROOT

N_DEVICES = 3


@pytest.fixture(scope="module")
def measured() -> LiveRunResult:
    """A run of devices and subscribers that come and go, without lifetimes."""
    devices = {
        "kept": Devices(N_DEVICES, 10.0, 100, LINK, "k/#", 1, None, 0.3, 0.1),
        "unkept": Devices(N_DEVICES, 10.0, 100, LINK, "u/#", 0, None, 0.2, 0.2),
    }
    subscribers = {
        "present": Subscribers(2, ["kept", "unkept"], LINK),
        "away": Subscribers(2, ["kept"], LINK, 1.0, True, 0.3, 0.1),
    }
    machine = Machine(2, 2**30)
    fleet = Fleet({LINK: LinkClass(0.001, 1e8)}, devices, machine, subscribers, {})
    picked = {("kept", "present"): N_DEVICES, ("unkept", "present"): N_DEVICES, ("kept", "away"): 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_run, "QUIET_SECONDS", 3.0)
        return run(ScaledFleet(fleet, 1.0, picked), 2.0, np.random.default_rng(3))


def test_what_is_kept_arrives_though_peers_come_and_go(measured: LiveRunResult) -> None:
    """Devices send later what they could not, and the broker keeps it for sessions."""
    for shares in (measured.shares["kept", "present"], measured.shares["kept", "away"]):
        assert len(shares) == 2
        for each in shares:
            assert each.arrived == each.created > 0
            assert each.seconds > 0
    everything, some = (measured.shares["kept", name][0] for name in ("present", "away"))
    assert some.created < everything.created  # of two devices, not three


def test_qos_0_is_lost_while_its_device_is_off(measured: LiveRunResult) -> None:
    """Half of the time."""
    for each in measured.shares["unkept", "present"]:
        assert 0 < each.arrived < each.created


def test_the_broker_took_processor_time(measured: LiveRunResult) -> None:
    """The time is that of the broker's process, not of the clients."""
    assert 0 < measured.core_ratio < 1
    assert measured.late_seconds >= 0


def test_the_model_has_the_same_schedule(measured: LiveRunResult) -> None:
    """Each subscriber has the messages that were created, and all that are kept arrive."""
    assert measured.replayed.keys() == measured.shares.keys()
    for key, shares in measured.shares.items():
        replayed = measured.replayed[key]
        assert [each.created for each in replayed] == [each.created for each in shares]
    for each in measured.replayed["kept", "away"]:
        assert each.arrived == each.created


def test_a_share_counts_what_was_prompt() -> None:
    """Within a second."""
    assert SubscriberShare.of(4, np.array([0.5, 1.0, 2.0])) == SubscriberShare(4, 3, 2, 3.5)


def test_a_link_has_its_round_trip_and_rate() -> None:
    """With room for a second of packets, and their headers on top of what TCP carries."""
    made = profile(LinkClass(0.06, 1e6))
    assert made.upstream == made.downstream
    assert made.upstream.delay == 0.03
    assert made.upstream.rate is not None
    assert made.upstream.rate > 1e6
    assert made.upstream.max_queue_bytes > made.upstream.rate


@NEEDS_ROOT
def test_clients_have_links_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is there before the round trips of both links are half over."""
    monkeypatch.setattr(live_run, "QUIET_SECONDS", 3.0)
    links = {"slow": LinkClass(0.2, 1e6), "fast": LinkClass(0.1, 1e7)}
    devices = {"sensors": Devices(2, 5.0, 100, "fast", "s/#")}
    subscribers = {"operators": Subscribers(2, ["sensors"], "slow")}
    fleet = Fleet(links, devices, Machine(2, 2**30), subscribers, {})
    scaled = ScaledFleet(fleet, 1.0, {("sensors", "operators"): 2}, has_links=True)
    found = run(scaled, 2.0, np.random.default_rng(1))
    for each in found.shares["sensors", "operators"]:
        assert each.arrived == each.created > 0
        assert each.seconds >= 0.15 * each.arrived
    for each in found.replayed["sensors", "operators"]:
        assert math.isclose(each.seconds / each.arrived, 0.15, abs_tol=0.01)
