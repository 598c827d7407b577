"""One script of boto3 calls, and the same made of any SQS server: what each call came to.

The script knows nothing of the server but its URL. It runs against ours and against moto, and the
transcripts are compared. What no two servers have in common, such as ids, is replaced by its kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

REGION: Final = "eu-west-1"

INVISIBLE: Final = {"VisibilityTimeout": "3600"}
"""Visibility timeout of queues whose messages stay with their receiver throughout the script."""

COUNTS: Final = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
]

_KINDS: Final = {
    "MessageId": "an id",
    "ReceiptHandle": "a handle",
    "SequenceNumber": "a number",
    "SenderId": "a name",
    "SentTimestamp": "a time",
    "ApproximateFirstReceiveTimestamp": "a time",
    "CreatedTimestamp": "a time",
    "LastModifiedTimestamp": "a time",
    "NextToken": "a token",
    "TaskHandle": "a handle",
}
_PLACES: Final = re.compile(r"https?://[^/]+/[0-9]+/|(?<=arn:aws:sqs:)[a-z0-9-]+:[0-9]+(?=:)")

Transcript = dict[str, Any]


def new_client(url: str, key: str = "testing", secret: str | None = None) -> Any:
    """Return boto3's client, which repeats nothing: each outcome is to be seen."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret or "any",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=120),
    )


class Script:
    """A run of the script.

    Attributes:
        transcript: outcome by name of the step.
    """

    def __init__(self, client: Any) -> None:
        self.transcript: Transcript = {}
        self._client = client

    def step(self, name: str, action: str, **parameters: Any) -> Any:
        """Make a call; return its answer, {} where it is refused."""
        try:
            answer = getattr(self._client, action)(**parameters)
        except ClientError as error:
            self.transcript[name] = f"refused: {error.response['Error']['Code']}"
            return {}
        except Exception as error:  # noqa: BLE001 (a server may answer anything)
            self.transcript[name] = f"failed: {type(error).__name__}"
            return {}
        answer.pop("ResponseMetadata", None)
        self.transcript[name] = _without_places(answer)
        return answer

    def queue(self, name: str, **attributes: str) -> str:
        """Create a queue that is no step; return its URL."""
        url: str = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def send(self, url: str, *bodies: str, **more: Any) -> None:
        """Send messages that are no step."""
        for body in bodies:
            self._client.send_message(QueueUrl=url, MessageBody=body, **more)

    def receive(self, url: str, **more: Any) -> list[Any]:
        """Receive messages that are no step."""
        found: list[Any] = self._client.receive_message(QueueUrl=url, **more).get("Messages", [])
        return found


def _without_places(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _without_places(one, name) for name, one in value.items()}
    if isinstance(value, list):
        found = [_without_places(one) for one in value]
        is_of_messages = key == "Messages"
        return sorted(found, key=lambda one: str(one["Body"])) if is_of_messages else found
    if key == "Message":
        return "a text"
    if key in _KINDS and value is not None:
        return _KINDS[key]
    if isinstance(value, str):
        return _PLACES.sub("", value)
    return value


def run(client: Any) -> Transcript:
    """Run the script."""
    script = Script(client)
    for part in PARTS:
        part(script)
    return script.transcript


def _queues(script: Script) -> None:
    step = script.step
    step("create", "create_queue", QueueName="made", Attributes={"VisibilityTimeout": "40"})
    step("create again", "create_queue", QueueName="made")
    step("create as it is", "create_queue", QueueName="made", Attributes={"DelaySeconds": "0"})
    step("create otherwise", "create_queue", QueueName="made", Attributes={"DelaySeconds": "5"})
    step("create badly named", "create_queue", QueueName="no spaces")
    step("create too long named", "create_queue", QueueName="a" * 81)
    step(
        "create with a bad value", "create_queue", QueueName="x", Attributes={"DelaySeconds": "-1"}
    )
    step(
        "create with a small size",
        "create_queue",
        QueueName="x",
        Attributes={"MaximumMessageSize": "1023"},
    )
    step(
        "create with an unknown attribute",
        "create_queue",
        QueueName="x",
        Attributes={"Colour": "red"},
    )
    step("create .fifo as standard", "create_queue", QueueName="x.fifo")
    step(
        "create FIFO without .fifo",
        "create_queue",
        QueueName="x2",
        Attributes={"FifoQueue": "true"},
    )
    step("URL", "get_queue_url", QueueName="made")
    step("URL of none", "get_queue_url", QueueName="none")
    url = script.queue("attributes")
    step("attributes", "get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
    encrypted = script.transcript["attributes"]["Attributes"].pop("SqsManagedSseEnabled")
    script.transcript["encryption of the storage"] = encrypted
    step(
        "one attribute", "get_queue_attributes", QueueUrl=url, AttributeNames=["VisibilityTimeout"]
    )
    step("no attribute", "get_queue_attributes", QueueUrl=url)
    step("unknown attribute", "get_queue_attributes", QueueUrl=url, AttributeNames=["Colour"])
    new = {"VisibilityTimeout": "7", "DelaySeconds": "1", "MaximumMessageSize": "2048"}
    step("set attributes", "set_queue_attributes", QueueUrl=url, Attributes=new)
    step("attributes as set", "get_queue_attributes", QueueUrl=url, AttributeNames=list(new))
    step("set a policy", "set_queue_attributes", QueueUrl=url, Attributes={"Policy": "{}"})
    for name in ("page-a", "page-b", "page-c"):
        script.queue(name)
    step("list", "list_queues", QueueNamePrefix="page-")
    step("list none", "list_queues", QueueNamePrefix="absent-")
    page = step("list a page", "list_queues", QueueNamePrefix="page-", MaxResults=2)
    if "NextToken" in page:
        step(
            "list the next page",
            "list_queues",
            QueueNamePrefix="page-",
            MaxResults=2,
            NextToken=page["NextToken"],
        )
    step("tags at first", "list_queue_tags", QueueUrl=url)
    step("tag", "tag_queue", QueueUrl=url, Tags={"team": "a", "cost": "b"})
    step("untag", "untag_queue", QueueUrl=url, TagKeys=["cost"])
    step("tags", "list_queue_tags", QueueUrl=url)
    step("create with tags", "create_queue", QueueName="tagged", tags={"team": "c"})
    step("tags as created", "list_queue_tags", QueueUrl=script.queue("tagged"))
    step(
        "permission", "add_permission", QueueUrl=url, Label="l", AWSAccountIds=["1"], Actions=["*"]
    )
    step("delete", "delete_queue", QueueUrl=url)
    step("delete again", "delete_queue", QueueUrl=url)
    step("send to none", "send_message", QueueUrl=url, MessageBody="a")
    step("receive from none", "receive_message", QueueUrl=url)


def _messages(script: Script) -> None:
    step = script.step
    url = script.queue("messages", **INVISIBLE)
    attributes = {
        "text": {"DataType": "String", "StringValue": "grün"},
        "text.label": {"DataType": "String.label", "StringValue": "a"},
        "number": {"DataType": "Number", "StringValue": "-1.5"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988"}}
    body = '<xml attribute="&amp;">\r\n\tgrün \U0001f600</xml>'
    step("receive nothing", "receive_message", QueueUrl=url)
    step(
        "send",
        "send_message",
        QueueUrl=url,
        MessageBody=body,
        MessageAttributes=attributes,
        MessageSystemAttributes=trace,
    )
    step("how many", "get_queue_attributes", QueueUrl=url, AttributeNames=COUNTS)
    found = step(
        "receive",
        "receive_message",
        QueueUrl=url,
        AttributeNames=["All"],
        MessageAttributeNames=["All"],
    )
    step("receive while it is invisible", "receive_message", QueueUrl=url)
    step("how many in flight", "get_queue_attributes", QueueUrl=url, AttributeNames=COUNTS)
    handle = found["Messages"][0]["ReceiptHandle"]
    step(
        "visible",
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle=handle,
        VisibilityTimeout=0,
    )
    again = step(
        "receive again",
        "receive_message",
        QueueUrl=url,
        MessageSystemAttributeNames=["ApproximateReceiveCount"],
        MessageAttributeNames=["text.*", "number"],
        MaxNumberOfMessages=10,
        WaitTimeSeconds=1,
    )
    handle = again["Messages"][0]["ReceiptHandle"]
    step(
        "invisible",
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle=handle,
        VisibilityTimeout=60,
    )
    step(
        "invisible too long",
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle=handle,
        VisibilityTimeout=43201,
    )
    step("delete message", "delete_message", QueueUrl=url, ReceiptHandle=handle)
    step("delete message again", "delete_message", QueueUrl=url, ReceiptHandle=handle)
    step("delete by no handle", "delete_message", QueueUrl=url, ReceiptHandle="forged")
    step(
        "visibility of a deleted message",
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle=handle,
        VisibilityTimeout=5,
    )
    step(
        "visibility by no handle",
        "change_message_visibility",
        QueueUrl=url,
        ReceiptHandle="forged",
        VisibilityTimeout=5,
    )
    step("send no text", "send_message", QueueUrl=url, MessageBody="")
    step("send a NUL", "send_message", QueueUrl=url, MessageBody="a\x00b")
    step("send too much", "send_message", QueueUrl=url, MessageBody="a" * (1024 * 1024 + 1))
    step("send too late", "send_message", QueueUrl=url, MessageBody="a", DelaySeconds=901)
    for name, attribute in (
        ("a bad name", {"a b": {"DataType": "String", "StringValue": "a"}}),
        ("a reserved name", {"AWS.a": {"DataType": "String", "StringValue": "a"}}),
        ("a bad type", {"a": {"DataType": "Float", "StringValue": "1"}}),
        ("no number", {"a": {"DataType": "Number", "StringValue": "one"}}),
        ("an empty value", {"a": {"DataType": "String", "StringValue": ""}}),
    ):
        step(
            f"send {name}",
            "send_message",
            QueueUrl=url,
            MessageBody="a",
            MessageAttributes=attribute,
        )
    step("receive too many", "receive_message", QueueUrl=url, MaxNumberOfMessages=11)
    step("receive none", "receive_message", QueueUrl=url, MaxNumberOfMessages=0)
    step("receive too long", "receive_message", QueueUrl=url, WaitTimeSeconds=21)
    step("receive invisible too long", "receive_message", QueueUrl=url, VisibilityTimeout=43201)
    delayed = script.queue("delayed", DelaySeconds="900")
    script.send(delayed, "late")
    step("receive what is delayed", "receive_message", QueueUrl=delayed)
    step(
        "how many delayed",
        "get_queue_attributes",
        QueueUrl=delayed,
        AttributeNames=["ApproximateNumberOfMessagesDelayed"],
    )
    script.send(delayed, "at once", DelaySeconds=0)
    step("receive what is not delayed", "receive_message", QueueUrl=delayed, WaitTimeSeconds=1)
    step("purge", "purge_queue", QueueUrl=delayed)
    step(
        "how many after it",
        "get_queue_attributes",
        QueueUrl=delayed,
        AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"],
    )


def _batches(script: Script) -> None:
    step = script.step
    url = script.queue("batches", **INVISIBLE)

    def send(name: str, *entries: dict[str, Any]) -> None:
        step(name, "send_message_batch", QueueUrl=url, Entries=list(entries))

    send(
        "send three",
        {"Id": "a", "MessageBody": "one"},
        {
            "Id": "b",
            "MessageBody": "two",
            "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "2"}},
        },
        {"Id": "c", "MessageBody": "three", "DelaySeconds": 0},
    )
    send("send none in a batch")
    send("send twice the same id", *[{"Id": "a", "MessageBody": "x"}] * 2)
    send("send a bad id", {"Id": "a.b", "MessageBody": "x"})
    send("send eleven", *[{"Id": str(n), "MessageBody": "x"} for n in range(11)])
    send("send more than a batch", *[{"Id": i, "MessageBody": "x" * 700_000} for i in "ab"])
    send(
        "send one late",
        {"Id": "a", "MessageBody": "four"},
        {"Id": "b", "MessageBody": "never", "DelaySeconds": 901},
    )
    found: list[Any] = []
    while len(found) < 4 and (
        more := script.receive(url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
    ):
        found += more
    script.transcript["receive four"] = sorted(one["Body"] for one in found)
    handles = [one["ReceiptHandle"] for one in found]
    step(
        "change visibilities",
        "change_message_visibility_batch",
        QueueUrl=url,
        Entries=[
            {"Id": "a", "ReceiptHandle": handles[0], "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": handles[1], "VisibilityTimeout": 60},
            {"Id": "c", "ReceiptHandle": "forged", "VisibilityTimeout": 60},
            {"Id": "d", "ReceiptHandle": handles[2], "VisibilityTimeout": 43201},
        ],
    )
    step("change none", "change_message_visibility_batch", QueueUrl=url, Entries=[])
    step(
        "delete three",
        "delete_message_batch",
        QueueUrl=url,
        Entries=[{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[1:])],
    )
    step(
        "delete one of two",
        "delete_message_batch",
        QueueUrl=url,
        Entries=[{"Id": "a", "ReceiptHandle": handles[1]}, {"Id": "b", "ReceiptHandle": "forged"}],
    )
    step("delete none", "delete_message_batch", QueueUrl=url, Entries=[])
    script.transcript["receive the last"] = [
        one["Body"] for one in script.receive(url, WaitTimeSeconds=1)
    ] == [found[0]["Body"]]


def _dead_letters(script: Script) -> None:
    step = script.step
    dead = script.queue("dead")
    arn = script._client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = arn["Attributes"]["QueueArn"]
    url = script.queue("work", **INVISIBLE)

    def policy(target: str, receives: Any = 2) -> dict[str, str]:
        found = {"deadLetterTargetArn": target, "maxReceiveCount": receives}
        return {"RedrivePolicy": json.dumps(found)}

    def set_policy(name: str, attributes: dict[str, str], queue: str = url) -> None:
        step(name, "set_queue_attributes", QueueUrl=queue, Attributes=attributes)

    set_policy("dead letters to none", policy(arn + "-none"))
    set_policy("dead letters without a target", {"RedrivePolicy": '{"maxReceiveCount": 1}'})
    set_policy(
        "dead letters without a count", {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn})}
    )
    set_policy(
        "dead letters of FIFO to standard", policy(arn), script.queue("w.fifo", FifoQueue="true")
    )
    set_policy("dead letters", policy(arn))
    step("policy", "get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])
    step("sources", "list_dead_letter_source_queues", QueueUrl=dead)
    script.send(url, "poison")
    for _ in range(2):
        for one in script.receive(url, WaitTimeSeconds=1):
            script._client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=one["ReceiptHandle"], VisibilityTimeout=0
            )
    step("receive what was received too often", "receive_message", QueueUrl=url, WaitTimeSeconds=1)
    step(
        "receive the dead letter",
        "receive_message",
        QueueUrl=dead,
        WaitTimeSeconds=1,
        VisibilityTimeout=0,
        MessageSystemAttributeNames=["SentTimestamp"],
    )
    step("move back", "start_message_move_task", SourceArn=arn)
    step(
        "move what is no dead letter",
        "start_message_move_task",
        SourceArn=arn.replace("dead", "work"),
    )
    step("no dead letters", "set_queue_attributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    step("no policy", "get_queue_attributes", QueueUrl=url, AttributeNames=["RedrivePolicy"])


def _fifo(script: Script) -> None:
    step = script.step
    url = script.queue("f.fifo", FifoQueue="true", **INVISIBLE)
    step(
        "FIFO attributes",
        "get_queue_attributes",
        QueueUrl=url,
        AttributeNames=[
            "FifoQueue",
            "ContentBasedDeduplication",
            "DeduplicationScope",
            "FifoThroughputLimit",
        ],
    )
    step("send without a group", "send_message", QueueUrl=url, MessageBody="a")
    step("send without an id", "send_message", QueueUrl=url, MessageBody="a", MessageGroupId="g")
    named = {"MessageGroupId": "g", "MessageDeduplicationId": "1"}
    step("send in FIFO", "send_message", QueueUrl=url, MessageBody="a1", **named)
    step("send in FIFO again", "send_message", QueueUrl=url, MessageBody="a1", **named)
    step(
        "send late in FIFO", "send_message", QueueUrl=url, MessageBody="a", DelaySeconds=5, **named
    )
    script.send(url, "a2", MessageGroupId="g", MessageDeduplicationId="2")
    script.send(url, "b1", MessageGroupId="h", MessageDeduplicationId="3")
    first = script.receive(url, WaitTimeSeconds=1, MessageSystemAttributeNames=["All"])
    second = script.receive(url, WaitTimeSeconds=1)
    step("receive what waits for its group", "receive_message", QueueUrl=url)
    received = {one["Body"]: one for one in first + second}
    script.transcript["first of each group"] = sorted(received)
    script.transcript["attributes of FIFO"] = _without_places(sorted(first[0]["Attributes"]))
    step(
        "delete in FIFO",
        "delete_message",
        QueueUrl=url,
        ReceiptHandle=received["a1"]["ReceiptHandle"],
    )
    step(
        "receive the next of the group",
        "receive_message",
        QueueUrl=url,
        WaitTimeSeconds=1,
        MessageSystemAttributeNames=["MessageGroupId", "MessageDeduplicationId", "SequenceNumber"],
    )
    url = script.queue("content.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    for _ in range(2):
        script.send(url, "same", MessageGroupId="g")
    step(
        "how many of the same content",
        "get_queue_attributes",
        QueueUrl=url,
        AttributeNames=["ApproximateNumberOfMessages"],
    )
    standard = script.queue("standard")
    step(
        "send an id to standard",
        "send_message",
        QueueUrl=standard,
        MessageBody="a",
        MessageDeduplicationId="1",
    )
    step(
        "send a group to standard",
        "send_message",
        QueueUrl=standard,
        MessageBody="a",
        MessageGroupId="g",
    )
    step(
        "receive a group of standard",
        "receive_message",
        QueueUrl=standard,
        WaitTimeSeconds=1,
        MessageSystemAttributeNames=["MessageGroupId"],
    )


PARTS: Final[tuple[Callable[[Script], None], ...]] = (
    _queues,
    _messages,
    _batches,
    _dead_letters,
    _fifo,
)
