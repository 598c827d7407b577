from __future__ import annotations

import math
from dataclasses import fields

import pytest

from penstock.models.kernels.closed_forms import UnstableError
from penstock.models.planner import load
from penstock.models.planner.costs import SOURCE, Costs
from penstock.models.planner.fleet import LinkClass
from penstock.models.planner.load import (
    LoadStage,
    broker_work,
    check,
    flows,
    idle_ratio,
    probe_period,
    slow_start_seconds,
    stages,
)
from tests.models.planner.small_plan import make_fleet


def test_a_subscriber_gets_its_share_of_all_devices() -> None:
    """Messages a second, and bytes with headers."""
    fleet = make_fleet(("link: mobile,", "link: mobile, share_ratio: 0.5,"))
    cameras, sensors = flows(fleet, "operators")
    assert cameras.devices == "cameras"
    assert cameras.rate == pytest.approx(5 * 0.04 * 0.5)
    assert sensors.rate == pytest.approx(20 * 0.1 * 0.5)
    assert sensors.bytes_per_second == pytest.approx(100 + 120)


def test_the_core_has_each_message_in_and_out() -> None:
    """QoS 1 costs its acknowledgement, a kept session its commit, a payload its bytes."""
    costs = Costs()
    work = {each.name: each for each in broker_work(make_fleet(), costs)}
    assert list(work) == [
        "receive from cameras",
        "receive from sensors",
        "deliver cameras to operators",
        "deliver sensors to operators",
        "queue recognition",
    ]
    assert work["deliver cameras to operators"].rate == pytest.approx(5 * 0.04 * 4)
    one = costs.deliver_acknowledged + costs.keep + 100_000 * costs.deliver_byte
    assert work["deliver cameras to operators"].seconds == pytest.approx(one)
    assert work["receive from sensors"].seconds == pytest.approx(
        costs.receive_acknowledged + 100 * costs.receive_byte
    )
    without = broker_work(make_fleet(("topics: sensors/#", "topics: s\n    qos: 0")), costs)
    assert without[1].seconds == pytest.approx(costs.receive + 100 * costs.receive_byte)


def test_what_finds_the_broker_idle_costs_more() -> None:
    """A wake for each message, and a commit of it and of its PUBACK where a session keeps it."""
    costs = Costs()
    fleet = make_fleet()
    work = {each.name: each for each in broker_work(fleet, costs)}
    assert work["receive from cameras"].alone_seconds == costs.alone + costs.alone_commit
    delivered = costs.alone_delivery + costs.alone_commit
    assert work["deliver cameras to operators"].alone_seconds == delivered
    clean = make_fleet(("link: mobile,", "link: mobile, keeps_session: false,"))
    assert broker_work(clean, costs)[0].alone_seconds == costs.alone
    rare = make_fleet(("link: mobile,", "link: mobile, share_ratio: 0.1,"))
    expected = costs.alone + 4 * 0.1 * costs.alone_commit
    assert broker_work(rare, costs)[0].alone_seconds == pytest.approx(expected)
    calm = load.core_ratio(fleet, costs)
    assert calm > costs.idle + sum(each.ratio for each in work.values())
    assert load.core_ratio(fleet, costs.faster(1e-5)) == 1.0


def test_stages_are_told_from_the_fullest_on() -> None:
    """A link serves while its subscriber is on, at its mean rate."""
    found = {each.name: each for each in stages(make_fleet(), Costs())}
    ratios = [each.utilisation for each in found.values()]
    assert ratios == sorted(ratios, reverse=True)
    assert found["receivers of recognition"].utilisation == pytest.approx(0.2 / 0.9 * 2)
    assert found["link of operators"].most == pytest.approx(1_010_000 / 3 * 60 / 80)
    assert found["link of sensors"].most == pytest.approx(1_000_000 * 40 / 50)


def test_each_stage_that_overflows_is_named() -> None:
    """Not only the first one."""
    fleet = make_fleet(("messages_per_second: 0.04", "messages_per_second: 1"))
    with pytest.raises(UnstableError) as caught:
        check(stages(fleet, Costs()))
    link, receivers = sorted(str(caught.value).splitlines())
    assert link.startswith("link of operators overflows: 5.01e+05 bytes/s arrive, it serves")
    assert link.endswith("(link mobile)")
    assert receivers.startswith("receivers of recognition overflows: 5.556 messages/s arrive")
    assert receivers.endswith("(1 receivers, 2 s a message)")


def test_a_core_that_is_full_is_named_with_what_fills_it() -> None:
    """On a slow machine."""
    with pytest.raises(UnstableError, match=r"core overflows: .* \(most for deliver sensors to op"):
        check(stages(make_fleet(), Costs().faster(1e-4)))


def test_many_subscribers_are_looked_at_less_often() -> None:
    """So that the looks take a small share of the core; the broker looks at no publisher."""
    assert probe_period(make_fleet(), Costs()) == 1.0
    assert probe_period(make_fleet(("{count: 4,", "{count: 4000,")), Costs()) == 2.0
    assert probe_period(make_fleet(("{count: 4,", "{count: 400000,")), Costs()) == 5.0
    fleet = make_fleet(("count: 20\n", "count: 400000\n"))
    assert probe_period(fleet, Costs()) == 1.0
    assert load.probing(fleet, Costs()).rate == 4


def test_memory_is_that_of_clients_and_subscriptions() -> None:
    """Before any message waits."""
    costs = Costs()
    found = load.memory(make_fleet(), costs)
    assert found["29 connections"] == 29 * costs.connection_bytes
    assert found["8 subscriptions"] == 8 * costs.subscription_bytes


def test_utilisation_is_the_work_over_what_can_be_done() -> None:
    """This is rho."""
    assert LoadStage("s", 2.0, 8.0, "messages", "").utilisation == 0.25


def test_a_long_message_waits_while_tcp_opens_its_window() -> None:
    """Ten segments, then twice as many a round trip, until the link is full."""
    link = LinkClass(0.1, 1e9)
    assert slow_start_seconds(10_000, link) == 0.0
    assert slow_start_seconds(30_000, link) == pytest.approx(0.1, rel=0.01)
    assert slow_start_seconds(100_000, link) == pytest.approx(0.2, rel=0.01)
    assert slow_start_seconds(100_000, LinkClass(0.01, 1e6)) == 0.0  # fourteen segments fill it


def test_a_busy_connection_has_no_slow_start() -> None:
    """The more messages, the fewer find that nothing was sent for a retransmission timeout."""
    link = LinkClass(0.1, 1e6)
    assert idle_ratio(0.0, link) == 1.0
    assert idle_ratio(1.0, link) == pytest.approx(math.exp(-0.3))
    assert idle_ratio(100.0, link) < 1e-12


def test_each_cost_says_where_it_is_from() -> None:
    """A number without a source is one that nobody can check."""
    assert [each.name for each in fields(Costs)] == list(SOURCE)
    assert all(SOURCE.values())


def test_a_faster_machine_takes_less_time_and_the_same_memory() -> None:
    """The speed is over that of the machine on which costs were measured."""
    costs = Costs()
    faster = costs.faster(2.0)
    assert faster.deliver == costs.deliver / 2
    assert faster.alone == costs.alone / 2
    assert faster.connection_bytes == costs.connection_bytes
