from __future__ import annotations

from pathlib import Path

from penstock.netem.clients.roster import Roster
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    LinkRow,
    MessageRow,
    PacketsRow,
    WithheldRow,
)
from penstock.netem.links.channel import Counts
from penstock.netem.links.device_drops import DeviceDrops
from penstock.netem.runs.result_rows import (
    delivery_rows,
    link_rows,
    message_rows,
    packets_rows,
    withheld_rows,
)
from penstock.netem.runs.scenario import Broker, Edges, Subscriber
from tests.helpers.experiments import scenario, site_scenario

BEGIN_AT = 1_000.0


def test_a_message_has_the_times_of_its_publisher_and_of_the_witness(tmp_path: Path) -> None:
    """Seconds since the beginning; what did not happen is None."""
    (tmp_path / "publisher0").write_text("p 0 1 4 1000.5\na 0 4 1000.75\np 1 0 1 1001.0\n")
    (tmp_path / "witness").write_text("0 0 1 0 0 1000.625\n")
    assert message_rows(Roster(scenario(), "penstock", 3), tmp_path, BEGIN_AT) == [
        MessageRow(
            *("penstock", 3, "sensor", "small", "alarms/1", 1, 100, 1), *(0.35, 0.5, 0.75, 0.625)
        ),
        MessageRow(
            *("penstock", 3, "sensor", "large", "pictures/1", 0, 300_000, 1),
            *(0.35, 1.0, None, None),
        ),
    ]


def test_a_delivery_names_subscriber_publisher_and_stream(tmp_path: Path) -> None:
    """A message that comes twice has two rows."""
    (tmp_path / "subscriber0").write_text("0 1 7 1 0 1002.0\n0 1 7 1 1 1003.0\n")
    rows = delivery_rows(Roster(scenario(), "penstock", 3), tmp_path, BEGIN_AT)
    assert rows == [
        DeliveryRow("penstock", 3, "dashboard", "sensor", "large", 7, 1, duplicate, at)
        for duplicate, at in ((False, 2.0), (True, 3.0))
    ]


def test_what_was_withheld_is_told_by_the_watch(tmp_path: Path) -> None:
    """From the first look that saw it to the one that did not any more."""
    file = tmp_path / "withheld"
    file.write_text("dashboard 1002.0 1001.8 2 2\ndashboard 1004.0 1003.8 0 2\n")
    rows = withheld_rows(Roster(scenario(), "penstock", 3), file, BEGIN_AT)
    assert rows == [WithheldRow("penstock", 3, "dashboard", 2.0, 4.0, 2)]


def test_what_was_withheld_from_any_connection_is_the_subscribers(tmp_path: Path) -> None:
    """A subscriber with two lanes has one name in the results."""
    file = tmp_path / "withheld"
    file.write_text("dashboard.large 1002.0 1001.8 2 2\ndashboard.large 1004.0 1003.8 0 2\n")
    plan = scenario(brokers={"penstock": Broker("penstock", lanes="sizes")})
    rows = withheld_rows(Roster(plan, "penstock", 3), file, BEGIN_AT)
    assert rows == [WithheldRow("penstock", 3, "dashboard", 2.0, 4.0, 2)]


def test_what_was_withheld_from_an_edge_broker_is_its_subscribers(tmp_path: Path) -> None:
    """Each of them waits for it."""
    file = tmp_path / "withheld"
    file.write_text("site-cloud 1002.0 1001.8 2 2\nsite-cloud 1004.0 1003.8 0 2\n")
    displays = Subscriber("floor", ["alarms/#"], count=2)
    plan = site_scenario(Edges(["site"]), subscribers={"display": displays})
    rows = withheld_rows(Roster(plan, "edge", 3), file, BEGIN_AT)
    assert rows == [WithheldRow("edge", 3, f"display-{n}", 2.0, 4.0, 2) for n in (1, 2)]


def test_a_link_has_a_row_for_each_time_with_one_profile() -> None:
    """Before the traffic, too; a change to the same profile is none."""
    log = [(990.0, "good"), (1_000.0, "good"), (1_002.0, "bad"), (1_005.0, "good")]
    roster = Roster(scenario(), "penstock", 3)
    assert link_rows(roster, "cloud-edge", log, BEGIN_AT, 1_009.0) == [
        LinkRow("penstock", 3, "cloud-edge", profile, profile == "bad", begin, end)
        for profile, begin, end in (("good", -10.0, 2.0), ("bad", 2.0, 5.0), ("good", 5.0, 9.0))
    ]


def test_packets_that_no_profile_drops_are_those_of_the_harness() -> None:
    """In the sender's device, in the forwarder, and in the receiver's device."""
    roster = Roster(scenario(), "penstock", 3)
    (link,) = roster.scenario.topology.links
    counts = (
        Counts(taken=10, delivered=9, lost=1, carried_bytes=9_000),
        Counts(20, 15, 2, 3, overflowed=1, refused=4, carried_bytes=17_000),
    )
    drops = {"cloud": {"link0": DeviceDrops(50, 2)}, "edge": {"link0": DeviceDrops(0, 3)}}
    assert list(packets_rows(roster, link, "link0", counts, (1_000, 2_000), drops)) == [
        PacketsRow("penstock", 3, "cloud-edge", "upstream", 10, 9, 1, 0, 2, 8_000),
        PacketsRow("penstock", 3, "cloud-edge", "downstream", 20, 15, 2, 3, 55, 15_000),
    ]
