from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.models.kernels.closed_forms import LightLoad, OnOff, UnstableError
from penstock.models.kernels.delivery_path import (
    BROKER,
    NETWORK,
    PUBLISHER,
    SUBSCRIBER,
    Path,
    Stage,
    compose,
)

HALF = OnOff(40, 40)
LATE = OnOff(15, 15)
ALL = {PUBLISHER: HALF, NETWORK: OnOff(70, 10), BROKER: OnOff(90, 10), SUBSCRIBER: LATE}


def path(**changes: Any) -> Path:
    """Compose the path of figure 7, with changes."""
    defaults = {
        "publisher_is_reliable": True,
        "subscriber_is_reliable": True,
        "peers": {PUBLISHER: HALF, SUBSCRIBER: LATE},
    }
    return compose(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("publisher", "subscriber", "works_with", "loses_without"),
    [
        (False, False, [(PUBLISHER,), (BROKER,)], [(NETWORK, BROKER), (SUBSCRIBER,)]),
        (True, True, [(PUBLISHER, NETWORK, BROKER), (BROKER, SUBSCRIBER)], [(), ()]),
        (True, False, [(PUBLISHER, NETWORK, BROKER), (BROKER,)], [(), (SUBSCRIBER,)]),
        (False, True, [(PUBLISHER,), (BROKER, SUBSCRIBER)], [(NETWORK, BROKER), ()]),
    ],
)
def test_any_publisher_composes_with_any_subscriber(
    publisher: bool,  # noqa: FBT001 - a case
    subscriber: bool,  # noqa: FBT001 - a case
    works_with: list[tuple[str, ...]],
    loses_without: list[tuple[str, ...]],
) -> None:
    """A, B, C; D, E, F; D, B, C; A, E, F (figure 6)."""
    found = path(publisher_is_reliable=publisher, subscriber_is_reliable=subscriber)
    application, sending, _, passing_on, _ = found.stages
    assert [application.works_with, passing_on.works_with] == works_with
    assert [sending.loses_without, passing_on.loses_without] == loses_without


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"arrival_rate": 33}, "publisher's application overflows: 33 .* 32/s"),
        ({"arrival_rate": 18}, "broker's transmission overflows: 18 .* 16/s"),
        ({"arrival_rate": 20, "processing_rate": 18, "peers": {}}, "publisher's application"),
        ({"arrival_rate": 33, "peers": {}}, "publisher's transmission overflows: 33"),
        ({"arrival_rate": 33, "serves_expired": True, "lifetime": 10}, "application overflows"),
    ],
)
def test_the_stage_that_overflows_is_named(changes: dict[str, Any], stage: str) -> None:
    """The first one, with what comes and what it serves while its peers are on."""
    with pytest.raises(UnstableError, match=stage):
        path(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"arrival_rate": 33, "lifetime": 10},
        {"arrival_rate": 33, "capacity": 10},
        {"arrival_rate": 18, "subscriber_is_reliable": False},
    ],
)
def test_limits_and_losses_keep_a_path_stable(changes: dict[str, Any]) -> None:
    """A lifetime, places, or a subscriber for whom nothing waits."""
    assert path(**changes).arrival_rate == changes["arrival_rate"]


def test_a_stage_behind_a_limit_gets_what_that_one_serves() -> None:
    """It overflows only if that is too much; behind a loss, less comes."""
    first, second = Stage("first", 10, capacity=5), Stage("second", 8)
    with pytest.raises(UnstableError, match="second overflows: 10"):
        Path(20, (first, second), {})
    lossy = Stage("first", 10, loses_without=(SUBSCRIBER,), capacity=5)
    assert Path(20, (lossy, second), {SUBSCRIBER: LATE}).stages[1] is second


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arrival_rate": 0}, "arrival_rate: read 0; allowed: a finite number above 0"),
        ({"arrival_rate": math.nan}, "arrival_rate: read nan"),
        ({"lifetime": 0}, "lifetime: read 0; allowed: above 0"),
        ({"lifetime": math.nan}, "lifetime: read nan"),
        ({"capacity": 0}, "publisher's application: capacity: read 0; allowed: 1 or more"),
        ({"processing_rate": -1}, "publisher's application: service_rate: read -1"),
        ({"transmission_rate": 0}, "publisher's transmission: service_rate: read 0"),
        ({"peers": {"cloud": HALF}}, "peers: read 'cloud'; allowed: publisher, network"),
    ],
)
def test_impossible_parameters_name_themselves(changes: dict[str, Any], told: str) -> None:
    """What was read, and what is allowed."""
    with pytest.raises(ValueError, match=told):
        path(**changes)
    with pytest.raises(ValueError, match="stages: read none"):
        Path(2, (), {})


def test_light_load_is_known_of_two_independent_waits() -> None:
    """Peers that several stages depend on have no such form."""
    assert path().light_load() == LightLoad((HALF, LATE))
    unreliable = path(subscriber_is_reliable=False)
    assert unreliable.light_load() == LightLoad((HALF,), 0.5)
    assert path(peers=ALL).light_load() is None
    assert path(publisher_is_reliable=False, peers={BROKER: HALF}).light_load() is None


def test_closed_forms_stand_where_arrivals_are_poisson() -> None:
    """At the first stage, and behind stages that pass on all at once."""
    always = path(peers={})
    assert [always.closed_form(number) is not None for number in range(5)] == [True] * 5
    assert path().closed_form(0) is not None
    assert path().closed_form(1) is None
    assert path(peers={}, capacity=3).closed_form(1) is None
    assert path(peers={}, lifetime=1).closed_form(0) is not None
    assert path(peers={}, lifetime=1).closed_form(1) is None
    assert path(lifetime=1).closed_form(0) is None
    assert path(peers=ALL).closed_form(0) is None
