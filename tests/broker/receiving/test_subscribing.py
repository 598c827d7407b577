"""What the broker answers to each packet, on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config.limits import Limits
from penstock.broker.events import Callbacks, ClientSubscribed
from penstock.broker.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.receiving.subscribing import FILTERS_IN_TURN
from tests.helpers.access import Access, finish
from tests.helpers.effort import examples
from tests.helpers.virtual import VirtualBroker, VirtualClient

FILTERS = ("a", "a/+", "a/b/#", "é/b", "b\t", "$SYS/a", "$share/s/a", "no", "no/+")

# -- SUBSCRIBE, UNSUBSCRIBE


@pytest.mark.mqtt5("2.2.1-6", "3.8.4-1", "3.8.4-2", "3.8.4-5", "3.8.4-6", "3.8.4-7", "3.9.3-1")
def test_each_filter_has_its_reason_code() -> None:
    """[MQTT-3.8.4-6]: one code for each filter, in order."""
    client = VirtualBroker().connect("a")
    client.send(Subscribe(5, (SubscriptionRequest("a/+", 2), SubscriptionRequest("b", 0))))
    suback = client.take(SubAck)
    assert suback.packet_id == 5
    assert suback.reason_codes == (2, 0)
    assert sorted(client.session.subscriptions) == ["a/+", "b"]


def test_many_filters_are_taken_in_parts_and_answered_as_one() -> None:
    """Others have their turn meanwhile, and what comes behind waits for the answer."""
    broker = VirtualBroker()
    other = broker.connect("b")
    client = broker.connect("a")
    filters = tuple(f"t/{number}" for number in range(3 * FILTERS_IN_TURN))
    requests = tuple(SubscriptionRequest(name, number % 3) for number, name in enumerate(filters))
    client.send(Subscribe(5, requests), PingReq())
    assert client.inbox == []
    assert 0 < len(client.session.subscriptions) < len(filters)
    other.send(PingReq())
    other.take(PingResp)
    finish(client)
    assert client.take(SubAck).reason_codes == tuple(request.qos for request in requests)
    client.take(PingResp)
    client.send(Unsubscribe(6, (*filters, "unknown")), PingReq())
    assert client.inbox == []
    assert 0 < len(client.session.subscriptions) < len(filters)
    finish(client)
    codes = (*(0 for _ in filters), ReasonCode.NO_SUBSCRIPTION_EXISTED)
    assert client.take(UnsubAck).reason_codes == codes
    client.take(PingResp)
    assert broker.core.tree.n_subscriptions == 0


@settings(max_examples=examples(60))
@given(
    filters=st.lists(
        st.tuples(st.sampled_from(FILTERS), st.integers(0, 2)), min_size=1, max_size=8
    ),
    waits=st.sampled_from([None, False, True]),
    most=st.sampled_from([3, 100]),
    most_bytes=st.sampled_from([900, 1_000_000]),
)
def test_filters_of_one_packet_are_taken_as_those_of_one_each(
    *, filters: list[tuple[str, int]], waits: bool | None, most: int, most_bytes: int
) -> None:
    """The same codes, subscriptions, events and account, whether access control waits or not."""
    requests = [SubscriptionRequest(*each) for each in filters]
    seen = []
    for packets in ([tuple(requests)], [(each,) for each in requests]):
        told: list[ClientSubscribed] = []
        access = None
        if waits is not None:
            access = Access(publish=False, receive=False)
            access.refused.update({("subscribe", "no"), ("subscribe", "a/b/#")})
        broker = VirtualBroker(
            Limits(subscriptions=most, subscription_bytes=most_bytes),
            access=access,
            callbacks=Callbacks(client_subscribed=(told.append,)),
        )
        client = broker.connect("a")
        if access is not None:
            access.waits = bool(waits)
        codes: list[int] = []
        for packet_id, packet in enumerate(packets, 1):
            client.send(Subscribe(packet_id, packet))
            finish(client)
            codes += client.take(SubAck).reason_codes
        tree = broker.core.tree
        seen.append(
            (
                codes,
                [(each.topic_filter, each.qos) for each in client.session.subscriptions.values()],
                [event[1:] for event in told],
                client.session.subscription_bytes,
                (tree.n_subscriptions, tree.n_bytes, sorted(tree.shares)),
                [target.session.client_id for target in tree.plan("a", b"a").targets],
            )
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
def test_client_that_leaves_while_its_filters_are_taken_is_not_answered(
    kind: type[Subscribe | Unsubscribe],
) -> None:
    """Nothing more is done for a session whose connection has ended."""
    broker = VirtualBroker()
    client = broker.connect("a")
    filters = tuple(f"t/{number}" for number in range(2 * FILTERS_IN_TURN))
    if kind is Subscribe:
        client.send(Subscribe(5, tuple(map(SubscriptionRequest, filters))))
    else:
        client.send(Unsubscribe(5, filters))
    client.lose()
    finish(client)
    assert broker.core.tree.n_subscriptions == 0
    assert client.inbox == []


@pytest.mark.mqtt5("4.7.1-1")
def test_a_filter_that_breaks_the_rules_closes_the_connection() -> None:
    """[MQTT-4.7.1-1]: such a packet is malformed; nothing of it is subscribed."""
    broker = VirtualBroker()
    client = broker.connect("a")
    client.send_bytes(bytes.fromhex("820d0005000001620000 05612f232f6200".replace(" ", "")))
    assert client.take(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET
    assert broker.core.tree.n_subscriptions == 0


@pytest.mark.mqtt5("3.1.2-2")
@pytest.mark.mqtt311("3.1.2-2", "3.1.4-1", "3.2.2-6")
@pytest.mark.parametrize(
    ("connect", "version", "answer"),
    [
        ("100c00044d51545403020000000000", 4, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
        ("100c00044d51545409020000000000", 5, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
        ("100e00044d5154540502003c00000063", 5, ReasonCode.MALFORMED_PACKET),
        ("100400044d51", 4, ReasonCode.MALFORMED_PACKET),
    ],
)
def test_a_connect_that_cannot_be_taken_is_answered_in_its_version(
    connect: str, version: int, answer: int
) -> None:
    """[MQTT-3.1.2-2]: a version we do not speak, and a CONNECT that cannot be read."""
    broker = VirtualBroker()
    client = VirtualClient(broker, version)
    client.send_bytes(bytes.fromhex(connect))
    codes = [packet.reason_code for packet in client.take_all(ConnAck)]
    words = [answer] if version == 5 or answer != ReasonCode.MALFORMED_PACKET else []
    assert codes == words
    assert client.is_lost


@pytest.mark.parametrize("topic_filter", ["$share/x/secret", "$share/x/#"])
def test_a_share_is_authorized_as_its_filter(topic_filter: str) -> None:
    """What a client may not subscribe to it may not subscribe to in a share either."""
    access = Access()
    access.refused.update({("subscribe", "secret"), ("subscribe", "#")})
    client = VirtualBroker(access=access).connect()
    assert client.subscribe(topic_filter) == ReasonCode.NOT_AUTHORIZED
    assert client.subscribe("$share/x/open") == 0


@pytest.mark.mqtt5("3.8.4-7", "3.9.3-2")
@pytest.mark.mqtt311("3.8.4-5", "3.9.3-2")
@pytest.mark.parametrize("waits", [False, True])
def test_access_control_decides_on_each_filter(*, waits: bool) -> None:
    """What is refused is not subscribed, in the words of the version."""
    access = Access()
    access.waits = waits
    access.refused.add(("subscribe", "secret"))
    broker = VirtualBroker(access=access)
    for version, code in ((5, ReasonCode.NOT_AUTHORIZED), (4, 0x80)):
        client = VirtualClient(broker, version)
        client.send(
            Connect(client_id=f"v{version}", protocol_version=version),
            Subscribe(1, (SubscriptionRequest("secret"), SubscriptionRequest("open", 1))),
        )
        finish(client)
        client.take(ConnAck)
        assert client.take(SubAck).reason_codes == (code, 1)
        assert list(client.session.subscriptions) == ["open"]


def test_a_client_that_leaves_while_it_subscribes_leaves_nothing_behind() -> None:
    """The session has ended; the answer must not put a subscription into the tree."""
    access = Access()
    access.waits = True
    broker = VirtualBroker(access=access)
    client = VirtualClient(broker)
    client.send(Connect(client_id="a"))
    finish(client)
    client.send(Subscribe(1, (SubscriptionRequest("t"),)))
    client.lose()
    finish(client)
    assert broker.core.tree.n_subscriptions == 0


@pytest.mark.mqtt5("3.3.1-9", "3.3.1-10", "3.3.1-11")
@pytest.mark.parametrize(
    ("handling", "is_new", "expected"),
    [(0, True, 1), (0, False, 1), (1, True, 1), (1, False, 0), (2, True, 0), (2, False, 0)],
)
def test_retain_handling(*, handling: int, is_new: bool, expected: int) -> None:
    """[MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]."""
    broker = VirtualBroker()
    broker.connect("p").publish("t", b"kept", qos=1, retain=True)
    client = broker.connect("s")
    if not is_new:
        client.subscribe("t", 1)
        client.acknowledge()
    client.subscribe("t", 1, retain_handling=handling)
    publishes = client.take_all(Publish)
    assert len(publishes) == expected
    assert all(packet.retain for packet in publishes)


@pytest.mark.mqtt5("3.3.1-12", "3.3.1-13")
def test_the_retain_flag_is_cleared_unless_asked_for() -> None:
    """[MQTT-3.3.1-12], [MQTT-3.3.1-13]."""
    broker = VirtualBroker()
    plain, faithful = broker.connect("plain"), broker.connect("faithful")
    plain.subscribe("t")
    faithful.subscribe("t", retain_as_published=True)
    publisher = broker.connect("p")
    publisher.publish("t", b"r", retain=True)
    publisher.publish("t", b"n")
    assert [p.retain for p in plain.take_all(Publish)] == [False, False]
    assert [p.retain for p in faithful.take_all(Publish)] == [True, False]


@pytest.mark.parametrize("waits", [False, True])
def test_retained_messages_are_under_access_control(*, waits: bool) -> None:
    """Who may not receive a topic does not receive what is retained there either."""
    access = Access(publish=False, subscribe=False)
    broker = VirtualBroker(access=access)
    publisher = broker.connect("p")
    for topic in ("open", "secret"):
        publisher.publish(topic, topic.encode(), retain=True)
    access.refused.add(("receive", "secret"))
    client = broker.connect("s")
    access.waits = waits
    client.send(Subscribe(1, (SubscriptionRequest("#"),)))
    finish(client)
    broker.finish_waiting()
    assert client.payloads() == [b"open"]


def test_retained_messages_of_ones_own_stay_away_with_no_local() -> None:
    """[MQTT-3.8.3-3] holds for retained messages too."""
    client = VirtualBroker().connect()
    client.publish("t", b"x", retain=True)
    client.subscribe("t", no_local=True)
    assert client.payloads() == []


@pytest.mark.mqtt5("3.10.4-2", "3.10.4-4", "3.10.4-6", "3.11.3-1", "3.11.3-2")
@pytest.mark.mqtt311("2.3.1-7", "3.10.4-2", "3.10.4-4", "3.10.4-6")
@pytest.mark.parametrize("version", [4, 5])
def test_unsubscribe_answers_for_each_filter(version: int) -> None:
    """[MQTT-3.11.3-1]; MQTT 3.1.1 sends no codes."""
    broker = VirtualBroker()
    client = broker.connect("a", version)
    client.subscribe("t")
    client.send(Unsubscribe(9, ("t", "never")))
    answer = client.take(UnsubAck)
    assert answer.packet_id == 9
    expected = (0, ReasonCode.NO_SUBSCRIPTION_EXISTED) if version == 5 else ()
    assert answer.reason_codes == expected
    broker.connect("p").publish("t", b"x")
    assert client.payloads() == []
    assert broker.core.tree.n_subscriptions == 0


def test_events_tell_what_clients_do() -> None:
    """Connected, subscribed, unsubscribed, disconnected; retained set and cleared."""
    told: list[str] = []

    def note(event: Any) -> None:
        told.append(type(event).__name__)

    notes = (note,)
    broker = VirtualBroker(
        callbacks=Callbacks(
            client_connected=notes,
            client_disconnected=notes,
            client_subscribed=notes,
            client_unsubscribed=notes,
            message_retained=notes,
        )
    )
    client = broker.connect()
    client.subscribe("t")
    client.publish("t", b"x", retain=True)
    client.send(Unsubscribe(1, ("t", "never")))
    client.send(Disconnect())
    assert told == [
        "ClientConnected",
        "ClientSubscribed",
        "MessageRetained",
        "ClientUnsubscribed",
        "ClientDisconnected",
    ]


# -- PINGREQ, DISCONNECT


@pytest.mark.mqtt5("3.12.4-1")
def test_pingreq_is_answered() -> None:
    """[MQTT-3.12.4-1]."""
    client = VirtualBroker().connect()
    client.send(PingReq())
    client.take(PingResp)


@pytest.mark.mqtt5("3.14.4-3")
@pytest.mark.parametrize(
    ("reason_code", "expected"), [(0, []), (ReasonCode.DISCONNECT_WITH_WILL, [b"gone"])]
)
def test_a_disconnect_drops_the_will_unless_it_says_otherwise(
    reason_code: int, expected: list[bytes]
) -> None:
    """[MQTT-3.14.4-3] and reason code 0x04."""
    broker = VirtualBroker()
    watcher = broker.connect("w")
    watcher.subscribe("will")
    client = broker.connect("a", will=Will("will", b"gone"))
    client.send(Disconnect(reason_code))
    assert client.is_lost
    assert watcher.payloads() == expected


def test_disconnect_may_change_the_session_expiry() -> None:
    """MQTT 5.0, 3.14.2.2.2: longer or shorter, but not from 0."""
    broker = VirtualBroker()
    client = broker.connect("a", properties={"session_expiry_interval": 10})
    client.send(Disconnect(0, {"session_expiry_interval": 100}))
    broker.advance(99)
    assert broker.core.sessions.get("a") is not None
    broker.advance(2)
    assert broker.core.sessions.get("a") is None
    client = broker.connect("b")
    client.send(Disconnect(0, {"session_expiry_interval": 100}))
    assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_packets_that_only_servers_send_are_protocol_errors() -> None:
    """A client has no business with SUBACK."""
    client = VirtualBroker().connect()
    client.send(SubAck(1, (0,)))
    assert client.take(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.mqtt5("3.9.2-1", "3.1.2-29")
@pytest.mark.parametrize("wants_reasons", [1, 0])
def test_suback_says_why_in_words(wants_reasons: int) -> None:
    """The reason names each refused filter, if the client wants to know."""
    access = Access(subscribe=True)
    access.refused = {("subscribe", "secret")}
    broker = VirtualBroker(Limits(subscriptions=1), access=access)
    client = broker.connect("c", properties={"request_problem_information": wants_reasons})
    client.send(Subscribe(1, tuple(SubscriptionRequest(name) for name in ("secret", "a", "b"))))
    suback = client.take(SubAck)
    assert suback.reason_codes == (ReasonCode.NOT_AUTHORIZED, 0, ReasonCode.QUOTA_EXCEEDED)
    reason = "secret: not authorized to subscribe; b: allowed: 1 subscriptions"
    assert suback.properties == ({"reason_string": reason} if wants_reasons else {})
