from __future__ import annotations

import random

import pytest

from penstock.models.planner import trial
from penstock.models.planner.fleet import Devices, Fleet, LinkClass, Machine, Subscribers
from penstock.models.planner.scaled import LINK, Scaled
from penstock.models.planner.trial import Measured, run

N_DEVICES = 3


@pytest.fixture(scope="module")
def measured() -> Measured:
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
    picked = {
        ("kept", "present"): N_DEVICES,
        ("unkept", "present"): N_DEVICES,
        ("kept", "away"): 2,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "QUIET_SECONDS", 5.0)
        return run(Scaled(fleet, 1.0, picked), 2.0, random.Random(3))  # noqa: S311


def test_what_is_kept_arrives_though_peers_come_and_go(measured: Measured) -> None:
    """Devices send later what they could not, and the broker keeps it for sessions."""
    for shares in (measured.shares["kept", "present"], measured.shares["kept", "away"]):
        assert len(shares) == 2
        for each in shares:
            assert each.arrived == each.created > 0
            assert each.seconds > 0
    everything, some = (measured.shares["kept", name][0] for name in ("present", "away"))
    assert some.created < everything.created  # of two devices, not three


def test_qos_0_is_lost_while_its_device_is_off(measured: Measured) -> None:
    """Half of the time."""
    for each in measured.shares["unkept", "present"]:
        assert 0 < each.arrived < each.created


def test_the_broker_took_processor_time(measured: Measured) -> None:
    """Of its process, not of the clients'."""
    assert 0 < measured.core_ratio < 1
    assert measured.late_seconds >= 0
