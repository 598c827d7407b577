from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import PubAck, Publish
from tests.helpers.durable import DurableBroker
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = b"L".ljust(20_000, b".")


def connect(broker: VirtualBroker, client_id: str, other: str, **options: Any) -> VirtualClient:
    """Connect one lane, which names the other one."""
    properties: dict[str, Any] = {"user_property": [("penstock-lane-of", other)] if other else []}
    properties |= {"session_expiry_interval": 1000}
    return broker.connect(client_id, properties=properties, clean_start=False, **options)


def answered(client: VirtualClient) -> list[tuple[str, str]]:
    """Return what the CONNACK says of the other lane."""
    told = client.connack.properties.get("user_property", ())
    return [(name, value) for name, value in told if name == "penstock-lane-of"]


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


def test_a_message_to_which_both_have_subscribed_comes_on_one_of_them() -> None:
    """So a subscription may move from one lane to the other while messages come."""
    broker = VirtualBroker()
    small, large = lanes(broker)
    small.subscribe("#", 1)
    sender = publisher(broker)
    for payload in (LARGE, b"s"):
        sender.publish("cam", payload, qos=1)
    sender.send(
        *(Publish("cam", b"%d" % n, qos=1, packet_id=n) for n in range(1, 5)),
    )
    got = []
    for _ in range(6):
        got += [*large.acknowledge(), *small.acknowledge()]
        broker.settle()
    assert got == [LARGE, b"s", b"1", b"2", b"3", b"4"]


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


@pytest.mark.parametrize("commits", [(), ("cam",), ("cam", "more")])
def test_what_came_before_a_lane_is_back_keeps_its_order_wherever_it_is_stored(
    commits: Sequence[str],
) -> None:
    """Some of it is from before the restart, some is stored since, and some not yet."""
    broker = DurableBroker()
    small, large = lanes(broker)
    publish_in_turn(broker, range(2))
    broker = broker.crash()
    broker.commits_at_once = False
    for first in (2, 4, 6):
        publish_in_turn(broker, range(first, first + 2))
        if commits and first < 2 + 2 * len(commits):
            broker.commit()
    broker.commits_at_once = True  # behind the CONNECT
    small, large = connect(broker, "s", "l"), connect(broker, "l", "s")
    got: list[int] = []
    for _ in range(20):
        for client in (small, large):
            got += [int(payload.rstrip(b".")) for payload in client.acknowledge()]
        broker.settle()
    assert got == list(range(8))


def publish_in_turn(broker: VirtualBroker, numbers: Iterable[int]) -> None:
    """Publish numbers to one topic: even ones are large."""
    sender = publisher(broker)
    for number in numbers:
        payload = b"%d" % number
        sender.send(
            Publish(
                "cam",
                payload if number % 2 else payload.ljust(20_000, b"."),
                qos=1,
                packet_id=number + 1,
            )
        )


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


def test_a_client_that_names_no_other_one_is_no_lane() -> None:
    """Another one that names it holds back none of its messages."""
    broker = VirtualBroker()
    victim = broker.connect("l", properties={"session_expiry_interval": 1000})
    victim.subscribe("#", 1)
    other = connect(broker, "s", "l")
    other.subscribe("#", 1)
    assert victim.session.outbox.order is None
    victim.lose()
    other = connect(broker, "s", "l")  # it may be a lane whose broker has been restarted
    assert other.session.outbox.order is not None
    victim = broker.connect("l", clean_start=False)
    assert other.session.outbox.order is victim.session.outbox.order is None
    publisher(broker).publish("cam", b"1", qos=1)
    assert other.payloads() == [b"1"]
    assert victim.acknowledge() == [b"1"]


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


@pytest.mark.parametrize(("takeover_seconds", "give_up_seconds"), [(10.0, 60.0), (3.0, 700.0)])
def test_a_lane_that_is_away_is_taken_over_and_given_up(
    takeover_seconds: float, give_up_seconds: float
) -> None:
    """What waits goes by the other one; what is unacknowledged holds its topic for a while."""
    options = MqttOptions()
    if takeover_seconds != options.lane_takeover_seconds:
        options = MqttOptions(
            lane_takeover_seconds=takeover_seconds, lane_give_up_seconds=give_up_seconds
        )
    broker = VirtualBroker(options=options)
    small, large = lanes(broker)
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    large.lose()
    for topic, payload in (("other", LARGE), ("other", b"o"), ("cam", b"c")):
        sender.publish(topic, payload, qos=1)
    broker.advance(takeover_seconds - 0.1)
    assert small.payloads() == []
    broker.advance(0.2)
    assert small.acknowledge() == [LARGE, b"o"]
    broker.advance(give_up_seconds - takeover_seconds)
    assert small.acknowledge() == [b"c"]
    large = connect(broker, "l", "s")
    (again,) = large.take_all(Publish)
    assert (again.dup, again.payload) == (True, LARGE)
    large.send(PubAck(again.packet_id))
    sender.publish("cam", LARGE, qos=1)
    assert large.acknowledge() == [LARGE]
    for session in (small.session, large.session):
        session.check_invariants()


def taking(broker: VirtualBroker, **options: Any) -> tuple[VirtualClient, VirtualClient]:
    """Connect a subscriber to all topics, and a lane that takes its large messages."""
    small = connect(broker, "s", "l", **options)
    small.subscribe("#", 1)
    return small, connect_taking(broker, **options)


def connect_taking(broker: VirtualBroker, **options: Any) -> VirtualClient:
    """Connect the lane that takes the large messages."""
    told = [("penstock-lane-of", "s"), ("penstock-size", "large")]
    properties = {"user_property": told, "session_expiry_interval": 1000}
    return broker.connect("l", properties=properties, clean_start=False, **options)


def test_a_lane_takes_the_large_messages_of_the_other_ones_subscriptions() -> None:
    """It has none of its own; the order of each topic holds across both."""
    broker = VirtualBroker()
    small, large = taking(broker)
    assert ("penstock-large-above", "10000") in small.connack.properties["user_property"]
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    sender.publish("cam", b"after", qos=1)
    sender.publish("alarm", b"1", qos=1)
    sender.publish("cam0", LARGE, qos=0)
    broker.settle()
    assert small.acknowledge() == [b"1"]
    assert large.acknowledge() == [LARGE, LARGE]
    broker.settle()
    assert small.payloads() == [b"after"]


def test_large_messages_that_wait_go_to_the_lane_that_takes_them() -> None:
    """Retained ones, and those that waited for the client before it had a second lane."""
    broker = VirtualBroker()
    publisher(broker).publish("retained", LARGE, retain=True)
    small = connect(broker, "s", "")
    small.subscribe("#", 1)
    assert small.acknowledge() == [LARGE]
    small.lose()
    sender = publisher(broker)
    for payload in (b"1", LARGE, b"2"):
        sender.publish("cam", payload, qos=1)
    large = connect_taking(broker)
    small = connect(broker, "s", "l")
    broker.settle()
    assert small.acknowledge() == [b"1"]
    assert large.acknowledge() == [LARGE]
    broker.settle()
    assert small.acknowledge() == [b"2"]


@pytest.mark.parametrize("end", ["plain", "expired"])
def test_what_a_lane_has_taken_goes_back_when_it_is_no_more(end: str) -> None:
    """What waits, and what it has not acknowledged; nothing comes twice that is complete."""
    broker = VirtualBroker()
    small, large = taking(broker)
    sender = publisher(broker)
    for number in range(3):
        sender.publish("cam", b"%d" % number + LARGE, qos=1)
    broker.settle()
    large.lose()
    sender.publish("cam", b"3" + LARGE, qos=1)
    if end == "plain":
        small.lose()
        small = connect(broker, "s", "")
    else:
        broker.advance(1001)
    broker.settle()
    got: list[bytes] = []
    for _ in range(5):
        got += [payload[:1] for payload in small.acknowledge()]
        broker.settle()
    assert got == [b"0", b"1", b"2", b"3"]


def test_a_lane_that_is_cleared_gives_nothing_back() -> None:
    """The client was killed and begins anew: what it had not acknowledged is of its old session."""
    broker = VirtualBroker()
    small, large = taking(broker)
    publisher(broker).publish("cam", LARGE, qos=1)
    broker.settle()
    small.lose()
    large.lose()
    small = broker.connect(
        "s", clean_start=True, properties={"user_property": [("penstock-lane-of", "l")]}
    )
    small.subscribe("#", 1)
    broker.connect("l", clean_start=True, properties={"user_property": [("penstock-lane-of", "s")]})
    broker.settle()
    assert small.payloads() == []
