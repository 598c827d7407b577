from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.message import Message
from penstock.plugins.queue.access import ANYBODY
from penstock.plugins.queue.engines.contract import GroupSpec, NewMessage, QueueSpec
from penstock.plugins.queue.sqs import actions
from penstock.plugins.queue.sqs.actions import MAX_TAGS, SqsActions, SqsRequest
from penstock.plugins.queue.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    MESSAGE_NOT_INFLIGHT,
    MISSING_PARAMETER,
    QUEUE_NAME_EXISTS,
    RECEIPT_HANDLE_IS_INVALID,
    RESOURCE_NOT_FOUND,
    UNKNOWN_ACTION,
    Fault,
    SqsError,
)
from penstock.plugins.web.cooperative_work import Slicer
from tests.plugins.queue.running import UNTIL_SECONDS, until
from tests.plugins.queue.sqs.running import LOGGER, RunningSqs, running_sqs
from tests.plugins.queue.sqs.script import new_client


class Caller:
    """Calls actions without a protocol around them."""

    def __init__(self, server: RunningSqs) -> None:
        self.service = server.service
        self._actions = SqsActions(server.service, time.monotonic, time.time, Slicer(), LOGGER)

    async def __call__(self, action: str, path: str = "/", **parameters: Any) -> dict[str, Any]:
        """Call an action."""
        with ExitStack() as undo:
            request = SqsRequest(
                action, parameters, ANYBODY, "key", "eu-west-1", "http://h:1", path, undo
            )
            result = await self._actions.run(request)
            undo.pop_all()
        return result

    async def refusal(self, action: str, **parameters: Any) -> Fault:
        """Return why an action is refused."""
        with pytest.raises(SqsError) as refused:
            await self(action, **parameters)
        return refused.value.fault

    async def received(self, queue: str, **more: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        answer = await self("ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=20, **more)
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages


async def test_every_action_of_boto3_is_there() -> None:
    """And stands on the page about them."""
    client = new_client("http://127.0.0.1:1")
    names = client.meta.service_model.operation_names
    page = (Path(__file__).parents[4] / "docs" / "reference" / "sqs.md").read_text()
    assert [name for name in names if f"`{name}`" not in page] == []
    async with running_sqs() as server:
        call = Caller(server)
        await call("ListQueues")
        faults = {name: await call.refusal(name) for name in names if name != "ListQueues"}
        assert UNKNOWN_ACTION not in faults.values()
        assert await call.refusal("Sing") == UNKNOWN_ACTION


async def test_a_queue_is_named_by_url_by_name_or_by_the_path_of_the_request() -> None:
    """Host and account of the URL do not matter: a client may be behind a proxy."""
    async with running_sqs({"q": {}}) as server:
        call = Caller(server)
        for url in ("q", "http://other:5/123/q", "https://h/q/"):
            assert await call("ListQueueTags", QueueUrl=url) == {"Tags": {}}
        assert await call("ListQueueTags", "/000000000000/q") == {"Tags": {}}
        assert await call.refusal("ListQueueTags") == MISSING_PARAMETER


async def test_urls_lead_back_to_where_the_caller_came_from() -> None:
    """Whatever the server's own address is."""
    async with running_sqs({"q": {}}) as server:
        found = await Caller(server)("GetQueueUrl", QueueName="q")
        assert found == {"QueueUrl": "http://h:1/000000000000/q"}


async def test_a_queue_without_a_group_for_sqs_gets_one_with_the_first_receive() -> None:
    """Looking at the queue creates none: a group holds messages."""
    async with running_sqs({"q": {"groups": {"spark": {"kind": "offsets"}}}}) as server:
        call = Caller(server)
        await call("SendMessage", QueueUrl="q", MessageBody="a")
        found = await call(
            "GetQueueAttributes", QueueUrl="q", AttributeNames=["ApproximateNumberOfMessages"]
        )
        assert found["Attributes"] == {"ApproximateNumberOfMessages": "1"}
        fault = await call.refusal("DeleteMessage", QueueUrl="q", ReceiptHandle="forged")
        assert fault == RECEIPT_HANDLE_IS_INVALID
        assert set(call.service.engine.snapshot("q").groups) == {"spark"}
        assert [one["Body"] for one in await call.received("q")] == ["a"]
        assert call.service.engine.snapshot("q").groups["default"].spec == GroupSpec()


@pytest.mark.parametrize("action", ["PurgeQueue", "StartMessageMoveTask"])
async def test_publishers_that_wait_are_told_of_the_room(action: str) -> None:
    """At once, as by a purge or a redrive over HTTP."""
    queues: dict[str, Any] = {
        "dead": {"max_messages": 1},
        "q": {"groups": {"default": {"dead_letter_queue": "dead"}}},
        "other": {},
    }
    async with running_sqs(queues) as server:
        call = Caller(server)
        await call("SendMessage", QueueUrl="dead", MessageBody="a")
        buffer, told = server.service.queue("dead").buffer, asyncio.Event()
        buffer.on_room = told.set
        assert buffer.reserve(Message("t", b"x")) == "queue_full"
        arn = "arn:aws:sqs:eu-west-1:000000000000:"
        more = {"SourceArn": f"{arn}dead", "DestinationArn": f"{arn}other"}
        await call(action, **({"QueueUrl": "dead"} if action == "PurgeQueue" else more))
        async with asyncio.timeout(UNTIL_SECONDS):
            await told.wait()


async def test_a_queue_that_another_protocol_has_made_is_the_same() -> None:
    """CreateQueue compares the attributes that it names."""
    async with running_sqs() as server:
        call = Caller(server)
        await call.service.create("q", QueueSpec(delay_seconds=5.0))
        await call("CreateQueue", QueueName="q", Attributes={"DelaySeconds": "5"})
        fault = await call.refusal("CreateQueue", QueueName="q", Attributes={"DelaySeconds": "6"})
        assert fault == QUEUE_NAME_EXISTS


async def test_attributes_of_a_queue_outlive_others_that_are_set() -> None:
    """Tags and settings of other protocols stay."""
    async with running_sqs({"q": {"topics": ["plant/#"], "retention_seconds": 60}}) as server:
        call = Caller(server)
        await call("TagQueue", QueueUrl="q", Tags={"team": "a"})
        await call("SetQueueAttributes", QueueUrl="q", Attributes={"VisibilityTimeout": "7"})
        await call("SetQueueAttributes", QueueUrl="q", Attributes={"MaximumMessageSize": "1024"})
        snapshot = call.service.engine.snapshot("q")
        assert snapshot.spec.topics == ("plant/#",)
        assert snapshot.spec.retention_seconds == 60
        assert snapshot.groups["default"].spec.visibility_timeout == 7.0
        assert await call("ListQueueTags", QueueUrl="q") == {"Tags": {"team": "a"}}
        fault = await call.refusal("SendMessage", QueueUrl="q", MessageBody="a" * 1025)
        assert fault == INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    "tags", [{"": "a"}, {"a" * 129: "b"}, {"a": "b" * 257}, {"aws:sqs:x": "b"}, {"a": 1}, ["a"]]
)
async def test_tags_that_are_not_allowed(tags: Any) -> None:
    """Neither to a queue that exists nor to a new one."""
    async with running_sqs({"q": {}}) as server:
        call = Caller(server)
        assert await call.refusal("TagQueue", QueueUrl="q", Tags=tags) == INVALID_PARAMETER_VALUE
        fault = await call.refusal("CreateQueue", QueueName="new", tags=tags)
        assert fault == INVALID_PARAMETER_VALUE


async def test_a_queue_has_at_most_fifty_tags() -> None:
    """Those of the API itself do not count, and cannot be removed."""
    async with running_sqs() as server:
        call = Caller(server)
        await call("CreateQueue", QueueName="q", tags={str(n): "a" for n in range(MAX_TAGS)})
        fault = await call.refusal("TagQueue", QueueUrl="q", Tags={"more": "a"})
        assert fault == INVALID_PARAMETER_VALUE
        await call("UntagQueue", QueueUrl="q", TagKeys=["aws:sqs:CreatedTimestamp", "0"])
        await call("TagQueue", QueueUrl="q", Tags={"more": "a"})
        found = await call("GetQueueAttributes", QueueUrl="q", AttributeNames=["All"])
        assert "CreatedTimestamp" in found["Attributes"]


async def test_a_handle_of_an_older_receive_deletes_nothing() -> None:
    """And is no error, as with Amazon; a handle of another queue is one."""
    async with running_sqs({"q": {}, "other": {}}) as server:
        call = Caller(server)
        await call("SendMessage", QueueUrl="q", MessageBody="a")
        (first,) = await call.received("q", VisibilityTimeout=0)
        (second,) = await call.received("q")
        old = first["ReceiptHandle"]
        await call("DeleteMessage", QueueUrl="q", ReceiptHandle=old)
        assert call.service.engine.snapshot("q").messages == 1
        fault = await call.refusal(
            "ChangeMessageVisibility", QueueUrl="q", ReceiptHandle=old, VisibilityTimeout=5
        )
        assert fault == MESSAGE_NOT_INFLIGHT
        handle = second["ReceiptHandle"]
        fault = await call.refusal("DeleteMessage", QueueUrl="other", ReceiptHandle=handle)
        assert fault == RECEIPT_HANDLE_IS_INVALID
        await call("DeleteMessage", QueueUrl="q", ReceiptHandle=handle)
        assert call.service.engine.snapshot("q").messages == 0


async def test_a_deduplication_id_is_known_while_its_window_lasts() -> None:
    """A repeat is answered as the first was, and stored once."""
    async with running_sqs() as server:
        call = Caller(server)
        await call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
        named = {"MessageGroupId": "g", "MessageDeduplicationId": "1", "MessageBody": "a"}
        answers = [await call("SendMessage", QueueUrl="q.fifo", **named) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert call.service.engine.snapshot("q.fifo").messages == 1


async def dead_letters(call: Caller, n_messages: int) -> None:
    """Have messages of `work` die into `dead`."""
    for name in ("dead", "work"):
        await call("CreateQueue", QueueName=name)
    policy = '{"deadLetterTargetArn": "arn:aws:sqs:r:0:dead", "maxReceiveCount": 1}'
    await call("SetQueueAttributes", QueueUrl="work", Attributes={"RedrivePolicy": policy})
    for n in range(n_messages):
        await call("SendMessage", QueueUrl="work", MessageBody=str(n))
    while call.service.engine.snapshot("dead").messages < n_messages:
        await call("ReceiveMessage", QueueUrl="work", VisibilityTimeout=0, MaxNumberOfMessages=10)


def arn(name: str) -> str:
    """Return a queue's ARN."""
    return f"arn:aws:sqs:eu-west-1:000000000000:{name}"


async def test_dead_letters_go_back_to_where_they_died() -> None:
    """With the ids and the bodies that they had."""
    async with running_sqs() as server:
        call = Caller(server)
        await dead_letters(call, 3)
        (dead,) = await call.received("dead", VisibilityTimeout=0, AttributeNames=["All"])
        assert dead["Attributes"]["DeadLetterQueueSourceArn"] == arn("work")
        assert dead["Attributes"]["ApproximateReceiveCount"] == "2"
        handle = (await call("StartMessageMoveTask", SourceArn=arn("dead")))["TaskHandle"]
        assert handle

        async def is_over() -> bool:
            listed = await call("ListMessageMoveTasks", SourceArn=arn("dead"))
            return bool(listed["Results"][0]["Status"] == "COMPLETED")

        await until(is_over)
        assert call.service.engine.snapshot("dead").messages == 0
        found: dict[str, Mapping[str, Any]] = {}
        while len(found) < 3:
            for one in await call.received("work", AttributeNames=["All"]):
                found[one["MessageId"]] = one
        assert dead["MessageId"] in found
        assert sorted(one["Body"] for one in found.values()) == ["0", "1", "2"]
        again = found[dead["MessageId"]]
        assert "DeadLetterQueueSourceArn" not in again["Attributes"]
        assert again["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_move_tasks_that_cannot_begin() -> None:
    """Queues that are not there, and a source that gets no dead letters."""
    async with running_sqs() as server:
        call = Caller(server)
        await dead_letters(call, 0)
        for parameters, fault in (
            ({"SourceArn": arn("none")}, RESOURCE_NOT_FOUND),
            ({"SourceArn": "dead"}, INVALID_PARAMETER_VALUE),
            ({"SourceArn": arn("work")}, INVALID_PARAMETER_VALUE),
            ({"SourceArn": arn("dead"), "DestinationArn": arn("none")}, RESOURCE_NOT_FOUND),
            ({"SourceArn": arn("dead"), "DestinationArn": arn("dead")}, INVALID_PARAMETER_VALUE),
            (
                {"SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 501},
                INVALID_PARAMETER_VALUE,
            ),
        ):
            assert await call.refusal("StartMessageMoveTask", **parameters) == fault
        fault = await call.refusal("CancelMessageMoveTask", TaskHandle="none")
        assert fault == RESOURCE_NOT_FOUND


async def test_a_fifo_queue_of_mqtt_has_the_groups_of_its_key() -> None:
    """A device's messages come one after the other."""
    queue = {"key": "topic:1", "groups": {"default": {"order": "key"}}}
    async with running_sqs({"plants.fifo": queue}) as server:
        call = Caller(server)
        for topic in ("plant/1/t", "plant/2/t", "plant/1/p"):
            await call.service.queue("plants.fifo").buffer.store(
                [NewMessage(Message(topic, topic.encode()))]
            )
        found: list[dict[str, Any]] = []
        while len(found) < 2:
            found += await call.received("plants.fifo", AttributeNames=["MessageGroupId"])
        groups = {one["Body"]: one["Attributes"]["MessageGroupId"] for one in found}
        assert groups == {"plant/1/t": "1", "plant/2/t": "2"}


async def test_a_page_of_queues_goes_on_behind_the_last() -> None:
    """A token of somebody else is refused."""
    async with running_sqs({name: {} for name in "abc"}) as server:
        call = Caller(server)
        first = await call("ListQueues", MaxResults=2)
        second = await call("ListQueues", MaxResults=2, NextToken=first["NextToken"])
        names = [url[-1] for url in first["QueueUrls"] + second["QueueUrls"]]
        assert names == ["a", "b", "c"]
        assert "NextToken" not in second
        assert await call.refusal("ListQueues", NextToken="\u00e4") == INVALID_PARAMETER_VALUE


async def test_messages_of_a_receiver_that_has_left_are_there_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if it leaves while its answer is put together; the receive does not count."""
    async with running_sqs({"q": {}}) as server:
        call = Caller(server)
        await call("SendMessage", QueueUrl="q", MessageBody="a")
        with monkeypatch.context() as patched:
            patched.setattr(actions, "_shown", cancelled)
            with pytest.raises(asyncio.CancelledError):
                await call("ReceiveMessage", QueueUrl="q")
        (received,) = await call.received("q", AttributeNames=["ApproximateReceiveCount"])
        assert received["Attributes"] == {"ApproximateReceiveCount": "1"}


def cancelled(*_: object) -> Generator[None, None, None]:
    """End as a work whose caller was cancelled."""
    yield
    raise asyncio.CancelledError
