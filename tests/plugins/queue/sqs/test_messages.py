from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from penstock.plugins.queue.batch_format import properties_json
from penstock.plugins.queue.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    MISSING_PARAMETER,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.messages import (
    Prepared,
    Source,
    Target,
    Wanted,
    prepare,
    sequence_number,
    shown,
)
from penstock.plugins.queue.sqs.queue_attributes import new_settings
from penstock.plugins.queue.wire.frames import ReceivedMessage

EVERYTHING = Wanted(["All"], ["All"])


def target(name: str = "q", **more: Any) -> Target:
    """Return a queue to send to."""
    return Target(name, "inc", new_settings(name), "text", "importer", 5.0)._replace(**more)


def source(name: str = "q", **more: Any) -> Source:
    """Return a queue to receive from."""
    return Source(name, "inc", None, "text", "eu-west-1", 1.7e9)._replace(**more)


def prepared(to: Target | None = None, **parameters: Any) -> Prepared:
    """Return the message of a request."""
    return prepare({"MessageBody": "21.5"} | parameters, to or target())


def refusal(to: Target | None = None, **parameters: Any) -> Fault:
    """Return why a request is refused."""
    with pytest.raises(SqsError) as refused:
        prepared(to, **parameters)
    return refused.value.fault


def pairs_of(one: Prepared) -> dict[str, str]:
    """Return the user properties of a message."""
    return dict(one.new.message.properties["user_property"])


def received(one: Prepared, **more: Any) -> ReceivedMessage:
    """Return a sent message as the engine hands it out."""
    message = one.new.message
    return ReceivedMessage(
        "handle",
        2,
        3,
        7,
        message.topic,
        message.read_payload(),
        message.qos,
        message.publisher,
        1.6e9,
        properties_json(message.properties),
    )._replace(**more)


def published(payload: bytes = b"21.5", **more: Any) -> ReceivedMessage:
    """Return a message of MQTT as the engine hands it out."""
    return ReceivedMessage("h", 1, 3, 7, "plant/1", payload, 0, "sensor", 1.6e9, "")._replace(
        **more
    )


def test_a_body_becomes_a_payload_under_the_name_of_the_queue() -> None:
    """With the name of the caller as its publisher."""
    one = prepared(MessageBody="grün", DelaySeconds=5)
    message = one.new.message
    assert (message.topic, message.payload, message.qos) == ("q", "grün".encode(), 1)
    assert (message.publisher, message.arrived_at) == ("importer", 5.0)
    assert one.new.delay_seconds == 5.0
    assert one.new.deduplication_id == b""
    assert one.size_bytes == 5
    assert uuid.UUID(one.result["MessageId"])


def test_the_queues_delay_holds_where_none_is_given() -> None:
    """None is for the engine to decide."""
    assert prepared().new.delay_seconds is None


def test_an_attribute_may_name_the_topic() -> None:
    """It comes back as an attribute, too."""
    attribute = {"topic": {"DataType": "String", "StringValue": "plant/2"}}
    one = prepared(MessageAttributes=attribute)
    assert one.new.message.topic == "plant/2"
    assert shown(received(one), source(), EVERYTHING)["MessageAttributes"] == attribute


@pytest.mark.parametrize(
    "attribute",
    [
        {"DataType": "String", "StringValue": "plant/+"},
        {"DataType": "Binary", "BinaryValue": "YQ=="},
    ],
)
def test_a_topic_that_is_none_is_refused(attribute: dict[str, str]) -> None:
    """With wildcards, or no text."""
    assert refusal(MessageAttributes={"topic": attribute}) == INVALID_PARAMETER_VALUE


def test_what_was_sent_over_sqs_is_received_as_it_was_sent() -> None:
    """Body, digests, id and attributes; nothing of MQTT is added."""
    attributes = {"level": {"DataType": "Number.int", "StringValue": "5"}}
    one = prepared(MessageBody="a\r\nb", MessageAttributes=attributes)
    found = shown(received(one), source(), EVERYTHING)
    assert found["Body"] == "a\r\nb"
    assert found["MD5OfBody"] == one.result["MD5OfMessageBody"]
    assert found["MD5OfMessageAttributes"] == one.result["MD5OfMessageAttributes"]
    assert found["MessageId"] == one.result["MessageId"]
    assert found["MessageAttributes"] == attributes
    assert found["Attributes"] == {
        "SenderId": "importer",
        "SentTimestamp": "1600000000000",
        "ApproximateReceiveCount": "2",
        "ApproximateFirstReceiveTimestamp": "1700000000000",
    }


def test_receivers_get_what_they_ask_for() -> None:
    """And no more."""
    one = received(prepared(MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}}))
    assert set(shown(one, source(), Wanted([], []))) == {
        "MessageId",
        "ReceiptHandle",
        "MD5OfBody",
        "Body",
    }
    assert shown(one, source(), Wanted(["SenderId"], []))["Attributes"] == {"SenderId": "importer"}


def test_a_message_of_mqtt_has_one_id_for_all_its_receives() -> None:
    """Another message, and one of a queue that was created again, have others."""
    ids = [
        shown(message, where, EVERYTHING)["MessageId"]
        for message, where in (
            (published(), source()),
            (published(receive_count=2), source()),
            (published(offset=8), source()),
            (published(physical_queue=4), source()),
            (published(), source(incarnation="other")),
        )
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


@pytest.mark.parametrize("sent", ["<forged>", "-" * 36])
def test_an_id_that_is_none_is_not_shown(sent: str) -> None:
    """A publisher over MQTT may send a property of that name."""
    properties = json.dumps({"user_property": [["penstock-message-id", sent]]})
    found = shown(published(properties=properties), source(), EVERYTHING)
    assert uuid.UUID(found["MessageId"])


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"a\x00b", "\ufffe".encode()])
def test_a_payload_that_is_no_text_is_base64_and_says_so(payload: bytes) -> None:
    """The attribute tells it from a text that looks like base64."""
    found = shown(published(payload), source(), EVERYTHING)
    assert base64.b64decode(found["Body"]) == payload
    assert found["MessageAttributes"]["body_encoding"]["StringValue"] == "base64"
    assert "body_encoding" not in shown(published(), source(), EVERYTHING)["MessageAttributes"]


def test_a_queue_of_base64_has_all_bodies_in_base64() -> None:
    """In both directions, and without a word about it."""
    one = prepared(target(body_form="base64"), MessageBody="//4=")
    assert one.new.message.payload == b"\xff\xfe"
    found = shown(published(b"text"), source(body_form="base64"), EVERYTHING)
    assert found["Body"] == "dGV4dA=="
    assert "body_encoding" not in found["MessageAttributes"]


def test_a_body_that_is_no_base64_is_refused_there() -> None:
    """The error names the key of the policy file."""
    with pytest.raises(SqsError, match="sqs_body") as refused:
        prepared(target(body_form="base64"), MessageBody="21.5!")
    assert refused.value.fault == INVALID_MESSAGE_CONTENTS


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"MessageBody": ""}, MISSING_PARAMETER),
        ({"MessageBody": "a\x00"}, INVALID_MESSAGE_CONTENTS),
        ({"MessageBody": "a\ud800"}, INVALID_MESSAGE_CONTENTS),
        ({"MessageBody": "a" * (1024 * 1024 + 1)}, INVALID_PARAMETER_VALUE),
        ({"DelaySeconds": 901}, INVALID_PARAMETER_VALUE),
        ({"DelaySeconds": -1}, INVALID_PARAMETER_VALUE),
        ({"MessageDeduplicationId": "a"}, INVALID_PARAMETER_VALUE),
        ({"MessageGroupId": "a b"}, INVALID_PARAMETER_VALUE),
        ({"MessageGroupId": "a" * 129}, INVALID_PARAMETER_VALUE),
    ],
)
def test_what_a_standard_queue_refuses(parameters: dict[str, Any], fault: Fault) -> None:
    """Each with its own error."""
    assert refusal(**parameters) == fault


def test_attributes_count_towards_the_size() -> None:
    """Names, types and values."""
    small = target(settings=new_settings("q").with_tag("MaximumMessageSize", "1024"))
    attribute = {"a": {"DataType": "String", "StringValue": "b" * 10}}
    room = 1024 - len("a") - len("String") - 10
    prepared(small, MessageBody="x" * room, MessageAttributes=attribute)
    fault = refusal(small, MessageBody="x" * (room + 1), MessageAttributes=attribute)
    assert fault == INVALID_PARAMETER_VALUE


def test_a_fifo_queue_needs_a_group_and_a_deduplication_id() -> None:
    """Unless it takes the id from the body."""
    fifo = target("q.fifo")
    assert refusal(fifo, MessageDeduplicationId="d") == MISSING_PARAMETER
    assert refusal(fifo, MessageGroupId="g") == INVALID_PARAMETER_VALUE
    by_body = fifo._replace(
        settings=new_settings("q.fifo").with_tag("ContentBasedDeduplication", "true")
    )
    ids = [
        prepared(by_body, MessageGroupId="g", MessageBody=body).new.deduplication_id
        for body in ("a", "a", "b")
    ]
    assert ids[0] == ids[1] != ids[2]
    one = prepared(by_body, MessageGroupId="g", MessageDeduplicationId="d")
    assert pairs_of(one)["penstock-deduplication-id"] == "d"


def test_a_fifo_queue_refuses_a_delay_of_one_message() -> None:
    """It would be overtaken."""
    fifo = target("q.fifo")
    named = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    assert refusal(fifo, DelaySeconds=1, **named) == INVALID_PARAMETER_VALUE
    assert prepared(fifo, DelaySeconds=0, **named)


def test_a_repeated_message_has_the_same_id() -> None:
    """So a sender that repeats a request sees that it is the same message."""
    fifo = target("q.fifo")
    ids = [
        prepared(fifo, MessageGroupId=group, MessageDeduplicationId=one).result["MessageId"]
        for group, one in (("g", "d"), ("h", "d"), ("g", "e"))
    ]
    assert ids[0] == ids[1] != ids[2]


def test_deduplication_may_be_by_group() -> None:
    """DeduplicationScope decides."""
    settings = new_settings("q.fifo").with_tag("DeduplicationScope", "messageGroup")
    fifo = target("q.fifo", settings=settings)
    keys = {
        prepared(fifo, MessageGroupId=group, MessageDeduplicationId="d").new.deduplication_id
        for group in ("g", "h")
    }
    assert len(keys) == 2


def test_the_group_is_the_key_of_the_message() -> None:
    """Which keeps the order; a receiver sees it with its number in the queue."""
    one = prepared(target("q.fifo"), MessageGroupId="g", MessageDeduplicationId="d")
    assert pairs_of(one)["penstock-key"] == "g"
    found = shown(received(one), source("q.fifo", key="property:penstock-key"), EVERYTHING)
    assert found["Attributes"]["MessageGroupId"] == "g"
    assert found["Attributes"]["MessageDeduplicationId"] == "d"
    assert found["Attributes"]["SequenceNumber"] == sequence_number(7)


def test_a_message_of_mqtt_has_the_key_of_its_queue_as_its_group() -> None:
    """Such as its topic."""
    found = shown(published(), source("q.fifo", key="topic"), EVERYTHING)
    assert found["Attributes"]["MessageGroupId"] == "plant/1"


def test_sequence_numbers_sort_as_texts() -> None:
    """With 20 digits, as Amazon has them."""
    assert len(sequence_number(0)) == 20
    assert sequence_number(9) < sequence_number(10)


def test_the_header_of_a_trace_travels_with_the_message() -> None:
    """It is the only system attribute that a sender may give."""
    trace = {"DataType": "String", "StringValue": "Root=1-5759e988"}
    one = prepared(MessageSystemAttributes={"AWSTraceHeader": trace})
    assert one.result["MD5OfMessageSystemAttributes"]
    found = shown(received(one), source(), EVERYTHING)
    assert found["Attributes"]["AWSTraceHeader"] == "Root=1-5759e988"
    assert refusal(MessageSystemAttributes={"Other": trace}) == INVALID_PARAMETER_VALUE
    binary = {"DataType": "Binary", "BinaryValue": "YQ=="}
    assert refusal(MessageSystemAttributes={"AWSTraceHeader": binary}) == INVALID_PARAMETER_VALUE


def test_a_dead_letter_names_its_queue() -> None:
    """As an ARN with the region of the caller."""
    properties = json.dumps({"dead_letter": {"queue": "work"}})
    found = shown(published(properties=properties), source(), EVERYTHING)
    arn = "arn:aws:sqs:eu-west-1:000000000000:work"
    assert found["Attributes"]["DeadLetterQueueSourceArn"] == arn


def test_a_publisher_cannot_say_where_a_message_died() -> None:
    """What it says is an attribute of the message as any other."""
    properties = json.dumps({"user_property": [["penstock-dead-queue", "work"]]})
    found = shown(published(properties=properties), source(), EVERYTHING)
    assert "DeadLetterQueueSourceArn" not in found["Attributes"]
    assert found["MessageAttributes"]["penstock-dead-queue"]["StringValue"] == "work"
