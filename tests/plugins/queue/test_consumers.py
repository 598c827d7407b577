"""Consumers over MQTT, with the queue and the client in the test's hands."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.extensions import Outcome
from penstock.broker.message import Message
from penstock.plugins.queue import consumers
from penstock.plugins.queue.consumers import QueueConsumers, QueueFeed
from penstock.plugins.queue.engines.contract import (
    GroupKindError,
    GroupSpec,
    StorageError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.wire.frames import ReceivedMessage
from tests.helpers.process import SECONDS
from tests.helpers.skipping_loop import SkippingLoop


def received(number: int, *, properties: str = "", receive_count: int = 1) -> ReceivedMessage:
    """Return a message with a receipt handle of its number."""
    payload = b"%d" % number
    return ReceivedMessage(
        f"h{number}", receive_count, 0, number, "t/1", payload, 1, "p", 1.7e9, properties
    )


class ScriptedService:
    """Queues with one group of each kind, and a list of messages.

    Attributes:
        waiting: messages that can be received.
        settled: (action, handles) of each call that has succeeded.
        given_back: messages that were given back.
        asked: requests for messages.
        error: raised by the next calls of `receive` and `settle`.
        visibility_timeout: of the groups.
        extended_at: the loop's time of each extension.
        goes_on: whether settling is answered; it is set.
    """

    def __init__(self, *waiting: ReceivedMessage) -> None:
        self.waiting = list(waiting)
        self.settled: list[tuple[str, list[str]]] = []
        self.given_back: list[ReceivedMessage] = []
        self.asked: list[ReceiveRequest] = []
        self.error: Exception | None = None
        self.visibility_timeout = 60.0
        self.extended_at: list[float] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.engine = self
        self._changed = asyncio.Condition()

    def names(self) -> Sequence[str]:
        """Return the queues' names."""
        return ["q"]

    def queue(self, name: str) -> object:
        """Know one queue."""
        if name != "q":
            raise UnknownQueueError(f"queue: read {name}; allowed: q")
        return self

    def outline(self, name: str) -> Any:
        """Return the groups."""
        self.queue(name)
        spec = GroupSpec(visibility_timeout=self.visibility_timeout)
        groups = {
            "default": SimpleNamespace(spec=spec),
            "spark": SimpleNamespace(spec=GroupSpec(kind="offsets")),
        }
        return SimpleNamespace(groups=groups)

    async def receive(self, group: str, request: ReceiveRequest) -> Any:
        """Wait for messages."""
        assert group == "default"
        self.asked.append(request)
        self._raise()
        async with self._changed:
            await self._changed.wait_for(lambda: self.waiting)
        found = self.waiting[: request.max_messages]
        del self.waiting[: request.max_messages]
        return found

    async def settle(
        self, queue: str, group: str, action: str, handles: Sequence[str], seconds: float
    ) -> Mapping[int, str]:
        """Note it."""
        assert (queue, group) == ("q", "default")
        assert seconds == (self.visibility_timeout if action == "extend" else 0.0)
        self._raise()
        self.settled.append((action, list(handles)))
        if action == "extend":
            self.extended_at.append(asyncio.get_running_loop().time())
        await self._notify()
        await self.goes_on.wait()
        return {}

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def give_back(self, queue: str, group: str, deliveries: Sequence[ReceivedMessage]) -> None:
        """Note it."""
        assert (queue, group) == ("q", "default")
        self.given_back += deliveries

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def add(self, *messages: ReceivedMessage) -> None:
        """Let messages arrive."""
        self.waiting += messages
        await self._notify()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a call has made something so."""
        async with asyncio.timeout(SECONDS), self._changed:
            await self._changed.wait_for(condition)


class ScriptedConsumer:
    """A client with room for so many messages.

    Attributes:
        n_free: messages that it has room for.
        given: what it was given, with what tells of the outcome.
        n_lost_looks: calls of `find_lost`.
    """

    client_id = "c"

    def __init__(self, n_free: int = 10) -> None:
        self.n_free = n_free
        self.given: list[tuple[Message, Callable[[Outcome], None]]] = []
        self.n_lost_looks = 0
        self._has_given = asyncio.Event()

    def room(self) -> int:
        """Return what the test says."""
        return self.n_free

    def give(self, message: Message, done: Callable[[Outcome], None], now: float) -> None:
        """Keep it."""
        assert now == 5.0
        self.n_free -= 1
        self.given.append((message, done))
        self._has_given.set()

    def find_lost(self) -> None:
        """Count the call."""
        self.n_lost_looks += 1

    async def has(self, n_messages: int) -> None:
        """Wait until it was given so many messages."""
        async with asyncio.timeout(SECONDS):
            while len(self.given) < n_messages:
                self._has_given.clear()
                await self._has_given.wait()


def opened(
    service: ScriptedService, consumer: ScriptedConsumer, topic_filter: str = "$queue/q"
) -> tuple[QueueConsumers, QueueFeed]:
    """Return a source and the feed of a consumer."""
    source = source_of(service)
    return source, source.open(topic_filter, consumer)


def source_of(service: ScriptedService) -> QueueConsumers:
    """Return a source of a service."""
    return QueueConsumers(cast("QueueService", service), lambda: 5.0, logging.getLogger("test"))


async def test_a_message_comes_with_its_own_topic_and_properties() -> None:
    """User properties tell where it is from; binary values are binary again."""
    properties = {
        "user_property": [["unit", "C"]],
        "dead_letter": {"queue": "work", "physical_queue": 2},
        "correlation_data": "/w==",
        "message_expiry_interval": 60,
    }
    one = received(1, properties=json.dumps(properties), receive_count=3)
    consumer = ScriptedConsumer()
    source, _ = opened(ScriptedService(one), consumer)
    await consumer.has(1)
    ((message, _),) = consumer.given
    assert (message.topic, message.payload, message.publisher) == ("t/1", b"1", "p")
    assert message.expires_at == 65.0
    assert message.properties["correlation_data"] == b"\xff"
    assert message.properties["user_property"] == [
        ("unit", "C"),
        ("penstock-dead-queue", "work"),
        ("penstock-dead-physical-queue", "2"),
        ("penstock-queue", "q"),
        ("penstock-group", "default"),
        ("penstock-receive-count", "3"),
    ]
    assert "dead_letter" not in message.properties
    await source.close()


async def test_outcomes_are_settled_together() -> None:
    """Those of one round of the event loop in one call for each action."""
    service = ScriptedService(*map(received, range(5)))
    consumer = ScriptedConsumer()
    source, _ = opened(service, consumer)
    await consumer.has(5)
    outcomes: list[Outcome] = ["acknowledged", "refused", "acknowledged", "returned", "unsent"]
    for (_, done), outcome in zip(consumer.given, outcomes, strict=True):
        done(outcome)
    await service.until(lambda: len(service.settled) == 2)
    assert service.settled == [("ack", ["h0", "h2"]), ("nack", ["h1", "h3"])]
    assert service.given_back == [received(4)]
    await source.close()


async def test_a_consumer_asks_for_what_its_client_has_room_for() -> None:
    """A few at a time, so that those of a group share a backlog; and again when there is room."""
    service = ScriptedService(*map(received, range(40)))
    consumer = ScriptedConsumer(20)
    source, feed = opened(service, consumer)
    await consumer.has(20)
    await asyncio.sleep(0)
    assert [request.max_messages for request in service.asked] == [16, 4]
    consumer.n_free = 5
    feed.wake()
    await consumer.has(25)
    assert service.asked[2].max_messages == 5
    await source.close()


async def test_what_a_client_has_is_extended() -> None:
    """However long it takes; what was dropped on the way is looked for."""
    service = ScriptedService(received(1))
    service.visibility_timeout = 0.003
    consumer = ScriptedConsumer()
    source, feed = opened(service, consumer)
    await service.until(lambda: len(service.settled) >= 3)
    assert set(map(str, service.settled)) == {"('extend', ['h1'])"}
    assert consumer.n_lost_looks >= 3
    feed.stop()  # it has unsubscribed, and has not acknowledged yet
    n_before = len(service.settled)
    await service.until(lambda: len(service.settled) > n_before)
    consumer.given[0][1]("acknowledged")
    await service.until(lambda: service.settled[-1] == ("ack", ["h1"]))
    await source.close()


async def check_shortened(before: float, after: float) -> None:
    """Have another program make the visibility timeout shorter while a request is held."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    service = ScriptedService(received(1))
    service.visibility_timeout = before
    consumer = ScriptedConsumer()
    source, _ = opened(service, consumer)
    await consumer.has(1)
    await loop.skip(before / 10)
    service.visibility_timeout = after
    await service.add(received(2))
    await consumer.has(2)
    given_at = loop.time()
    await loop.skip(4 * after)
    times = [given_at, *(at for at in service.extended_at if at > given_at), loop.time()]
    assert max(later - earlier for earlier, later in pairwise(times)) <= after
    assert service.settled[-1] == ("extend", ["h1", "h2"])
    await source.close()


@pytest.mark.parametrize("before", [30.0, 43_200.0])
@pytest.mark.parametrize("after", [1.0, 5.0, 12.0])
def test_a_visibility_timeout_that_is_made_shorter_loses_no_lease(
    before: float, after: float
) -> None:
    """However short: what is leased from then on is extended in time for the shorter one."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(check_shortened(before, after))


def test_a_visibility_timeout_of_0_extends_nothing_all_the_time() -> None:
    """SQS may set it: each round of the loop had another extension."""

    async def check() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        service = ScriptedService(received(1))
        service.visibility_timeout = 0.0
        service.goes_on.clear()
        source, _ = opened(service, ScriptedConsumer())
        await loop.skip(1.0)
        assert 1 <= len(service.extended_at) <= 20
        service.goes_on.set()
        await source.close()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(check())


async def test_an_extension_that_waits_holds_up_no_later_one() -> None:
    """One node may be away: what is leased from the others has to be extended meanwhile."""
    service = ScriptedService(received(1))
    service.visibility_timeout = 0.003
    service.goes_on.clear()
    source, _ = opened(service, ScriptedConsumer())
    await service.until(lambda: len(service.settled) >= 3)
    service.goes_on.set()
    await source.close()


async def test_what_the_storage_refuses_to_settle_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it is forgotten meanwhile."""
    monkeypatch.setattr(consumers, "RETRY_SECONDS", 0.001)
    service = ScriptedService(received(1))
    consumer = ScriptedConsumer()
    source, _ = opened(service, consumer)
    await consumer.has(1)
    service.error = StorageError("no space")
    consumer.given[0][1]("acknowledged")
    await service.until(lambda: service.settled)
    assert service.settled == [("ack", ["h1"])]
    await source.close()


@pytest.mark.parametrize(
    "error",
    [UnknownQueueError("deleted"), UnknownGroupError("deleted"), GroupKindError("another now")],
)
async def test_what_a_deleted_group_cannot_settle_is_given_up(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing left to settle: a repetition would go on until the broker ends."""
    service, consumer, ended = ScriptedService(received(1)), ScriptedConsumer(), asyncio.Event()
    _, feed = opened(service, consumer)
    feed.on_end = ended.set
    await consumer.has(1)
    feed.stop()
    service.error = error
    consumer.given[0][1]("acknowledged")
    async with asyncio.timeout(SECONDS):
        await ended.wait()
    assert service.error is None
    assert service.settled == []
    (line,) = caplog.records
    assert line.getMessage() == f"consumer c of queue q failed: {error}"
    assert not line.exc_info


async def test_a_queue_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been deleted and created again."""
    monkeypatch.setattr(consumers, "RETRY_SECONDS", 0.001)
    service = ScriptedService(received(1))
    service.error = UnknownQueueError("queue q was deleted")
    consumer = ScriptedConsumer()
    source, _ = opened(service, consumer)
    await consumer.has(1)
    await source.close()


async def test_a_message_that_cannot_be_read_waits(caplog: pytest.LogCaptureFixture) -> None:
    """It comes again after its visibility timeout, not at once, and the others come."""
    service = ScriptedService(received(1, properties="{"), received(2))
    consumer = ScriptedConsumer()
    source, _ = opened(service, consumer)
    await consumer.has(1)
    assert consumer.given[0][0].payload == b"2"
    consumer.given[0][1]("acknowledged")
    await service.until(lambda: service.settled)
    assert service.settled == [("ack", ["h2"])]
    assert "queue q: message 1 of physical queue 0 cannot be sent" in caplog.text
    await source.close()


async def test_nothing_comes_after_the_end() -> None:
    """The source's end settles what is done, and leaves the rest to its visibility timeout."""
    service = ScriptedService(received(1), received(2))
    consumer = ScriptedConsumer()
    source, feed = opened(service, consumer, "$queue/q/default")
    await consumer.has(2)
    consumer.given[0][1]("returned")
    await source.close()
    assert service.settled == [("nack", ["h1"])]
    await service.add(received(3))
    feed.wake()
    await asyncio.sleep(0)
    assert len(consumer.given) == 2
    await source.close()


@pytest.mark.parametrize(
    ("topic_filter", "told"),
    [
        ("$queue/q", ""),
        ("$queue/q/default", ""),
        ("$queue/x", "queue: read x; allowed: q"),
        ("$queue/q/x", "group of queue q: read x; allowed: default"),
        ("$queue/q/spark", "group of queue q: read spark, which is of kind offsets; allowed: def"),
        ("$queue", "read $queue; allowed: $queue/NAME or $queue/NAME/GROUP"),
        ("$queue/q/default/x", "allowed: $queue/NAME or $queue/NAME/GROUP"),
        ("$queue//default", "allowed: $queue/NAME or $queue/NAME/GROUP"),
    ],
)
async def test_what_cannot_be_consumed(topic_filter: str, told: str) -> None:
    """With what was read and what is allowed."""
    source = source_of(ScriptedService())
    assert told in source.refusal(topic_filter)
    assert bool(told) == bool(source.refusal(topic_filter))
    assert source.asked_topic("$queue/q/default") == "$queue/q"
