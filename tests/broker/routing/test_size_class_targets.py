"""Subscriptions of one size class: who gets a message of which size, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.extensions import DeliveryGate, MessageSink, Receipt, SinkCounts, Verdict
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.link import Link
from penstock.broker.message import DEFAULT_THRESHOLD_S, Message, SizeClass
from penstock.broker.mqtt.packets import PubAck, Publish, SubAck, Subscribe, SubscriptionRequest
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.routing.shared_subscriptions import SharedSubscription
from penstock.broker.routing.subscriber import Subscriber
from tests.helpers.access import Access, finish
from tests.helpers.durable import DurableBroker
from tests.helpers.shares import check_books
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

SMALL = b"s" * 10
LARGE = b"L" * 11
LASTING = {"session_expiry_interval": 100}


class Gate(DeliveryGate):
    """Everything above ten bytes is large, for listener `wide` above a hundred; nothing waits."""

    def threshold_s(self, topic: str) -> int | None:
        """Return the least of both."""
        return None if topic == "never" else 10

    def is_large(self, message: Message, link: Link) -> bool:
        """Ask for the listener."""
        return message.payload_bytes > (100 if link.listener == "wide" else 10)

    def decide(self, message: Message, link: Link, sojourn: float, now: float) -> Verdict:  # noqa: ARG002
        """Let it go."""
        return Verdict(deliver=True)


class Sink(MessageSink):
    """Notes the payloads that it gets."""

    def __init__(self, sizes: SizeClass | None) -> None:
        self.name = f"sink {sizes}"
        self.topic_filters = ("#",)
        self.counts = SinkCounts()
        self.sizes = sizes
        self.payloads: list[bytes] = []

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take it."""
        self.payloads.append(message.read_payload())
        if receipt is not None:
            receipt.settle(0)


def with_gate(**extensions: Any) -> VirtualBroker:
    """Return a broker whose gate says that more than ten bytes are large."""
    return VirtualBroker(gate=Gate(), **extensions)


def asking(sizes: str) -> dict[str, Any]:
    """Return the properties of a SUBSCRIBE for one size class."""
    return {"user_property": [("penstock-size", sizes)]}


def lanes(broker: VirtualBroker, topic_filter: str = "t/#", qos: int = 1) -> list[VirtualClient]:
    """Return three subscribers: of small messages, of large ones, of both."""
    clients = []
    for name in ("small", "large", "both"):
        client = broker.connect(name)
        client.subscribe(topic_filter, qos, properties={} if name == "both" else asking(name))
        clients.append(client)
    return clients


@pytest.mark.parametrize("topic_filter", ["t/1", "t/+", "#"])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_lane_gets_its_size_class(topic_filter: str, version: int, qos: int) -> None:
    """Whatever the filter, and however often a topic is published to."""
    broker = with_gate()
    small, large, both = lanes(broker, topic_filter, 2)
    publisher = broker.connect("p", version)
    for number in range(1, 4):
        packet_ids = (2 * number, 2 * number + 1) if qos else (0, 0)
        publisher.publish("t/1", SMALL, qos=qos, packet_id=packet_ids[0])
        publisher.publish("t/1", LARGE, qos=qos, packet_id=packet_ids[1])
    assert small.payloads() == [SMALL] * 3
    assert large.payloads() == [LARGE] * 3
    assert sorted(both.payloads()) == [LARGE] * 3 + [SMALL] * 3
    check_books(broker)


def test_a_link_tells_that_subscriptions_bring_no_small_messages() -> None:
    """Where all that a session made are for large ones."""
    broker = with_gate()
    small, large, both = lanes(broker)
    assert [each.session.link.gets_small for each in (small, large, both)] == [True, False, True]
    large.subscribe("u/#", properties=asking("large"))
    assert not large.session.link.gets_small
    large.subscribe("v/#", properties=asking("small"))
    assert large.session.link.gets_small
    large.subscribe("w/#", properties=asking("large"))
    assert large.session.link.gets_small


def test_small_messages_take_the_fast_way_where_somebody_subscribes_to_one_class() -> None:
    """The cached plan is that of small messages."""
    broker = with_gate(core_class=FastCore)
    small, large, _ = lanes(broker)
    publisher = broker.connect("p")
    publisher.publish("t/1", SMALL)
    assert isinstance(broker.core, FastCore)
    plan = broker.core.fast_plans[5][b"t/1"]
    assert small.session in plan.sessions
    assert large.session not in plan.sessions
    assert plan.threshold_s == len(SMALL)


def test_without_a_gate_the_default_threshold_counts() -> None:
    """It is 10,000 bytes, and above it is strictly above."""
    broker = VirtualBroker()
    small, large, _ = lanes(broker)
    publisher = broker.connect("p")
    just, above = b"x" * DEFAULT_THRESHOLD_S, b"x" * (DEFAULT_THRESHOLD_S + 1)
    for payload in (just, above):
        publisher.publish("t/1", payload)
    assert small.payloads() == [just]
    assert large.payloads() == [above]


def test_where_the_gate_has_no_threshold_for_a_topic_all_of_it_is_small() -> None:
    """As for withholding: `threshold_s_by_topic: {never: null}`."""
    broker = with_gate()
    small, large, _ = lanes(broker, "never")
    broker.connect("p").publish("never", b"x" * 20_000)
    assert small.payloads() == [b"x" * 20_000]
    assert large.payloads() == []


def test_the_threshold_of_the_subscribers_listener_counts() -> None:
    """Between the least threshold and its own, a message is small for a subscriber."""
    broker = with_gate()
    small, large, _ = lanes(broker)
    small.session.link.listener = "wide"
    publisher = broker.connect("p")
    for n_bytes in (10, 11, 100, 101):
        publisher.publish("t/1", b"x" * n_bytes)
    assert list(map(len, small.payloads())) == [10, 11, 100]
    assert list(map(len, large.payloads())) == [11, 100, 101]


def test_overlapping_subscriptions_of_one_client_give_one_message() -> None:
    """It has the identifiers of those that take its size class, and the highest QoS of these."""
    broker = with_gate()
    client = broker.connect("c")
    client.subscribe("t/1", 2, properties={"subscription_identifier": [1], **asking("large")})
    client.subscribe("t/+", 1, properties={"subscription_identifier": [2], **asking("small")})
    client.subscribe("t/#", 0, properties={"subscription_identifier": [3]})
    publisher = broker.connect("p")
    for number, payload in enumerate((SMALL, LARGE), 1):
        publisher.publish("t/1", payload, qos=2, packet_id=number)
    small, large = client.take_all(Publish)
    assert (small.payload, small.qos) == (SMALL, 1)
    assert sorted(small.properties["subscription_identifier"]) == [2, 3]
    assert (large.payload, large.qos) == (LARGE, 2)
    assert sorted(large.properties["subscription_identifier"]) == [1, 3]


def test_no_local_holds_for_each_class() -> None:
    """[MQTT-3.8.3-3]: of one's own messages one gets those of the other subscription alone."""
    broker = with_gate()
    client = broker.connect("c")
    client.subscribe("t/1", no_local=True, properties=asking("large"))
    client.subscribe("t/+", properties=asking("small"))
    for payload in (SMALL, LARGE):
        client.publish("t/1", payload)
    assert client.payloads() == [SMALL]


def test_a_new_subscribe_replaces_the_class() -> None:
    """[MQTT-3.8.4-3]: the filter is the same; without the property both classes come again."""
    broker = with_gate()
    client, publisher = broker.connect("c"), broker.connect("p")
    got = []
    for sizes in ("small", "large", None, "small"):
        client.subscribe("t/#", properties={} if sizes is None else asking(sizes))
        for payload in (SMALL, LARGE):
            publisher.publish("t/1", payload)
        got.append(client.payloads())
    assert got == [[SMALL], [LARGE], [SMALL, LARGE], [SMALL]]
    assert len(client.session.subscriptions) == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["medium"], "user property penstock-size: read 'medium'; allowed: small or large"),
        (["Large"], "user property penstock-size: read 'Large'; allowed: small or large"),
        ([""], "user property penstock-size: read ''; allowed: small or large"),
        (["small", "small"], "user property penstock-size: read 2 of them; allowed: one"),
        (["x" * 999], f"user property penstock-size: read '{'x' * 40}'; allowed: small or large"),
    ],
)
def test_an_unknown_class_is_refused_for_each_filter(values: list[str], reason: str) -> None:
    """With a Reason String that names what was read and what is allowed; nothing has changed."""
    broker = with_gate()
    client = broker.connect("c")
    client.subscribe("a")
    requests = (SubscriptionRequest("a", 1), SubscriptionRequest("b", 1))
    properties = {"user_property": [("penstock-size", value) for value in values]}
    client.send(Subscribe(2, requests, properties))
    suback = client.take(SubAck)
    assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * 2
    assert suback.properties == {"reason_string": reason}
    assert [s.qos for s in client.session.subscriptions.values()] == [0]
    assert broker.core.counters.subscribe_refused == {"implementation specific error (0x83)": 2}


def test_other_user_properties_of_subscribe_change_nothing() -> None:
    """A client may have its own."""
    client = with_gate().connect("c")
    client.subscribe("t", properties={"user_property": [("size", "small"), ("x", "y")]})
    assert client.session.subscriptions["t"].sizes is None


# -- clients that cannot say it: listener and client id


def test_clients_of_a_listener_or_with_an_id_may_have_a_class() -> None:
    """The property decides before the pattern, and the pattern before the listener."""
    options = MqttOptions(sizes_by_client={"cam-*": "large", "any-*": None})
    broker = with_gate(options=options, sizes_by_listener={"default": "small"})
    publisher = broker.connect("p")
    wanted: dict[VirtualClient, list[bytes]] = {}
    for client_id, version, sizes, payloads in (
        ("a", 4, None, [SMALL]),
        ("b", 5, None, [SMALL]),
        ("c", 5, "large", [LARGE]),
        ("cam-1", 4, None, [LARGE]),
        ("cam-2", 5, "small", [SMALL]),
        ("any-1", 4, None, [SMALL, LARGE]),
    ):
        client = broker.connect(client_id, version)
        client.subscribe("t", properties={} if sizes is None else asking(sizes))
        wanted[client] = payloads
    for payload in (SMALL, LARGE):
        publisher.publish("t", payload)
    for client, payloads in wanted.items():
        assert client.payloads() == payloads


# -- retained messages


@pytest.mark.parametrize("has_access", [False, True])
def test_retained_messages_come_by_class(*, has_access: bool) -> None:
    """At SUBSCRIBE, by Retain Handling; a class that changes makes no new subscription."""
    broker = with_gate(access=Access() if has_access else None)
    publisher = broker.connect("p")
    publisher.publish("t/1", SMALL, retain=True)
    publisher.publish("t/2", LARGE, retain=True)
    client = broker.connect("c")

    def subscribe(sizes: str, **options: Any) -> list[bytes]:
        client.subscribe("t/#", properties=asking(sizes), **options)
        finish(client)
        return client.payloads()

    assert subscribe("large", retain_handling=1) == [LARGE]
    assert subscribe("small", retain_handling=1) == []
    assert subscribe("small", retain_handling=2) == []
    assert subscribe("small") == [SMALL]


def test_a_live_message_does_not_bring_retained_ones_of_the_other_class() -> None:
    """What is still due of its topic comes before it, if the subscription takes it."""
    broker = with_gate()
    publisher = broker.connect("p")
    for number in range(100):
        publisher.publish(f"t/{number:03}", LARGE if number == 99 else SMALL, retain=True)
    client = broker.connect("c")
    client.room_bytes = 0
    client.subscribe("t/#", properties=asking("small"))
    publisher.publish("t/099", b"live")
    client.room_bytes = None
    client.connection.resume_sending(broker.now)
    broker.settle()
    payloads = client.payloads()
    assert payloads.count(b"live") == 1
    assert LARGE not in payloads
    assert payloads.count(SMALL) == 99


# -- shared subscriptions

SHARE = "$share/workers/t/#"


def test_a_shared_message_goes_to_a_member_whose_class_takes_it() -> None:
    """Others have their turns with what they take."""
    broker = with_gate()
    members = lanes(broker, SHARE)
    publisher = broker.connect("p")
    for payload in (SMALL, LARGE):
        for _ in range(10):
            publisher.publish("t/1", payload)
    small, large, both = (client.payloads() for client in members)
    assert set(small) == {SMALL}
    assert set(large) == {LARGE}
    assert set(both) == {SMALL, LARGE}
    assert len(small) + len(large) + len(both) == 20


def test_a_share_without_a_taker_does_not_match() -> None:
    """The publisher of a large message is told that nobody has subscribed to it."""
    broker = with_gate()
    small, large, both = lanes(broker, SHARE)
    publisher = broker.connect("p")
    both.lose()
    large.lose()
    publisher.publish("t/1", LARGE, qos=1)
    publisher.publish("t/1", SMALL, qos=1, packet_id=2)
    codes = [packet.reason_code for packet in publisher.inbox]  # type: ignore[union-attr]
    assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS, 0]
    assert small.payloads() == [SMALL]
    check_books(broker)


def worker(broker: VirtualBroker, client_id: str, sizes: str | None) -> VirtualClient:
    """Connect a member of the share whose session lasts."""
    client = broker.connect(client_id, clean_start=False, properties=LASTING)
    client.subscribe(SHARE, 1, properties={} if sizes is None else asking(sizes))
    return client


def test_an_idle_member_takes_over_what_its_class_takes() -> None:
    """A member of the other class that has searched before is no obstacle."""
    broker = with_gate()
    away = worker(broker, "away", None)
    away.lose()
    publisher = broker.connect("p")
    for number in range(100):
        payload = LARGE if number % 2 else SMALL
        publisher.publish("t/1", payload, qos=1, packet_id=number + 1)
    small = worker(broker, "small", "small")
    for _ in range(100):
        small.acknowledge()
    assert broker.session("away").outbox.n_messages == 50
    large = worker(broker, "large", "large")
    got = [payload for _ in range(100) for payload in large.acknowledge()]
    assert got == [LARGE] * 50
    assert small.acknowledge() == []
    assert broker.session("away").outbox.n_messages == 0
    check_books(broker)


def test_a_backlog_of_the_other_class_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again with each message that it gets: its only taker may be away for hours."""
    broker = with_gate()
    worker(broker, "away", "large").lose()
    small = worker(broker, "small", "small")
    publisher = broker.connect("p")
    searched: list[Outbox] = []
    take_where = Outbox.take_where

    def noting(outbox: Outbox, *args: Any) -> list[Delivery]:
        searched.append(outbox)
        return take_where(outbox, *args)

    monkeypatch.setattr(Outbox, "take_where", noting)
    for number in range(1, 41, 2):
        publisher.publish("t/1", LARGE, qos=1, packet_id=number)
        publisher.publish("t/1", SMALL, qos=1, packet_id=number + 1)
        assert small.acknowledge() == [SMALL]
    assert searched == [broker.session("away").outbox]
    check_books(broker)


def test_a_member_that_leaves_keeps_what_no_other_member_takes() -> None:
    """[MQTT-3.10.4-3]: it is sent what waits for it; the rest goes to the others."""
    broker = with_gate()
    both, small = worker(broker, "both", None), worker(broker, "small", "small")
    both.room_bytes = small.room_bytes = 0
    publisher = broker.connect("p")
    for number in range(1, 21):
        payload = LARGE if number % 2 else SMALL
        publisher.publish("t/1", payload, qos=1, packet_id=number)
    broker.core.sessions.remove_subscription(both.session, SHARE, broker.now)
    for client in (both, small):
        client.room_bytes = None
        client.connection.resume_sending(broker.now)
    broker.settle()
    got = {client: [p for _ in range(30) for p in client.acknowledge()] for client in (both, small)}
    assert got[both].count(LARGE) == 10
    assert got[small].count(LARGE) == 0
    assert got[both].count(SMALL) + got[small].count(SMALL) == 10
    check_books(broker)


def test_what_no_member_takes_ends_with_its_session_and_is_counted() -> None:
    """It is not handed to members of the other class."""
    broker = with_gate()
    both = worker(broker, "both", None)
    both.lose()
    publisher = broker.connect("p")
    publisher.publish("t/1", LARGE, qos=1)
    publisher.publish("t/1", SMALL, qos=1, packet_id=2)
    small = worker(broker, "small", "small")
    assert small.acknowledge() == [SMALL]
    broker.advance(101)
    assert broker.core.sessions.get("both") is None
    assert broker.core.ended.dropped == {"session_ended": 1}
    check_books(broker)


# -- what else publishes, and who else gets it


def test_a_will_is_classed_like_other_messages() -> None:
    """Also one that is delayed."""
    broker = with_gate()
    small, large, _ = lanes(broker, "will")
    for number, payload in enumerate((SMALL, LARGE)):
        broker.connect(f"w{number}", will=will("will", payload)).lose()
    assert small.payloads() == [SMALL]
    assert large.payloads() == [LARGE]


def test_sinks_may_take_one_class() -> None:
    """By the threshold without a listener; the publisher's receipt waits for these alone."""
    sinks = [Sink("small"), Sink("large"), Sink(None)]
    broker = with_gate(sinks=sinks)
    publisher = broker.connect("p")
    for number, payload in enumerate((SMALL, LARGE), 1):
        publisher.publish("t", payload, qos=1, packet_id=number)
    assert [sink.payloads for sink in sinks] == [[SMALL], [LARGE], [SMALL, LARGE]]
    assert len(publisher.inbox) == 2


@pytest.mark.parametrize("receive", [False, True])
def test_access_control_is_asked_about_those_who_get_a_message(*, receive: bool) -> None:
    """The way with access control is the same."""
    broker = with_gate(access=Access(receive=receive))
    small, large, both = lanes(broker)
    publisher = broker.connect("p")
    for payload in (SMALL, LARGE):
        publisher.publish("t/1", payload)
        finish(publisher)
    assert [c.payloads() for c in (small, large, both)] == [[SMALL], [LARGE], [SMALL, LARGE]]


@pytest.mark.parametrize("version", [4, 5])
def test_only_subscribers_who_take_a_message_need_room_for_it(version: int) -> None:
    """A message that was held for want of room goes to those who take it alone."""
    broker = with_gate(limits=Limits(queued_messages=1))
    for name in ("small", "large"):
        client = broker.connect(name, clean_start=False, properties=LASTING)
        client.subscribe("t", 1, properties=asking(name))
        client.stall()
    publisher = broker.connect("p", version)
    for number, payload in enumerate((LARGE, SMALL, LARGE), 1):
        publisher.publish("t", payload, qos=1, packet_id=number)
    answers = publisher.take_all(PubAck)
    assert [packet.packet_id for packet in answers if not packet.reason_code] == [1, 2]
    large = broker.connect("large", clean_start=False, properties=LASTING)
    got = large.acknowledge()
    broker.advance(2)
    got += large.acknowledge()
    assert got == [LARGE] * (2 if version == 4 else 1)
    small = broker.connect("small", clean_start=False, properties=LASTING)
    assert small.acknowledge() == [SMALL]
    check_books(broker)


def test_a_share_of_many_asks_no_more_members_than_it_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn costs the same however many members take one size class."""
    broker = with_gate()
    for number in range(50):
        broker.connect(f"s{number}").subscribe(SHARE, properties=asking("small"))
    publisher = broker.connect("p")
    publisher.publish("t/1", SMALL)
    asked: list[Subscriber] = []
    takes = SharedSubscription.takes

    def noting(share: SharedSubscription, session: Subscriber, message: Message) -> bool:
        asked.append(session)
        return takes(share, session, message)

    monkeypatch.setattr(SharedSubscription, "takes", noting)
    publisher.publish("t/1", SMALL)
    assert len(asked) == 1


def test_the_class_outlives_the_process() -> None:
    """The subscription of a durable session is restored with it."""
    broker = DurableBroker(gate=Gate())
    small, large = worker(broker, "small", "small"), worker(broker, "large", "large")
    for client, sizes in ((small, "small"), (large, "large")):
        client.subscribe("o", 1, properties=asking(sizes))
    broker = broker.crash()
    publisher = broker.connect("p")
    for number, payload in enumerate((SMALL, LARGE), 1):
        publisher.publish("o", payload, qos=1, packet_id=2 * number)
        publisher.publish("t/1", payload, qos=1, packet_id=2 * number + 1)
    for name, payload in (("small", SMALL), ("large", LARGE)):
        client = broker.connect(name, clean_start=False, properties=LASTING)
        assert client.acknowledge() == [payload] * 2
