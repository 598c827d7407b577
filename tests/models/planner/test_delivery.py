from __future__ import annotations

import math
from dataclasses import replace

import pytest

from penstock.models.planner import delivery
from penstock.models.planner.costs import Costs
from penstock.models.planner.delivery import Variant, backlog, predict, round_up, variants
from penstock.models.planner.fleet import LinkClass
from penstock.models.planner.load import flows, idle_ratio, slow_start_seconds
from penstock.netem.figures.estimates import Standing, agrees, at_least, at_most
from tests.models.planner.small_plan import make_fleet, small_plan


@pytest.mark.parametrize(
    ("number", "limit"), [(0.0, 0), (0.2, 1), (7.01, 8), (36.8, 37), (1151.3, 1200), (1200.0, 1200)]
)
def test_limits_are_rounded_up_to_two_digits(number: float, limit: int) -> None:
    """As people write them."""
    assert round_up(number) == limit


def test_what_waits_is_that_of_nearly_the_longest_outage() -> None:
    """Outages are exponential, and count up to a lifetime; a clean session keeps nothing."""
    fleet = make_fleet()
    who, cameras, sensors = fleet.subscribers["operators"], *fleet.devices.values()
    assert backlog(cameras, who) == math.ceil(0.2 * 20 * math.log(100))
    assert backlog(sensors, who) == 2 * 20  # the lifetime ends before
    assert backlog(cameras, replace(who, keeps_session=False)) == 0
    assert backlog(replace(cameras, qos=0), who) == 0
    assert backlog(cameras, replace(who, on_seconds=None, off_seconds=None)) == 0


def test_what_arrives_is_what_the_closed_form_says() -> None:
    """Both peers are off at times, and services take next to nothing."""
    first, other, *_ = small_plan().deliveries["sensors", "operators"]
    for each in (first, other):
        assert 0 < each.light < 1
        assert agrees(each.success, each.light, 0.05) is not Standing.MISSED
    assert other.variant.name == "a clean session"
    assert at_most(other.success, first.success.value) is Standing.MET
    assert at_least(other.lost, 0.1) is Standing.MET
    assert first.lost.value == 0
    total = first.success.value + first.expired.value + first.lost.value
    assert total == pytest.approx(1)


def test_a_longer_lifetime_and_a_limit_are_compared() -> None:
    """Each of them is a variant of what stands in the file."""
    by_name = {each.variant.name: each for each in small_plan().deliveries["sensors", "operators"]}
    assert list(by_name) == [
        "as in the file",
        "a clean session",
        "twice the lifetime",
        "at most 40 waiting",
        "at most 4 waiting",
    ]
    plain = by_name["as in the file"]
    assert by_name["twice the lifetime"].expired.value < plain.expired.value
    assert by_name["at most 4 waiting"].lost.value > by_name["at most 40 waiting"].lost.value
    assert by_name["at most 4 waiting"].backlog_bytes == 400
    assert math.isnan(by_name["at most 4 waiting"].light)


def test_no_variant_is_compared_twice() -> None:
    """A tenth of one message that waits is one, too."""
    fleet = make_fleet(("messages_per_second: 0.04", "messages_per_second: 0.001"))
    names = [each.name for each in delivery.variants(fleet, "cameras", "operators")]
    assert names == ["as in the file", "a clean session", "at most 1 waiting"]


def test_qos_0_loses_what_qos_1_keeps() -> None:
    """While a device or a subscriber is off."""
    fleet = make_fleet()
    kept = small_plan().deliveries["sensors", "operators"][0]
    sensors = replace(fleet.devices["sensors"], qos=0)
    variant = Variant("QoS 0", sensors, fleet.subscribers["operators"])
    found = predict(fleet, Costs(), "sensors", "operators", variant)
    assert found.light == pytest.approx(40 / 50 * 60 / 80)
    assert found.success.value == pytest.approx(found.light, abs=0.1)
    assert found.success.value < kept.success.value
    assert "QoS 1" in [
        each.name
        for each in variants(
            make_fleet(("topics: sensors/#", "topics: s\n    qos: 0")), "sensors", "operators"
        )
    ]


def test_links_are_in_each_response_time() -> None:
    """Half of both round trips, the device's own transmission, and TCP's slow start if it idled."""
    each = small_plan().deliveries["cameras", "operators"][0]
    fleet = make_fleet()
    rates = (
        fleet.devices["cameras"].messages_per_second,
        sum(flow.rate for flow in flows(fleet, "operators")),
    )
    links = LinkClass(0.02, 1e6), LinkClass(0.05, 5e5)
    opening = sum(
        idle_ratio(rate, link) * slow_start_seconds(100_120, link)
        for rate, link in zip(rates, links, strict=True)
    )
    assert opening > 0
    assert each.wire_seconds == pytest.approx(0.01 + 0.025 + 100_120 / 1_000_000 + opening)
    assert each.quantile(0.0).value >= each.wire_seconds


def test_a_part_of_many_messages_is_simulated() -> None:
    """So many that peers go on and off often enough."""
    fleet = make_fleet(
        ("    on_seconds: 40", "    on_seconds: 3600"),
        ("messages_per_second: 0.1", "messages_per_second: 5"),
    )
    variant = next(variants(fleet, "sensors", "operators"))
    found = predict(fleet, Costs(), "sensors", "operators", variant)
    assert found.simulated_ratio == pytest.approx(
        delivery.MESSAGES / (delivery.CYCLES * 3610) / 100
    )
    assert found.success.value == pytest.approx(found.light, abs=0.05)
