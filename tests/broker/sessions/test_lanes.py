from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.mqtt.packets import PubAck, Publish, PubRec, Subscribe, SubscriptionRequest
from tests.helpers.durable import DurableBroker
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient

LARGE = b"L".ljust(20_000, b".")


def connect(
    broker: VirtualBroker,
    client_id: str,
    other: str,
    *,
    told: tuple[()] | tuple[str, str] = (),
    **options: Any,
) -> VirtualClient:
    """Connect one lane, which names the other one, and tells something else."""
    properties: dict[str, Any] = {"user_property": [("penstock-lane-of", other)] if other else []}
    properties["user_property"] += [told] if told else []
    properties |= {"session_expiry_interval": 1000}
    options.setdefault("clean_start", False)
    return broker.connect(client_id, properties=properties, **options)


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
    sender.send(*(Publish("cam", b"%d" % n, qos=1, packet_id=n) for n in range(1, 5)))
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


TAKES = ("penstock-size", "large")
AWAITS = ("penstock-size", "small")


def taking(broker: VirtualBroker, **options: Any) -> tuple[VirtualClient, VirtualClient]:
    """Connect a subscriber to all topics, and a lane that takes its large messages."""
    small = connect(broker, "s", "l", **options)
    small.subscribe("#", 1)
    return small, connect(broker, "l", "s", told=TAKES, **options)


def drained(broker: VirtualBroker, *clients: VirtualClient) -> list[bytes]:
    """Acknowledge all that comes; return the first byte of each payload in order."""
    got: list[bytes] = []
    for _ in range(10):
        for client in clients:
            got += [payload[:1] for payload in client.acknowledge()]
        broker.settle()
    return got


def test_a_lane_takes_the_large_messages_of_the_other_ones_subscriptions() -> None:
    """It has none of its own; the order of each topic holds across both."""
    broker = VirtualBroker()
    small, large = taking(broker)
    assert ("penstock-large-above", "10000") in small.connack.properties["user_property"]
    sender = publisher(broker)
    sender.publish("cam", LARGE, qos=1)
    sender.publish("cam", b"after", qos=1)
    sender.publish("alarm", b"1", qos=1)
    broker.settle()
    assert small.acknowledge() == [b"1"]
    assert large.acknowledge() == [LARGE]
    broker.settle()
    assert small.payloads() == [b"after"]


def test_a_lane_that_takes_large_messages_gets_no_small_one_by_its_subscriptions() -> None:
    """So no policy holds a large one back for the sake of small ones there."""
    small, large = taking(VirtualBroker())
    assert small.session.link.gets_small
    assert not large.session.link.gets_small
    large.subscribe("own", 1)
    assert large.session.link.gets_small


def test_messages_of_qos_0_follow_a_large_one_of_their_topic_for_a_while() -> None:
    """Nobody says when that one has arrived."""
    broker = VirtualBroker()
    small, large = taking(broker)
    sender = publisher(broker)
    for payload in (b"0", LARGE, b"2"):
        sender.publish("cam", payload)
    sender.publish("alarm", b"1")
    broker.settle()
    assert small.payloads() == [b"0", b"1"]
    assert large.payloads() == [LARGE, b"2"]
    broker.advance(61)
    sender.publish("other", LARGE)
    sender.publish("cam", b"3")
    broker.settle()
    assert small.payloads() == [b"3"]


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
    large = connect(broker, "l", "s", told=TAKES)
    small = connect(broker, "s", "l")
    broker.settle()
    assert small.acknowledge() == [b"1"]
    assert large.acknowledge() == [LARGE]
    broker.settle()
    assert small.acknowledge() == [b"2"]


def test_large_messages_await_a_lane_that_is_announced() -> None:
    """A retained one and a new one of QoS 0; those behind them on their topics, too."""
    broker = VirtualBroker()
    publisher(broker).publish("cam", LARGE, retain=True)
    small = connect(broker, "s", "l", told=AWAITS)
    small.subscribe("#", 1)
    sender = publisher(broker)
    sender.publish("cam", b"after", qos=1)
    sender.publish("other", LARGE)
    sender.publish("alarm", b"1", qos=1)
    broker.advance(9.9)
    assert small.acknowledge() == [b"1"]
    large = connect(broker, "l", "s", told=TAKES)
    broker.settle()
    assert large.acknowledge() == [LARGE, LARGE]
    broker.advance(0.1)
    assert small.acknowledge() == [b"after"]


def test_what_comes_before_a_lane_that_is_announced_keeps_its_order() -> None:
    """Though the arrival of small messages is remembered to the eighth of a second."""
    broker = VirtualBroker(gate=SwitchGate(is_open=True))
    small = connect(broker, "s", "l", told=AWAITS)
    small.subscribe("#", 1)
    broker.advance(0.1)  # the next eighth begins in 25 ms
    sender = publisher(broker)
    for payload in (b"before", LARGE, b"after"):
        sender.publish("cam", payload, qos=1)
    large = connect(broker, "l", "s", told=TAKES)
    broker.settle()
    assert small.acknowledge() == [b"before"]
    broker.settle()
    assert small.payloads() == []
    assert large.acknowledge() == [LARGE]
    broker.settle()
    assert small.payloads() == [b"after"]


@pytest.mark.parametrize("has_been_there", [True, False])
def test_large_messages_do_not_await_a_lane_for_ever(*, has_been_there: bool) -> None:
    """The lane was refused, or the path carries one connection alone."""
    broker = VirtualBroker()
    if has_been_there:
        taking(broker)[1].lose()
    small = connect(broker, "s", "l", told=AWAITS)
    small.subscribe("#", 1)
    sender = publisher(broker)
    for payload in (LARGE, b"2"):
        sender.publish("cam", payload, qos=1)
    broker.advance(9.9)
    assert small.payloads() == []
    broker.advance(0.2)
    assert drained(broker, small) == [b"L", b"2"]
    large = connect(broker, "l", "s", told=TAKES)
    sender.publish("cam", LARGE, qos=1)
    broker.settle()
    assert large.acknowledge() == [LARGE]


@pytest.mark.parametrize("end", ["plain", "expired", "names none"])
def test_what_a_lane_has_taken_goes_back_when_it_is_no_more(end: str) -> None:
    """What waits, and what it has not acknowledged."""
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
    elif end == "names none":
        connect(broker, "l", "")
    else:
        broker.advance(1001)
    assert drained(broker, small) == [b"0", b"1", b"2", b"3"]


def test_a_message_of_qos_2_that_was_received_does_not_come_again() -> None:
    """Its lane is no more: another one would have another packet identifier for it."""
    broker = VirtualBroker()
    small, large = taking(broker)
    small.subscribe("#", 2)
    sender = publisher(broker)
    for number in range(2):
        sender.publish("cam", b"%d" % number + LARGE, qos=2, packet_id=number + 1)
    broker.settle()
    first = large.take(Publish)
    large.send(PubRec(first.packet_id))
    large.lose()
    small.lose()
    small = connect(broker, "s", "")
    broker.settle()
    assert [each.payload[:1] for each in small.inbox if isinstance(each, Publish)] == [b"1"]


def test_a_lane_that_is_cleared_gives_nothing_back() -> None:
    """The client was killed and begins anew: what it had not acknowledged is of its old session."""
    broker = VirtualBroker()
    small, large = taking(broker)
    publisher(broker).publish("cam", LARGE, qos=1)
    broker.settle()
    small.lose()
    large.lose()
    small = connect(broker, "s", "l", told=AWAITS, clean_start=True)
    small.subscribe("#", 1)
    connect(broker, "l", "s", told=TAKES, clean_start=True)
    broker.advance(20)
    assert small.payloads() == []


def test_another_user_gets_nothing_back() -> None:
    """A Client Identifier is no secret."""
    broker = VirtualBroker()
    small, large = taking(broker, username="u")
    publisher(broker).publish("cam", LARGE, qos=1)
    large.lose()
    small.lose()
    small = connect(broker, "s", "", username="v")
    broker.settle()
    assert small.payloads() == []


def test_a_lane_may_take_the_large_messages_of_a_client_of_mqtt_3_1_1() -> None:
    """Which cannot name it: when it connects, it has all messages until the lane is there again."""
    broker = VirtualBroker()
    small = broker.connect("s", version=4, clean_start=False)
    small.subscribe("#", 1)
    sender = publisher(broker)
    for is_lost in (False, True):
        large = connect(broker, "l", "s", told=TAKES)
        assert answered(large) == [("penstock-lane-of", "s")]
        sender.publish("cam", LARGE, qos=1)
        sender.publish("alarm", b"1", qos=1)
        broker.settle()
        assert large.acknowledge() == [LARGE]
        assert small.acknowledge() == [b"1"]
        sender.publish("cam", LARGE, qos=1)
        broker.settle()
        assert small.payloads() == []
        if is_lost:
            large.lose()
        small = broker.connect("s", version=4, clean_start=False)
        assert large.is_lost
        broker.settle()
        assert small.acknowledge() == [LARGE]


def test_a_client_of_mqtt_5_must_name_the_lane_that_takes_its_large_messages() -> None:
    """And one of MQTT 3.1.1 shares the user with it."""
    broker = VirtualBroker()
    named = broker.connect("s")
    other = broker.connect("o", version=4, username="u")
    for victim in (named, other):
        victim.subscribe("#", 1)
        connect(broker, "l", victim.session.client_id, told=TAKES)
    publisher(broker).publish("cam", LARGE, qos=1)
    broker.settle()
    assert named.acknowledge() == other.acknowledge() == [LARGE]


def test_a_lane_whose_first_one_is_no_more_may_be_that_of_another() -> None:
    """The client without a Client Identifier of its own has been assigned another one."""
    broker = VirtualBroker()
    small, _ = taking(broker)
    small.lose()
    broker.connect("s", clean_start=True, properties={"session_expiry_interval": 0}).lose()
    other = connect(broker, "t", "l", told=AWAITS)
    assert answered(other) == [("penstock-lane-of", "l")]
    connect(broker, "l", "t", told=TAKES)
    other.subscribe("#", 1)
    publisher(broker).publish("cam", LARGE, qos=1)
    broker.settle()
    assert other.payloads() == []


def test_what_a_lane_publishes_comes_from_the_other_one() -> None:
    """No Local holds for both."""
    broker = VirtualBroker()
    small, large = taking(broker)
    small.send(Subscribe(7, (SubscriptionRequest("#", 1, no_local=True),)))
    large.publish("cam", LARGE, qos=1)
    broker.settle()
    assert small.payloads() == large.payloads() == []


@pytest.mark.parametrize("size", ["tiny", ""])
def test_an_unknown_size_is_ignored_and_counted(size: str) -> None:
    """The lane is one that has subscriptions of its own."""
    broker = VirtualBroker()
    small = connect(broker, "s", "l")
    small.subscribe("#", 1)
    large = connect(broker, "l", "s", told=("penstock-size", size))
    assert broker.core.counters.user_properties_ignored == 1
    publisher(broker).publish("cam", LARGE, qos=1)
    broker.settle()
    assert small.payloads() == [LARGE]
    assert large.payloads() == []
