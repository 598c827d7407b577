from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.sessions.lanes import GIVE_UP_SECONDS, TAKEOVER_SECONDS
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = b"L".ljust(20_000, b".")


def connect(broker: VirtualBroker, client_id: str, other: str, **options: Any) -> VirtualClient:
    """Connect one lane, which names the other one."""
    properties: dict[str, Any] = {"user_property": [("penstock-lane-of", other)] if other else []}
    properties |= {"session_expiry_interval": 1000}
    return broker.connect(client_id, properties=properties, clean_start=False, **options)


def answered(client: VirtualClient) -> list[tuple[str, str]]:
    """Return what the CONNACK says of the other lane."""
    return list(client.connack.properties.get("user_property", ()))


def lanes(broker: VirtualBroker, **options: Any) -> tuple[VirtualClient, VirtualClient]:
    """Connect both lanes of a subscriber to all topics."""
    small, large = (
        connect(broker, one, other, **options) for one, other in (("s", "l"), ("l", "s"))
    )
    for client, sizes in ((small, "small"), (large, "large")):
        client.subscribe("#", 1, properties={"user_property": [("penstock-size", sizes)]})
    return small, large


def publisher(broker: VirtualBroker) -> VirtualClient:
    """Connect a client that publishes."""
    return broker.connect("publisher")


def test_lanes_that_name_each_other_keep_the_order_of_a_topic() -> None:
    """A small message waits for the acknowledgement of the large one before it."""
    broker = VirtualBroker()
    small, large = lanes(broker)
    assert answered(small) == [("penstock-lane-of", "")]
    assert answered(large) == [("penstock-lane-of", "s")]
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    sender.publish("cam", b"after", qos=1)
    sender.publish("alarm", b"1", qos=1)
    broker.advance(0.1)
    assert small.acknowledge() == [b"1"]
    assert large.acknowledge() == [LARGE]
    broker.settle()
    assert small.payloads() == [b"after"]


def test_the_order_holds_as_soon_as_one_lane_is_back_after_a_restart() -> None:
    """The session of the other one is there, whoever connects first."""
    broker = VirtualBroker()
    small, large = lanes(broker)
    large.lose()
    small.lose()
    publisher(broker).publish("cam", LARGE, qos=1)
    small = connect(broker, "s", "l")
    assert answered(small) == [("penstock-lane-of", "l")]
    publisher(broker).publish("cam", b"after", qos=1)
    assert small.payloads() == []


@pytest.mark.parametrize(
    ("names", "username"),
    [(["s"], None), ([""], None), (["a", "b"], None), (["$uplink/x/up"], None), (["other"], "u")],
)
def test_what_cannot_be_a_lane_is_ignored_and_counted(
    names: list[str], username: str | None
) -> None:
    """Itself, none, two, the broker's own, and the client of another user."""
    broker = VirtualBroker()
    broker.connect("other", username="someone")
    properties = {"user_property": [("penstock-lane-of", name) for name in names]}
    client = broker.connect("s", properties=properties, username=username)
    assert answered(client) == []
    assert broker.core.counters.user_properties_ignored == 1
    assert client.session.outbox.order is None


def test_a_third_client_does_not_join() -> None:
    """Two lanes make a subscriber."""
    broker = VirtualBroker()
    lanes(broker)
    assert answered(connect(broker, "third", "s")) == []


@pytest.mark.parametrize("end", ["session ends", "names none"])
def test_what_waits_for_a_lane_that_is_no_more_goes(end: str) -> None:
    """Its session has ended, or it connects without the property."""
    broker = VirtualBroker()
    small, large = lanes(broker)
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    sender.publish("cam", b"after", qos=1)
    assert small.payloads() == []
    large.lose()
    if end == "session ends":
        broker.connect("l", clean_start=True).lose()
    else:
        connect(broker, "l", "")
    broker.advance(0.1)
    assert small.acknowledge() == [b"after"]
    sender.publish("cam", b"direct", qos=1)
    assert small.payloads() == [b"direct"]
    assert small.session.is_direct


def test_a_lane_that_is_away_is_taken_over_and_given_up() -> None:
    """What waits goes by the other one; what is unacknowledged holds its topic for a while."""
    broker = VirtualBroker()
    small, large = lanes(broker)
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    large.lose()
    for topic, payload in (("other", LARGE), ("other", b"o"), ("cam", b"c")):
        sender.publish(topic, payload, qos=1)
    broker.advance(TAKEOVER_SECONDS - 0.1)
    assert small.payloads() == []
    broker.advance(0.2)
    assert small.acknowledge() == [LARGE, b"o"]
    broker.advance(GIVE_UP_SECONDS - TAKEOVER_SECONDS)
    assert small.acknowledge() == [b"c"]
    large = connect(broker, "l", "s")
    (again,) = large.take_all(Publish)
    assert (again.dup, again.payload) == (True, LARGE)
    large.send(PubAck(again.packet_id))
    sender.publish("cam", LARGE, qos=1)
    assert large.acknowledge() == [LARGE]
    for session in (small.session, large.session):
        session.check_invariants()
