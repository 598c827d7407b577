from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from penstock.broker.config.limits import Limits
from penstock.broker.extensions import DeliveryGate
from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import (
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxLimits
from penstock.broker.routing.retained import LEVEL_BYTES, RETAINED_BYTES, RetainedMessages
from penstock.broker.routing.topic_tree import Subscription as Own
from penstock.broker.routing.topic_tree import TopicTree
from penstock.broker.sessions.session import Session
from penstock.broker.sessions.wills import will_bytes
from penstock.broker.timers import Timers
from tests.helpers.access import Access
from tests.helpers.guard import NoFaults
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

N = 1000


class Taken:
    """Bytes that a block has allocated and not freed."""

    n_bytes = 0


@contextmanager
def taken() -> Iterator[Taken]:
    """Measure a block."""
    found = Taken()
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        gc.collect()
        found.n_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def is_counted(found: Taken, n_bytes: int) -> bool:
    """Say whether so many bytes are what was taken, and not far more either."""
    return found.n_bytes <= 1.1 * n_bytes <= 2.5 * found.n_bytes


@pytest.mark.parametrize("payload_bytes", [0, 100, 3000])
@pytest.mark.parametrize("topic", ["{}", "site/{}/temperature", "a{0}/b{0}/c{0}/d{0}/e{0}/f{0}"])
@pytest.mark.parametrize("expires_at", [None, 1e9], ids=["stays", "expires"])
def test_retained_messages(payload_bytes: int, topic: str, expires_at: float | None) -> None:
    """512 MiB by the count were 1.4 GB."""
    retained = RetainedMessages()
    with taken() as found:
        for number in range(N):
            payload = bytes(payload_bytes) + b"%06d" % number
            retained.set(Message(topic.format(number), payload, expires_at=expires_at))
    assert is_counted(found, retained.n_bytes)
    for name in list(retained.by_topic):
        retained.remove(name)
    assert retained.n_bytes == 0


def test_topics_that_are_the_brokers_own_do_not_count() -> None:
    """Neither they nor their levels: no limit holds them back."""
    retained = RetainedMessages()
    retained.set(Message("$SYS/broker/uptime", b"1"))
    assert retained.n_bytes == 0
    retained.remove("$SYS/broker/uptime")
    assert retained.n_bytes == 0


@pytest.mark.parametrize(
    "topic_filter",
    ["{}", "site/{}/+", "a{0}/b{0}/c{0}/d{0}/e{0}/f{0}/#", "{}/" + "x" * 9000, "$share/g/s{}/b"],
)
def test_subscriptions(topic_filter: str) -> None:
    """10,000 filters of 62 KB came to 1.5 GB."""
    session = Session("s", VirtualBroker().core)
    tree = TopicTree()
    with taken() as found:
        for number in range(N if len(topic_filter) < 100 else 300):
            own = Own(session, topic_filter.format(number), 1)
            session.subscriptions[own.topic_filter] = own
            tree.add(own)
    assert is_counted(found, tree.n_bytes)
    assert tree.n_bytes <= session.subscription_bytes + 960 * N
    for name in list(session.subscriptions):
        assert tree.remove(session, name)
    assert tree.n_bytes == session.subscription_bytes == 0


def test_many_sessions_with_the_same_filter() -> None:
    """Its levels count once."""
    broker = VirtualBroker()
    sessions = [Session(str(number), broker.core) for number in range(N)]
    tree = TopicTree()
    with taken() as found:
        for session in sessions:
            tree.add(Own(session, "site/building/temperature", 1))
    assert found.n_bytes <= 1.1 * tree.n_bytes
    assert tree.n_bytes < sum(session.subscription_bytes for session in sessions)


def _outboxes(backlog: Backlog, n: int) -> list[Outbox]:
    rules = OutboxLimits(DeliveryGate(), NoFaults(), backlog=backlog)
    return [Outbox(Link(str(number)), Ledger(), rules) for number in range(n)]


def _one_of_many(number: int) -> Message:
    return Message(f"some/topic/{number}", b"%06d" % number, publisher="p")


def _with_properties(number: int) -> Message:
    pairs = [(f"key{number}.{n}", f"value{number}.{n}") for n in range(20)]
    return Message("t", b"", properties={"user_property": pairs})


@pytest.mark.parametrize("make", [_one_of_many, _with_properties])
def test_messages_that_wait(make: Callable[[int], Message]) -> None:
    """However small their payloads are."""
    backlog = Backlog(10**9, 10**12)
    (box,) = _outboxes(backlog, 1)
    with taken() as found:
        for number in range(N):
            box.add(Delivery(make(number), 1))
    assert is_counted(found, backlog.n_bytes)


def test_one_message_that_waits_for_many() -> None:
    """200 messages of 100 bytes for 20,000 sessions took 523 MB."""
    backlog = Backlog(10**9, 10**12)
    boxes = _outboxes(backlog, 30)
    for box in boxes:
        box.add(Delivery(Message("t", b""), 1))
    before = backlog.n_bytes
    with taken() as found:
        for number in range(N // 30):
            message = _one_of_many(number)
            for box in boxes:
                box.add(Delivery(message, 1))
    assert is_counted(found, backlog.n_bytes - before)


@pytest.mark.parametrize("n_properties", [0, 1, 20])
def test_wills(n_properties: int) -> None:
    """With the timers of those that are delayed."""

    def due(_number: int, _now: float) -> None:
        """Stand for what publishes one."""

    wills: list[Will | None] = [None] * N
    timers = Timers()
    with taken() as found:
        for number in range(N):
            properties: dict[str, Any] = {}
            if n_properties:
                pairs = [(f"key{number}.{n}", f"value{number}.{n}") for n in range(n_properties)]
                properties = {"will_delay_interval": 1000 + number, "user_property": pairs}
                timers.at(1e6 + number, partial(due, number))
            wills[number] = Will(f"w/{number}", b"%06d" % number, properties=properties)
    assert is_counted(found, sum(map(will_bytes, wills)))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(subscription_bytes=100_000), "allowed: 100000 bytes of subscriptions"),
        (Limits(total_subscription_bytes=100_000), "allowed: 100000 bytes of all subscriptions"),
    ],
)
@pytest.mark.parametrize("size", [10, 30_000])
def test_filters_beyond_the_limit_are_refused(limits: Limits, reason: str, size: int) -> None:
    """By Quota exceeded, one by one; what is there may be renewed, and goes to make room."""
    broker = VirtualBroker(limits)
    client = broker.connect("c")
    filters = [f"{number}".ljust(size, "x") for number in range(250 if size == 10 else 9)]
    client.send(Subscribe(1, tuple(SubscriptionRequest(name, 1) for name in filters)))
    codes = client.take(SubAck).reason_codes
    n_granted = codes.index(ReasonCode.QUOTA_EXCEEDED)
    assert set(codes[n_granted:]) == {ReasonCode.QUOTA_EXCEEDED}
    assert n_granted == len(client.session.subscriptions) >= 2
    assert broker.core.tree.n_bytes < 100_000 + 2 * size + 1000
    assert client.subscribe(filters[0]) == 0
    client.send(Subscribe(1, (SubscriptionRequest("other", 1),)))
    refused = SubAck(1, (ReasonCode.QUOTA_EXCEEDED,), {"reason_string": f"other: {reason}"})
    assert client.take(SubAck) == refused
    n_refused = len(filters) - n_granted + 1
    assert broker.core.counters.subscribe_refused == {"quota exceeded (0x97)": n_refused}
    for name in filters[:n_granted]:
        broker.core.sessions.remove_subscription(client.session, name, broker.now)
    assert client.subscribe("other", 1) == 1


OF_MESSAGE = RETAINED_BYTES + LEVEL_BYTES + Message("a", b"1", publisher="c").memory_bytes + 1

LIMITS = [Limits(retained_messages=2), Limits(retained_bytes=2 * OF_MESSAGE)]

PLAIN_AND_CHECKED = [None, Access()]


def full(limits: Limits, access: Access | None = None, version: int = 5) -> VirtualClient:
    """Return a client that has retained as many messages as it may, and subscribes to all."""
    broker = VirtualBroker(limits, access=access)
    client = broker.connect("c", version)
    for topic in "ab":
        client.publish(topic, b"1", retain=True)
    assert len(broker.core.retained) == 2
    client.subscribe("#")
    assert len(client.take_all(Publish)) == 2
    return client


def retained(client: VirtualClient) -> dict[str, object]:
    """Return what is retained, by topic."""
    found = client.broker.core.retained.by_topic
    return {topic: message.payload for topic, message in found.items()}


@pytest.mark.parametrize("access", PLAIN_AND_CHECKED, ids=["plain", "checked"])
@pytest.mark.parametrize("limits", LIMITS, ids=["messages", "bytes"])
def test_mqtt_5_is_told_that_there_is_no_room(limits: Limits, access: Access | None) -> None:
    """At QoS 1 and 2, by Quota exceeded; the message goes to nobody."""
    client = full(limits, access)
    client.publish("c", b"3", qos=1, retain=True)
    reason = {"reason_string": "no room for one more retained message"}
    assert client.take(PubAck) == PubAck(1, ReasonCode.QUOTA_EXCEEDED, reason)
    client.publish("c", b"3", qos=2, packet_id=2, retain=True)
    assert client.take(PubRec) == PubRec(2, ReasonCode.QUOTA_EXCEEDED, reason)
    client.publish("a", b"22", qos=1, retain=True)
    may_grow = limits.retained_messages == 2
    assert client.take_all(PubAck)[0].reason_code == (0 if may_grow else 0x97)
    assert client.payloads() == ([b"22"] if may_grow else [])
    assert retained(client) == {"a": b"22" if may_grow else b"1", "b": b"1"}
    counters = client.broker.core.counters
    assert counters.publish_refused == {"quota exceeded (0x97)": 2 if may_grow else 3}
    assert counters.retained_discarded == 0


@pytest.mark.parametrize("access", PLAIN_AND_CHECKED, ids=["plain", "checked"])
@pytest.mark.parametrize(("version", "qos"), [(5, 0), (4, 0), (4, 1), (4, 2)])
@pytest.mark.mqtt311("3.3.1-7")
def test_who_cannot_be_told_has_the_message_routed(
    version: int, qos: int, access: Access | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not kept, and what the topic had before is not its last message any more."""
    client = full(LIMITS[1], access, version)
    for topic in ("c", "a"):
        client.publish(topic, b"33", qos=qos, retain=True)
        client.send(PubRel(1))
    assert client.payloads() == [b"33", b"33"]
    assert retained(client) == {"b": b"1"}
    assert client.broker.core.counters.retained_discarded == 2
    assert "retained message on c not kept" in caplog.text
    assert not client.is_lost


@pytest.mark.parametrize("version", [4, 5])
def test_removing_and_replacing_need_no_room(version: int) -> None:
    """An empty payload makes room, and a topic that is kept may change its message."""
    client = full(LIMITS[1], version=version)
    client.publish("a", b"2", qos=1, retain=True)
    client.publish("b", b"", qos=1, retain=True)
    client.publish("c", b"3", qos=1, retain=True)
    assert retained(client) == {"a": b"2", "c": b"3"}
    assert [packet.reason_code for packet in client.take_all(PubAck)] == [0, 0, 0]


def test_a_will_beyond_the_limits_is_routed() -> None:
    """Nobody is there to be told."""
    client = full(LIMITS[0])
    client.broker.connect("w", will=will("c", b"gone", retain=True)).lose()
    assert client.payloads() == [b"gone"]
    assert retained(client) == {"a": b"1", "b": b"1"}
