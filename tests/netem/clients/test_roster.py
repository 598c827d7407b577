from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from penstock.netem.clients.client_plan import CrewPlan, LanePlan, read_crews, write_crews
from penstock.netem.clients.roster import WITNESS, Roster, focus_of
from penstock.netem.runs.impairments import Impairment, TracePlan
from penstock.netem.runs.scenario import (
    Broker,
    Edges,
    HostPlan,
    LinkPlan,
    Measurements,
    Publisher,
    Stream,
    Subscriber,
    Topology,
)
from penstock.netem.runs.scenario_checks import find_mistakes
from penstock.netem.runs.statistical_units import units
from tests.helpers.experiments import scenario, site_scenario


def address(host: str, broker_host: str) -> str:
    """Return the address of a broker."""
    return f"{broker_host} seen from {host}"


def test_clients_of_a_number_have_ids_of_their_own(tmp_path: Path) -> None:
    """``{n}`` in a topic is the publisher's number; with several streams it connects so often."""
    plan = scenario(
        publishers={"sensor": Publisher("edge", ["small", "large"], count=2)},
        subscribers={"board": Subscriber("edge", ["alarms/2", "pictures/#"], count=3)},
        measurements=Measurements(arrivals=False),
    )
    crews = Roster(plan, "penstock", 1).crews(address, tmp_path)
    (crew,) = crews.values()
    assert [each.client_id for each in crew.publishers] == ["sensor-1", "sensor-2"]
    assert [(each.client_id, each.topic) for each in crew.publishers[1].streams] == [
        ("sensor-2.small", "alarms/2"),
        ("sensor-2.large", "pictures/2"),
    ]
    assert [each.client_id for each in crew.subscribers] == ["board-1", "board-2", "board-3"]
    assert crew.subscribers[0].address == "cloud seen from edge"
    files = [each.file for each in crew.clients()]
    assert len(set(files)) == 5


def test_a_topic_may_name_the_host_of_its_publisher() -> None:
    """One stream of several sites has a topic for each."""
    plan = site_scenario(
        Edges(["site"]),
        traffic={"small": Stream("{host}/alarms/{n}", 100, 0.25)},
        publishers={
            "at-site": Publisher("site", ["small"]),
            "at-floor": Publisher("floor", ["small"]),
        },
        subscribers={"archive": Subscriber("cloud", ["floor/#"])},
    )
    assert list(find_mistakes(plan)) == []
    roster = Roster(plan, "edge", 1)
    topics = [roster.topic(each, "small") for each in roster.publishers]
    assert topics == ["site/alarms/1", "floor/alarms/1"]
    assert [row.publisher for row in roster.expected()] == ["at-floor"]
    assert units(plan) == {"archive": "cloud-site"}


def test_a_subscriber_awaits_what_its_filters_match_at_the_lesser_qos() -> None:
    """What is published at QoS 0 is not promised to anybody."""
    plan = scenario(
        traffic={
            "small": Stream("alarms/{n}", 100, 0.25, qos=2),
            "large": Stream("pictures/{n}", 300_000, 1.0, qos=0),
            "other": Stream("others/{n}", 300_000, 1.0),
        },
        publishers={"sensor": Publisher("cloud", ["small", "large", "other"])},
    )
    roster = Roster(plan, "penstock", 7)
    rows = roster.expected()
    assert [(row.subscriber, row.publisher, row.stream, row.qos) for row in rows] == [
        ("dashboard", "sensor", "small", 1),
        ("dashboard", "sensor", "large", 0),
    ]
    assert {(row.broker, row.seed, row.is_focus) for row in rows} == {("penstock", 7, True)}
    subscriber = roster.crews(address, Path())["edge"].subscribers[0]
    assert [(each.stream, each.messages, each.is_promised) for each in subscriber.awaited] == [
        (0, 32, True),
        (1, 8, False),
    ]


def test_the_witness_stands_beside_the_broker_and_takes_everything(tmp_path: Path) -> None:
    """At QoS 0, and only where it is asked for."""
    (witness,) = Roster(scenario(), "penstock", 1).crews(address, tmp_path)["cloud"].subscribers
    assert (witness.lanes, witness.qos) == ([LanePlan(WITNESS, ["#"])], 0)
    without = scenario(measurements=Measurements(arrivals=False))
    assert not Roster(without, "penstock", 1).crews(address, tmp_path)["cloud"].subscribers


def test_a_publisher_may_be_there_for_one_broker_alone() -> None:
    """Probes of a paper's broker are not asked of another."""
    plan = scenario(
        publishers={
            "sensor": Publisher("cloud", ["small"]),
            "prober": Publisher("cloud", ["large"], brokers=["penstock"]),
        }
    )
    assert len(Roster(plan, "penstock", 1).publishers) == 2
    assert [each.client_id for each in Roster(plan, "mosquitto", 1).publishers] == ["sensor"]


def test_random_times_are_the_same_for_all_brokers_and_others_for_each_seed() -> None:
    """What is compared gets the same traffic."""
    plan = scenario(traffic={"small": Stream("alarms/1", 100, 0.5, arrivals="poisson")})
    plan.publishers["sensor"] = Publisher("cloud", ["small"])
    times = [
        roster.times(roster.publishers[0], "small").due_seconds()
        for roster in (
            Roster(plan, "penstock", 1),
            Roster(plan, "mosquitto", 1),
            Roster(plan, "penstock", 2),
        )
    ]
    assert times[0] == times[1] != times[2]


def test_focus_is_on_those_behind_an_impaired_link() -> None:
    """Unless the scenario names others; without any such link, it is on all."""
    topology = Topology(
        {name: HostPlan() for name in ("cloud", "hub", "near", "far")},
        [
            LinkPlan(("cloud", "hub"), "good"),
            LinkPlan(("hub", "far"), "good"),
            LinkPlan(("cloud", "near"), "good"),
        ],
    )
    subscribers = {"far": Subscriber("far", ["#"]), "near": Subscriber("near", ["#"])}
    impairments = [Impairment("cloud-hub", trace=TracePlan((0.0,), ("bad",)))]
    plan = scenario(topology=topology, subscribers=subscribers, impairments=impairments)
    assert focus_of(plan) == {"far"}
    assert focus_of(scenario(topology=topology, subscribers=subscribers, impairments=[])) == {
        "far",
        "near",
    }
    named = scenario(
        topology=topology, subscribers=subscribers, measurements=Measurements(focus=["near"])
    )
    assert focus_of(named) == {"near"}


def test_a_crew_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With all that stands in it."""
    properties = {"threshold_l": "0.5"}
    plan = scenario(
        brokers={"penstock": Broker("penstock")},
        publishers={"sensor": Publisher("edge", ["small", "large"], protocol="5")},
        subscribers={"board": Subscriber("edge", ["#"], user_properties=properties)},
    )
    crew = Roster(plan, "penstock", 1).crews(address, tmp_path)["edge"]
    write_crews(tmp_path / "crew.json", {"edge": crew, "none": CrewPlan([], [])})
    assert read_crews(tmp_path / "crew.json") == {"edge": crew, "none": CrewPlan([], [])}


def test_lanes_give_each_filter_or_size_class_a_connection_or_the_client_two(
    tmp_path: Path,
) -> None:
    """All of them are one subscriber in the results; size classes need MQTT 5."""
    plan = scenario(
        brokers={
            "one": Broker("mosquitto"),
            "two": Broker("mosquitto", lanes="filters"),
            "sized": Broker("penstock", lanes="sizes"),
            "client": Broker("penstock", lanes="client"),
        }
    )
    filters = ["alarms/#", "pictures/#"]
    expected = {
        "one": ("3.1.1", [LanePlan("dashboard", filters)]),
        "two": (
            "3.1.1",
            [LanePlan("dashboard.1", filters[:1]), LanePlan("dashboard.2", filters[1:])],
        ),
        "sized": (
            "5",
            [
                LanePlan("dashboard.small", filters, "small"),
                LanePlan("dashboard.large", filters, "large"),
            ],
        ),
        "client": ("5", [LanePlan("dashboard", filters, has_lanes=True)]),
    }
    for broker, found in expected.items():
        roster = Roster(plan, broker, 1)
        (subscriber,) = roster.crews(address, tmp_path)["edge"].subscribers
        assert (subscriber.protocol, subscriber.lanes) == found
        assert subscriber.client_id == "dashboard"
        n_connections = sum(1 + lane.has_lanes for lane in subscriber.lanes)
        assert list(roster.subscribers_of().values()) == [["dashboard"]] * n_connections
        assert len(subscriber.awaited) == 2


def test_clients_of_a_site_connect_to_its_edge_broker(tmp_path: Path) -> None:
    """To the broker in the cloud where the site has none; who is in the cloud always does."""
    plan = site_scenario(Edges(["site"]))
    for broker, at_site in (("direct", "cloud"), ("edge", "site")):
        crews = Roster(plan, broker, 1).crews(address, tmp_path)
        clients = {each.client_id: each for crew in crews.values() for each in crew.clients()}
        assert {name: each.address for name, each in clients.items()} == {
            "office": "cloud seen from cloud",
            "sensor": f"{at_site} seen from floor",
            "display": f"{at_site} seen from floor",
            "archive": "cloud seen from cloud",
            WITNESS: "cloud seen from cloud",
        }
        publishers = [each for crew in crews.values() for each in crew.publishers]
        assert {each.sounds for each in publishers} == {broker == "edge"}


@pytest.mark.parametrize(
    ("kind", "client_ids"),
    [("penstock", ["site-cloud", "site-cloud-large"]), ("mosquitto", ["site"])],
)
def test_the_broker_knows_the_subscribers_of_a_site_by_its_edge_broker(
    kind: Literal["penstock", "mosquitto"], client_ids: list[str]
) -> None:
    """By an uplink's client ids, or by a bridge's."""
    subscribers = {
        "display": Subscriber("floor", ["alarms/#"], count=2),
        "archive": Subscriber("cloud", ["pictures/#"]),
    }
    plan = site_scenario(Edges(["site"], kind), subscribers=subscribers)
    assert Roster(plan, "edge", 1).subscribers_of() == {
        **{client_id: ["display-1", "display-2"] for client_id in client_ids},
        "archive": ["archive"],
    }


def test_a_subscriber_may_be_there_for_one_broker_alone() -> None:
    """One subscriber of a site is compared with twenty."""
    plan = scenario(
        subscribers={
            "first": Subscriber("edge", ["alarms/#"]),
            "others": Subscriber("edge", ["alarms/#"], count=2, brokers=["penstock"]),
        }
    )
    names = {
        broker: [each.client_id for each in Roster(plan, broker, 1).subscribers]
        for broker in plan.brokers
    }
    assert names == {"penstock": ["first", "others-1", "others-2"], "mosquitto": ["first"]}
