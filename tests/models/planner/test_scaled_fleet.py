from __future__ import annotations

import pytest

from penstock.models.planner.fleet import read_fleet
from penstock.models.planner.scaled_fleet import (
    LEAST_LIFETIME,
    LEAST_RATE,
    LEAST_SUBSCRIBERS,
    MOST_DEVICES,
    MOST_LINK_RATIO,
    MOST_RATE,
    scale,
)
from tests.models.planner.small_plan import EXAMPLE, make_fleet


def test_a_large_fleet_becomes_one_that_runs_here() -> None:
    """Few clients, no back ends, and no more messages than one process of clients can do."""
    scaled = scale(read_fleet(EXAMPLE), 60.0)
    fleet = scaled.fleet
    assert not fleet.back_ends
    assert {each.count for each in fleet.devices.values()} == {MOST_DEVICES}
    assert all(each.total_rate <= MOST_RATE + 1e-9 for each in fleet.devices.values())
    operators = fleet.subscribers["operators"]
    assert operators.share_ratio * MOST_DEVICES == scaled.picked["sensors", "operators"]
    for each in fleet.devices.values():
        assert each.total_rate * operators.share_ratio >= LEAST_RATE


def test_all_times_become_shorter_by_one_factor() -> None:
    """Until the shortest lifetime is a few of MQTT's whole seconds."""
    fleet = read_fleet(EXAMPLE)
    scaled = scale(fleet, 60.0)
    assert scaled.time_ratio == 60 / LEAST_LIFETIME
    sensors, before = scaled.fleet.devices["sensors"], fleet.devices["sensors"]
    assert sensors.lifetime_seconds == LEAST_LIFETIME
    assert sensors.off_seconds == 30 / 15
    assert sensors.on_seconds == 3600 / 15
    assert before.payload_bytes == sensors.payload_bytes


def test_a_fleet_that_is_quick_already_stays_so() -> None:
    """A factor is never below 1."""
    fleet = make_fleet(
        ("on_seconds: 40", "on_seconds: 2"),
        ("off_seconds: 10", "off_seconds: 1"),
        ("on_seconds: 60, off_seconds: 20", "on_seconds: 3, off_seconds: 1"),
    )
    scaled = scale(fleet, 60.0)
    assert scaled.time_ratio == 1.0
    assert scaled.fleet.subscribers["operators"].off_seconds == 1.0


def test_kinds_of_unlike_numbers_share_whole_devices() -> None:
    """Where one share is not of whole devices of each kind, a subscriber gets all."""
    scaled = scale(make_fleet(("link: mobile,", "link: mobile, share_ratio: 0.3,")), 60.0)
    assert scaled.fleet.subscribers["operators"].count == LEAST_SUBSCRIBERS
    share = scaled.fleet.subscribers["operators"].share_ratio
    for name, each in scaled.fleet.devices.items():
        assert scaled.picked[name, "operators"] == pytest.approx(share * each.count)


def test_links_of_the_fleet_carry_what_the_run_sends() -> None:
    """Their good phases; a message is shorter where the run has more of them than the link has."""
    scaled = scale(read_fleet(EXAMPLE), 60.0, has_links=True)
    fleet = scaled.fleet
    assert scaled.has_links
    assert fleet.devices["cameras"].link == "wired"
    assert fleet.links["mobile"].bad is None
    assert fleet.links["mobile"].rtt_seconds == 0.06
    who = fleet.subscribers["operators"]
    for each in fleet.devices.values():
        taken = each.total_rate * who.share_ratio * each.payload_bytes
        assert taken <= MOST_LINK_RATIO * fleet.links[who.link].bytes_per_second + 1
