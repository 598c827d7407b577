from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
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
from penstock.models.kernels.delivery_simulation import (
    DeliveryOutcome,
    draw,
    follow,
    serve,
    serve_limited,
    simulate,
)
from penstock.models.kernels.peer_timeline import Timeline
from tests.models.kernels.event_by_event import follow_events

FULL = {PUBLISHER: OnOff(40, 40), SUBSCRIBER: OnOff(15, 15)}
ON_OFF = Stage("queue", 32, (PUBLISHER,))
TRANSMISSION = Stage("queue", 32)


def run(path: Path, n_messages: int = 40_000, seed: int = 1) -> DeliveryOutcome:
    """Simulate with one seed."""
    return simulate(path, n_messages, np.random.default_rng(seed))


def composed(*, reliable: bool = True, **changes: Any) -> Path:
    """Compose a path whose ends are both reliable or both not."""
    return compose(
        publisher_is_reliable=reliable,
        subscriber_is_reliable=reliable,
        **{"peers": FULL, **changes},
    )


@pytest.mark.parametrize(
    ("path", "tolerance"),
    [
        (Path(20, (TRANSMISSION,), {}), 0.03),
        (Path(20, (replace(TRANSMISSION, capacity=3),), {}), 0.03),
        (Path(40, (replace(TRANSMISSION, capacity=3),), {}), 0.03),
        (Path(20, (TRANSMISSION,), {}, 0.2), 0.1),
        (Path(20, (TRANSMISSION,), {}, 0.2, serves_expired=True), 0.1),
        (Path(4, (ON_OFF,), {PUBLISHER: OnOff(1, 1)}), 0.05),
        (Path(20, (replace(ON_OFF, capacity=5),), {PUBLISHER: OnOff(1, 1)}), 0.05),
    ],
)
def test_queues_are_as_their_closed_forms(path: Path, tolerance: float) -> None:
    """M/M/1, M/M/1/K, lifetimes in both readings, ON/OFF without and with K."""
    closed, found = path.closed_form(0), run(path, 100_000)
    assert closed is not None
    assert 1 - found.success_ratio == pytest.approx(closed.loss_ratio, rel=tolerance, abs=1e-9)
    if not math.isnan(closed.response):
        assert found.response == pytest.approx(closed.response, rel=tolerance)


def test_a_quick_path_is_as_its_closed_form() -> None:
    """Where services take no time, a message waits for its peers (D, E, F)."""
    path = composed(lifetime=30, processing_rate=1e6, transmission_rate=1e6)
    light, found = path.light_load(), run(path, 100_000)
    assert light is not None
    assert found.success_ratio == pytest.approx(light.within(30), rel=0.05)
    within = light.within(10) / light.within(30)
    assert found.within(10) == pytest.approx(within, rel=0.05)


def test_the_seed_decides() -> None:
    """A run can be had again, and another seed gives another."""
    path = composed(lifetime=10)
    first, again, other = (run(path, 2000, seed) for seed in (1, 1, 2))
    assert first.stages == again.stages
    assert first.response == again.response != other.response


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("capacity", [None, 4])
@pytest.mark.parametrize("serves_expired", [True, False])
def test_stages_at_once_give_what_one_event_after_the_other_gives(
    reliable: bool,  # noqa: FBT001 - a case
    capacity: int | None,
    serves_expired: bool,  # noqa: FBT001 - a case
) -> None:
    """With the same draws each message has the same fate, and leaves each stage as early."""
    peers = {PUBLISHER: OnOff(4, 4), BROKER: OnOff(9, 1), SUBSCRIBER: OnOff(3, 2)}
    path = composed(
        reliable=reliable,
        peers=peers,
        capacity=capacity,
        serves_expired=serves_expired,
        arrival_rate=4,
        lifetime=3,
        processing_rate=24,
        transmission_rate=12,
    )
    draws = draw(path, 400, np.random.default_rng(5))
    drawn: list[list[float]] = []

    def services(stage: Stage, numbers: Any) -> Any:
        drawn.append(draws.services(stage, numbers).tolist())
        return np.array(drawn[-1])

    steps = list(follow(path, replace(draws, services=services)))
    fates = 0
    for step, expected in zip(steps, follow_events(path, draws, drawn), strict=True):
        passed = step.numbers[step.passed].tolist()
        assert passed == list(expected.departures)
        assert step.departures.tolist() == pytest.approx([*expected.departures.values()])
        for fate, numbers in zip(step.fates, expected[1:], strict=True):
            assert set(step.numbers[fate].tolist()) == numbers
            fates += len(numbers)
    assert fates > 100


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("serves_expired", [True, False])
def test_no_message_is_lost_from_the_account(
    reliable: bool,  # noqa: FBT001 - a case
    serves_expired: bool,  # noqa: FBT001 - a case
) -> None:
    """What comes to a stage is dropped, expires, is lost or goes on; the end is the success."""
    peers = FULL | {BROKER: OnOff(50, 5)}
    found = run(
        composed(
            reliable=reliable,
            lifetime=10,
            capacity=8,
            arrival_rate=10,
            peers=peers,
            serves_expired=serves_expired,
        )
    )
    left = 1.0
    for stage in found.stages:
        assert stage.arrived_ratio == pytest.approx(left)
        left -= stage.dropped_ratio + stage.expired_ratio + stage.lost_ratio
    assert found.success_ratio == pytest.approx(left)
    assert found.quantile(1.0) <= 10
    assert all(each.dropped_ratio or each.expired_ratio for each in found.stages[:1])


def test_who_is_reliable_decides_where_messages_are_lost() -> None:
    """A broker that is off loses what A sends, and lets D wait; a subscriber likewise."""
    peers: Mapping[str, OnOff] = {BROKER: OnOff(50, 50), SUBSCRIBER: OnOff(15, 15)}
    unreliable = run(composed(reliable=False, peers=peers))
    lost = [stage.lost_ratio for stage in unreliable.stages]
    assert lost[1] == pytest.approx(0.5, abs=0.05)
    assert lost[3] == pytest.approx(0.25, abs=0.05)
    assert unreliable.success_ratio == pytest.approx(0.25, abs=0.05)
    reliable = run(composed(peers=peers))
    assert reliable.success_ratio == 1
    assert reliable.response > 20 * unreliable.stages[0].response


def test_nothing_arrives_within_no_time() -> None:
    """A path without any success has no response times."""
    found = run(composed(lifetime=1e-9), 1000)
    assert found.success_ratio == 0
    assert math.isnan(found.response)
    assert math.isnan(found.quantile(0.9))
    assert found.within(1) == 0


def times(*values: float) -> Any:
    """Return an array."""
    return np.array(values)


def test_a_message_leaves_when_its_lifetime_ends_and_frees_the_server() -> None:
    """The first expires in service at 2, the second is served from then, the third waits."""
    found = serve(times(0, 1, 1), times(5, 3, 3), times(2, 6, 6))
    assert found.tolist() == [2, 5, 6]


def test_places_are_free_again_when_messages_leave() -> None:
    """Two places; the third message comes too early, the fourth when one has left."""
    ends = times(99, 99, 99, 99)
    came = times(0, 1, 2, 3)
    found, entered = serve_limited(came, times(3, 1, 1, 1), ends, came, ends, 2)
    assert entered.tolist() == [True, True, False, True]
    assert found[entered].tolist() == [3, 4, 5]


def test_while_the_server_is_off_messages_keep_their_places_until_they_expire() -> None:
    """Its clock stands at 5; of two messages that came at 6, both hold places until 10."""
    came, expire = times(6, 6, 9, 11), times(10, 10, 13, 15)
    stands = times(5, 5, 5, 5)
    _, entered = serve_limited(stands, times(1, 1, 1, 1), stands, came, expire, 2)
    assert entered.tolist() == [True, True, False, True]


def test_enough_places_are_as_no_limit() -> None:
    """Both ways through a stage give the same."""
    rng = np.random.default_rng(3)
    came = np.cumsum(rng.exponential(1, 2000))
    services = rng.exponential(0.9, 2000)
    found, entered = serve_limited(came, services, came + 5, came, came + 5, 2000)
    assert entered.all()
    assert found.tolist() == serve(came, services, came + 5).tolist()


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


SHIFTS = Timeline(np.array([2.0, 10.0, 20.0]), np.array([5.0, 14.0, math.inf]))
"""On from 2 to 5, from 10 to 14, and from 20 on."""


def test_a_server_works_while_it_is_on() -> None:
    """Its clock stands in between; an infinite time stays one."""
    times = np.array([0.0, 2.0, 3.0, 5.0, 7.0, 11.0, 18.0, 21.0, math.inf])
    worked = [0.0, 0.0, 1.0, 3.0, 3.0, 4.0, 7.0, 8.0, math.inf]
    assert SHIFTS.worked(times).tolist() == worked


def test_work_is_done_while_it_is_on() -> None:
    """The time at which so much was worked."""
    assert SHIFTS.when(np.array([0.5, 3.0, 3.5, 8.0])).tolist() == [2.5, 5.0, 10.5, 21.0]


def test_whether_it_is_on() -> None:
    """It is at the begin of an interval, and is not at its end."""
    times = np.array([1.0, 2.0, 4.9, 5.0, 30.0])
    assert SHIFTS.is_on(times).tolist() == [False, True, True, False, True]


def test_together() -> None:
    """When all are on; one alone is itself."""
    other = Timeline(np.array([0.0, 12.0]), np.array([3.0, math.inf]))
    both = Timeline.together([SHIFTS, other])
    assert both.starts.tolist() == [2.0, 12.0, 20.0]
    assert both.ends.tolist() == [3.0, 14.0, math.inf]
    assert Timeline.together([other]) is other


def test_times_are_drawn_as_the_means_say() -> None:
    """In the steady state from the start to the horizon, and on behind it."""
    peer = OnOff(50, 30)
    drawn = [Timeline.draw(peer, 1e5, np.random.default_rng(seed)) for seed in range(40)]
    times = np.linspace(0, 1e5, 1000)
    assert np.mean([each.is_on(times) for each in drawn]) == pytest.approx(peer.on_ratio, rel=0.02)
    assert np.mean([each.is_on(np.zeros(1))[0] for each in drawn]) == pytest.approx(0.6, abs=0.2)
    assert all(each.starts[-1] >= 1e5 and each.ends[-1] == math.inf for each in drawn)
