"""Limits in bytes count what is really taken of the memory: at most a tenth more is."""

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
from penstock.broker.mqtt.packets import SubAck, Subscribe, SubscriptionRequest, Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.outbox.backlog import Backlog
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.outbox.message_counts import Ledger
from penstock.broker.outbox.outbox import Outbox
from penstock.broker.outbox.outbox_limits import OutboxRules
from penstock.broker.routing.retained import RetainedMessages
from penstock.broker.routing.topic_tree import Subscription as Own
from penstock.broker.routing.topic_tree import TopicTree
from penstock.broker.sessions.session import Session
from penstock.broker.sessions.wills import will_bytes
from penstock.broker.timers import Timers
from tests.helpers.guard import NoFaults
from tests.helpers.virtual import VirtualBroker

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
    rules = OutboxRules(DeliveryGate(), NoFaults(), backlog=backlog)
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
