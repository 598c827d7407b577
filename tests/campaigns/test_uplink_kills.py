from __future__ import annotations

import pytest

from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from tests.campaigns.uplink_kills import By, Cloud, Collector, Publisher, judge, run

LIFE_SECONDS = 0.5

KILLS = 2
SEED = 1
"""The first kill is of the edge, the second of the cloud."""


def acknowledged(qos: int) -> Publisher:
    """Return a publisher of which 0, 1 and 2 were acknowledged."""
    publisher = Publisher(0, f"up/{qos}", qos)
    publisher.acknowledged = {0, 1, 2}
    return publisher


def broken(received: list[int], qos: int) -> set[str]:
    """Return the promises that are broken where a client got these numbers."""
    far, near, local = (Collector(0, name, "#") for name in ("far", "near", "local"))
    far.numbers = {f"up/{qos}": received}
    findings = judge([acknowledged(qos)], [], far, near, local)
    return {each.name for each in findings if each.is_met is False and each.name.startswith("up")}


def test_each_broken_promise_is_found() -> None:
    """A repeat breaks one at QoS 2 alone."""
    assert broken([0, 1, 2], 2) == set()
    assert broken([0, 1, 0, 2], 1) == set()
    assert broken([0, 1, 0, 2], 2) == {"up, QoS 2: received twice"}
    assert broken([0, 2], 2) == {"up: of these lost"}
    assert broken([1, 0, 2], 1) == {"up, QoS 1: out of order"}


def test_a_collector_takes_a_message_of_qos_2_once_until_it_is_released() -> None:
    """A repeat with its identifier is none of the messages behind it."""
    collector = Collector(0, "far", "#")
    for _ in range(2):
        collector.received(Publish("site/up/2", b"7", qos=2, packet_id=1))
    collector.received(PubRel(1))
    collector.received(Publish("site/up/2", b"8", qos=2, packet_id=1))
    assert collector.numbers == {"up/2": [7, 8]}


def test_a_publisher_knows_what_was_acknowledged() -> None:
    """At QoS 2 by PUBREC; the identifier is free after PUBCOMP."""
    publisher = Publisher(0, "up/2", 2)
    publisher._sent = {1: 5, 2: 6, 3: 7}
    publisher.received(PubAck(1))
    publisher.received(PubRec(2))
    publisher.received(PubRec(3, 0x97))
    assert publisher.acknowledged == {5, 6}
    assert not publisher.is_done
    for packet_id in (2, 3):
        publisher.received(PubComp(packet_id))
    assert publisher.is_done


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(("cloud", "lanes"), [("penstock", "size"), ("mosquitto", None)])
def test_kills_of_both_ends_break_no_promise(cloud: Cloud, lanes: By | None) -> None:
    """What was acknowledged on one side reaches the other in order, and at QoS 2 once.

    Each lane is an uplink as one without lanes is.
    """
    findings = run(cloud, KILLS, SEED, LIFE_SECONDS, lanes)
    assert not [each for each in findings if each.is_met is False]
