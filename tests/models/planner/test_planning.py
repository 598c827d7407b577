from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.models.kernels.closed_forms import UnstableError
from penstock.models.planner.costs import Costs
from penstock.models.planner.planning import REFERENCE_BYTES, make_plan
from tests.models.planner.small_plan import make_fleet, small_plan


def test_a_plan_has_each_kind_of_everything() -> None:
    """Pairs of devices and subscribers, subscribers on bad links, back ends."""
    plan = small_plan()
    assert list(plan.deliveries) == [("cameras", "operators"), ("sensors", "operators")]
    assert list(plan.held) == ["operators"]
    assert list(plan.queues) == ["recognition"]
    assert plan.bad_seconds == 10
    assert plan.probe_period == 1.0
    assert 0 < plan.core_ratio < 0.01


def test_limits_leave_room_for_what_waits() -> None:
    """One session has messages of 19 cameras and 40 sensors; there are connections for ten more."""
    plan = small_plan()
    assert plan.connections == 39
    many = replace(plan, fleet=make_fleet(("count: 20\n", "count: 2000\n")))
    assert many.connections == 2600  # a quarter more than 2,009, to two digits
    assert plan.queued_messages == 1000  # no fewer, whatever waits
    assert plan.queued_bytes == 2_000_000  # 19 x 100 kB + 40 x 100 B = 1.904 MB, to two digits
    n_messages, n_bytes = plan.queue_limits("recognition")
    assert n_messages == 720
    assert n_bytes == pytest.approx(720 * 100_120)


def test_a_payload_is_counted_once_and_its_references_each() -> None:
    """All four operators get the same messages."""
    found = small_plan().memory()["cameras that wait for operators, all off at once"]
    assert found == pytest.approx(19 * (100_000 + Costs().queued_bytes) + 4 * 19 * REFERENCE_BYTES)


def test_a_machine_with_little_memory_spills() -> None:
    """Payloads that wait go to the disk."""
    plan = small_plan()
    assert not plan.spills
    little = replace(plan, fleet=make_fleet(("1 GiB", "64 MiB")))
    assert little.spills
    assert little.least_memory > little.fleet.machine.memory_bytes  # whatever goes to the disk


def test_what_was_scaled_is_said() -> None:
    """A plan of many is simulated in part."""
    plan = small_plan()
    assert list(plan.scaled()) == [
        (
            "sensors to operators: 1 of 8 messages, so that peers go on and off often enough; the"
            " others take their share of the link"
        ),
        "large messages of operators: 1 of 4 subscribers, 6 times for 40 s",
        "back end recognition: 1,000 s of its arrivals, 6 times",
    ]


def test_a_small_part_that_was_left_out_is_said_too() -> None:
    """Not as one of one."""
    plan = small_plan()
    place = ("sensors", "operators")
    nearly = replace(plan.deliveries[place][0], simulated_ratio=0.9)
    told = next(replace(plan, deliveries={place: [nearly]}).scaled())
    assert told.startswith("sensors to operators: 90% of the messages, so that")


def test_a_fleet_that_overflows_has_no_plan() -> None:
    """The stage is named before anything is simulated."""
    told: list[str] = []
    with pytest.raises(UnstableError, match="receivers of recognition overflows"):
        make_plan(make_fleet(("seconds_per_message: 2", "seconds_per_message: 9")), told.append)
    assert not told
