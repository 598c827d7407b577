from __future__ import annotations

import pytest

from penstock.netem.clients.roster import Roster
from penstock.netem.links.profiles import Direction
from penstock.netem.runs.impairments import Impairment, OnOffPlan
from penstock.netem.runs.oracle_states import oracle_states
from penstock.netem.runs.profile_plan import ProfilePlan
from penstock.netem.runs.scenario import Broker, HostPlan, LinkPlan, Subscriber, Topology
from tests.helpers.experiments import GOOD, scenario

TOLD = scenario(
    topology=Topology(
        {name: HostPlan() for name in ("cloud", "router", "edge")},
        [LinkPlan(("router", "cloud"), "good", "bbr"), LinkPlan(("router", "edge"), "good")],
    ),
    profiles={
        "good": GOOD,
        "slow": ProfilePlan(Direction(0.05, 1e5), Direction(0.03)),
        "lossy": ProfilePlan(
            Direction(0.1), Direction(0.1, loss=0.2), {"downstream.loss": (0.1, 0.4)}
        ),
    },
    impairments=[
        Impairment("router-cloud", on_off=OnOffPlan("good", "slow", 2.0, 2.0)),
        Impairment("router-edge", on_off=OnOffPlan("good", "lossy", 2.0, 2.0)),
    ],
    brokers={"oracle": Broker("oracle", lanes="sizes")},
    subscribers={"sub": Subscriber("edge", ["#"]), "near": Subscriber("cloud", ["#"])},
)


def test_the_state_of_a_way_is_that_of_its_links_together() -> None:
    """The least rate, any loss, and all delays; from each change of one of them on."""
    told = oracle_states(Roster(TOLD, "oracle", 3), 100.0)["sub.small"]
    states = told.states
    loss = TOLD.profiles_of("router-edge", 3)["lossy"].downstream.mean_loss
    assert states[0][:3] == (100.0, 2.5e6, 0.0)
    assert states[0].rtt == pytest.approx(0.04)
    # Upstream of the first link is towards the router, and so to the subscriber.
    assert {(each.rate, round(each.loss, 9)) for each in states} == {
        (rate, round(lost, 9)) for rate in (2.5e6, 1e5) for lost in (0.0, loss)
    }
    both = next(each for each in states if each.rate == 1e5 and each.loss)
    assert both.rtt == pytest.approx(0.08 + 0.2)
    assert [each.at for each in states] == sorted(each.at for each in states)


def test_the_end_of_the_traffic_is_the_last_change() -> None:
    """Links are as usual then."""
    states = oracle_states(Roster(TOLD, "oracle", 3), 100.0)["sub.small"].states
    assert states[-1][:3] == (108.0, 2.5e6, 0.0)


def test_every_connection_of_a_subscriber_is_told_of() -> None:
    """With the congestion control of the broker's side of its link."""
    told = oracle_states(Roster(TOLD, "oracle", 3), 0.0)
    assert set(told) == {
        f"{name}.{size}" for name in ("sub", "near") for size in ("small", "large")
    }
    assert told["sub.small"] == told["sub.large"]
    assert (told["sub.small"].link, told["sub.small"].congestion_control) == ("router-cloud", "bbr")


def test_a_subscriber_beside_the_broker_has_no_link() -> None:
    """So nothing is told of it, and the default congestion control."""
    told = oracle_states(Roster(TOLD, "oracle", 3), 0.0)["near.small"]
    assert (told.link, told.congestion_control, told.states) == ("", "cubic", ())
