from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.models.kernels.peer_timeline import Timeline
from penstock.models.planner.fleet import Devices, Fleet, LinkClass, Machine, Subscribers
from penstock.models.planner.scaled_fleet import ScaledFleet
from penstock.models.planner.schedule_replay import (
    DEVICE_RTTS,
    SUBSCRIBER_RTTS,
    Schedule,
    make_schedule,
    replay,
)

LINK = LinkClass(0.2, 1e9)
ALWAYS = None


def off_from(begin: float, end: float) -> Timeline:
    """Return the times on of a client that is off once."""
    return Timeline(np.array([0.0, end]), np.array([begin, math.inf]))


def scaled(devices: Devices, *, keeps_session: bool = True) -> ScaledFleet:
    """Return a fleet of one kind of devices and subscribers."""
    who = Subscribers(1, ["d"], "l", keeps_session=keeps_session)
    return ScaledFleet(Fleet({"l": LINK}, {"d": devices}, Machine(1, 1), {"s": who}), 1.0, {})


def took(
    devices: Devices,
    created: list[float],
    device: Timeline | None,
    subscriber: Timeline | None,
    *,
    keeps_session: bool = True,
) -> list[float]:
    """Return how long the messages of one device took that arrived."""
    fleet = scaled(devices, keeps_session=keeps_session)
    given = Schedule(device, np.array(created))
    found = replay(fleet, "s", {"d": [given]}, Schedule(subscriber, np.zeros(0)))["d"]
    assert found.created == len(created)
    return [round(each, 3) for each in found.seconds.tolist()]


def test_a_message_takes_half_of_both_round_trips() -> None:
    """Where nobody is off, and the links are fast."""
    assert took(Devices(1, 1.0, 100, "l", "#"), [1.0], ALWAYS, ALWAYS) == [0.2]


def test_it_waits_for_its_device_and_its_subscriber() -> None:
    """And for the round trips by which they connect."""
    kind = Devices(1, 1.0, 100, "l", "#")
    waited = 1.0 + DEVICE_RTTS * 0.2 + 0.2
    assert took(kind, [1.0], off_from(0.5, 2.0), ALWAYS) == [round(waited, 3)]
    # It is with the broker at 1.1.
    waited = 1.0 + SUBSCRIBER_RTTS * 0.2 + 0.1
    assert took(kind, [1.0], ALWAYS, off_from(0.5, 2.0)) == [round(waited, 3)]


def test_what_is_not_kept_is_lost() -> None:
    """QoS 0 in a device that is off, and what comes for a session that is not kept."""
    kind = Devices(1, 1.0, 100, "l", "#", 0)
    assert took(kind, [0.1, 1.0], off_from(0.5, 2.0), ALWAYS) == [0.2]
    kind = Devices(1, 1.0, 100, "l", "#")
    assert took(kind, [0.1, 1.0], ALWAYS, off_from(0.5, 2.0), keeps_session=False) == [0.2]


def test_what_has_expired_does_not_arrive() -> None:
    """Its lifetime goes on in the device and the broker."""
    kind = Devices(1, 1.0, 100, "l", "#", lifetime_seconds=1.0)
    assert took(kind, [0.6, 1.9], ALWAYS, off_from(0.5, 2.0)) == [0.5]


def test_a_long_message_opens_the_window_of_an_idle_connection_alone() -> None:
    """The second comes before the connection idles, and no sooner than the first."""
    kind = Devices(1, 1.0, 30_000, "l", "#")
    # Half of it is within the initial window: one round trip more on each link.
    assert took(kind, [1.0], ALWAYS, ALWAYS) == [0.6]
    assert took(kind, [1.0, 3.0], ALWAYS, ALWAYS) == [0.6, 0.6]
    assert took(kind, [1.0, 1.3], ALWAYS, ALWAYS) == [0.6, 0.3]


def test_schedules_are_drawn_for_a_run() -> None:
    """Messages of its seconds; equal generators give equal ones."""
    kind = Devices(1, 10.0, 100, "l", "#", 1, None, 2.0, 1.0)
    one, two = (make_schedule(kind, 30.0, np.random.default_rng(5)) for _ in range(2))
    assert one.created.tolist() == two.created.tolist()
    assert one.timeline is not None
    assert one.created[-1] < 30.0
    assert len(one.created) == pytest.approx(300, rel=0.3)
    always = make_schedule(Subscribers(1, ["d"], "l"), 30.0, np.random.default_rng(5))
    assert always.timeline is None


def test_kinds_share_the_link() -> None:
    """A small message waits for the large one that came before it."""
    links = {"l": LINK, "slow": LinkClass(0.2, 10_000.0)}
    devices = {
        "large": Devices(1, 1.0, 9_880, "l", "#"),  # with headers, 10,000 bytes
        "small": Devices(1, 1.0, 100, "l", "#"),
    }
    who = Subscribers(1, ["large", "small"], "slow")
    fleet = ScaledFleet(Fleet(links, devices, Machine(1, 1), {"s": who}), 1.0, {})
    created = {"large": 1.0, "small": 1.5}
    given = {name: [Schedule(None, np.array([at]))] for name, at in created.items()}
    found = replay(fleet, "s", given, Schedule(None, np.zeros(0)))
    assert found["large"].seconds.tolist() == pytest.approx([1.2], abs=0.001)
    assert found["small"].seconds.tolist() == pytest.approx([0.5 + 0.2 + 0.022], abs=0.001)
    assert (found["large"].created, found["small"].created) == (1, 1)
