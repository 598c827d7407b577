"""Messages of SQS become messages of the queue, and the reverse."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import Message
from penstock.broker.mqtt.topics import validate_topic
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.sqs import message_attributes as attributes_of
from penstock.plugins.queue.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    MISSING_PARAMETER,
    SqsError,
    invalid_parameter,
)
from penstock.plugins.queue.sqs.message_attributes import (
    DEDUPLICATION_PROPERTY,
    MESSAGE_ID_PROPERTY,
    TRACE_PROPERTY,
    MessageAttribute,
    md5_of_attributes,
    md5_of_text,
    read_attributes,
)
from penstock.plugins.queue.sqs.parameters import optional_integer, optional_text, text
from penstock.plugins.queue.sqs.protocol import is_xml_text
from penstock.plugins.queue.sqs.queue_attributes import (
    MAX_DELAY_SECONDS,
    QueueSettings,
    arn_of,
    is_fifo,
)
from penstock.plugins.queue.strategies.message_key import KEY_PROPERTY, UserProperties, key_reader
from penstock.plugins.queue.wire.frames import DEAD_LETTER, ReceivedMessage

BodyForm: TypeAlias = Literal["text", "base64"]
"""How a payload becomes the body of an SQS message: as UTF-8 text, or base64 where it is no text;
or always as base64."""

TOPIC: Final = "topic"
"""The attribute by which a sender sets the topic of the message."""
TRACE_HEADER: Final = "AWSTraceHeader"

_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_MESSAGE_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ID_ALLOWED: Final = "1 to 128 printable ASCII characters without spaces"
_QOS: Final = 1


class Prepared(NamedTuple):
    """A message that is about to be stored.

    Attributes:
        new: the message.
        size_bytes: the bytes of body and attributes, as they count towards limits.
        result: what the sender is told when it is stored.
    """

    new: NewMessage
    size_bytes: int
    result: dict[str, Any]


class Target(NamedTuple):
    """The queue that messages are sent to.

    Attributes:
        now: monotonic seconds.
    """

    name: str
    incarnation: str
    settings: QueueSettings
    body_form: BodyForm
    publisher: str
    now: float


def prepare(parameters: Mapping[str, Any], target: Target) -> Prepared:
    """Return the message of a request, or of an entry of a batch.

    Raises:
        SqsError: it is not allowed.
    """
    body = text(parameters, "MessageBody")
    payload = _payload(body, target.body_form)
    attributes = read_attributes(parameters.get("MessageAttributes"))
    system = read_attributes(parameters.get("MessageSystemAttributes"), "message system attribute")
    size_bytes = _checked_size(body, attributes, int(target.settings.tag("MaximumMessageSize")))
    group_id = _identifier(parameters, "MessageGroupId")
    deduplication_id = _deduplication_id(parameters, target, body, group_id)
    pairs = attributes_of.to_user_properties(attributes)
    message_id = _message_id(target, deduplication_id, group_id)
    pairs.append((MESSAGE_ID_PROPERTY, message_id))
    if group_id:
        pairs.append((KEY_PROPERTY, group_id))
    if deduplication_id:
        pairs.append((DEDUPLICATION_PROPERTY, deduplication_id))
    pairs += _trace(system)
    delay = optional_integer(parameters, "DelaySeconds", 0, MAX_DELAY_SECONDS)
    if delay and is_fifo(target.name):
        raise invalid_parameter("DelaySeconds", delay, "absent for FIFO queues")
    message = Message(
        _topic(attributes, target.name),
        payload,
        qos=_QOS,
        arrived_at=target.now,
        properties={"user_property": pairs},
        publisher=target.publisher,
    )
    key = _deduplication_key(target, deduplication_id, group_id)
    new = NewMessage(message, key, None if delay is None else float(delay))
    result: dict[str, Any] = {"MD5OfMessageBody": md5_of_text(body), "MessageId": message_id}
    if attributes:
        result["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
    if system:
        result["MD5OfMessageSystemAttributes"] = md5_of_attributes(system)
    return Prepared(new, size_bytes, result)


def sequence_number(offset: int) -> str:
    """Return the SequenceNumber of a message; it grows within a message group."""
    return f"{offset:020d}"


class Wanted(NamedTuple):
    """What a receiver wants to know of messages.

    Attributes:
        attributes: names of message attributes; see `message_attributes.select`.
    """

    system: Sequence[str]
    attributes: Sequence[str]


class Source(NamedTuple):
    """The queue that messages are received from.

    Attributes:
        key: what the key of a message is; see `QueueSpec`.
        now: seconds since the Unix epoch.
    """

    name: str
    incarnation: str
    key: str | None
    body_form: BodyForm
    region: str
    now: float


def shown(message: ReceivedMessage, source: Source, wanted: Wanted) -> dict[str, Any]:
    """Return a received message as SQS has it."""
    properties = attributes_of.read_properties(message)
    own = attributes_of.own_properties(properties)
    attributes = attributes_of.of_received(message, properties, own)
    body, is_encoded = _body(message.payload, source.body_form)
    if is_encoded:
        attributes[attributes_of.BODY_ENCODING] = MessageAttribute("String", "base64")
    attributes = attributes_of.select(attributes, wanted.attributes)
    found: dict[str, Any] = {
        "MessageId": _id_of(message, own, source.incarnation),
        "ReceiptHandle": message.receipt_handle,
        "MD5OfBody": md5_of_text(body),
        "Body": body,
    }
    system = _system_attributes(message, own, properties, source)
    if "All" not in wanted.system:
        system = {name: value for name, value in system.items() if name in wanted.system}
    if system:
        found["Attributes"] = system
    if attributes:
        found["MessageAttributes"] = {
            name: attribute.as_json() for name, attribute in attributes.items()
        }
        found["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
    return found


def _system_attributes(
    message: ReceivedMessage, own: Mapping[str, str], properties: Mapping[str, Any], source: Source
) -> dict[str, str]:
    pairs: UserProperties = properties.get("user_property", ())
    found = {
        "SenderId": message.publisher,
        "SentTimestamp": str(int(message.enqueued_at * 1000)),
        "ApproximateReceiveCount": str(message.receive_count + _receives_before(properties)),
        "ApproximateFirstReceiveTimestamp": str(int(source.now * 1000)),
    }
    if is_fifo(source.name):
        found["SequenceNumber"] = sequence_number(message.offset)
    group_id = own.get(KEY_PROPERTY)
    if source.key is not None:
        group_id = key_reader(source.key)(message.topic, message.publisher, pairs)
    if group_id is not None:
        found["MessageGroupId"] = group_id
    for name, property_name in (
        ("MessageDeduplicationId", DEDUPLICATION_PROPERTY),
        (TRACE_HEADER, TRACE_PROPERTY),
    ):
        if property_name in own:
            found[name] = own[property_name]
    if DEAD_LETTER in properties:
        found["DeadLetterQueueSourceArn"] = arn_of(properties[DEAD_LETTER]["queue"], source.region)
    return found


def _receives_before(properties: Mapping[str, Any]) -> int:
    """Return how often a dead letter was received in the queue in which it died."""
    return int(properties.get(DEAD_LETTER, {}).get("receives", 0))


def _payload(body: str, form: BodyForm) -> bytes:
    if not is_xml_text(body):
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            "MessageBody: read characters that XML does not allow; allowed: #x9, #xA, #xD, #x20 to "
            "#xD7FF, #xE000 to #xFFFD and #x10000 to #x10FFFF.",
        )
    if form == "text":
        return body.encode()
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            "MessageBody: read no base64; allowed: base64, as the queue has sqs_body: base64.",
        ) from None


def _body(payload: bytes, form: BodyForm) -> tuple[str, bool]:
    """Return a payload as a body, and whether it is base64 because it is no text."""
    if form == "text":
        try:
            body = payload.decode()
        except UnicodeDecodeError:
            pass
        else:
            if is_xml_text(body):
                return body, False
    return base64.b64encode(payload).decode(), form == "text"


def _checked_size(body: str, attributes: Mapping[str, MessageAttribute], most: int) -> int:
    size_bytes = len(body.encode()) + sum(
        len(name) + attribute.size_bytes for name, attribute in attributes.items()
    )
    if size_bytes > most:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{most} bytes; read {size_bytes}, attributes included.",
        )
    return size_bytes


def _topic(attributes: Mapping[str, MessageAttribute], default: str) -> str:
    attribute = attributes.get(TOPIC)
    if attribute is None:
        return default
    value = attribute.value
    if not isinstance(value, str):
        raise invalid_parameter(TOPIC, attribute.data_type, "of type String")
    try:
        validate_topic(value)
    except MalformedPacketError as error:
        raise invalid_parameter(TOPIC, value, f"an MQTT topic name ({error})") from None
    return value


def _identifier(parameters: Mapping[str, Any], name: str) -> str:
    found = optional_text(parameters, name)
    if found is None:
        return ""
    if not _ID.fullmatch(found):
        raise invalid_parameter(name, found, _ID_ALLOWED)
    return found


def _deduplication_id(
    parameters: Mapping[str, Any], target: Target, body: str, group_id: str
) -> str:
    """Return the MessageDeduplicationId of a message; "" in a standard queue."""
    found = _identifier(parameters, "MessageDeduplicationId")
    if not is_fifo(target.name):
        if found:
            raise invalid_parameter("MessageDeduplicationId", found, "absent for standard queues")
        return ""
    if not group_id:
        raise SqsError(MISSING_PARAMETER, "The request must contain the parameter MessageGroupId.")
    if found:
        return found
    if target.settings.tag("ContentBasedDeduplication") != "true":
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly",
        )
    return hashlib.sha256(body.encode()).hexdigest()


def _deduplication_key(target: Target, deduplication_id: str, group_id: str) -> bytes:
    """Return what the engine compares; b"" for a message that is stored in any case."""
    if not deduplication_id:
        return b""
    is_scoped = target.settings.tag("DeduplicationScope") == "messageGroup"
    return f"sqs {group_id if is_scoped else ''} {deduplication_id}".encode()


def _message_id(target: Target, deduplication_id: str, group_id: str) -> str:
    """Return the MessageId of a message: a repeated one has that of the first."""
    if not deduplication_id:
        return str(uuid.uuid4())
    key = _deduplication_key(target, deduplication_id, group_id).decode()
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{target.incarnation} {key}"))


def _id_of(message: ReceivedMessage, own: Mapping[str, str], incarnation: str) -> str:
    """Return the MessageId of a received message; each receive has the same."""
    sent = own.get(MESSAGE_ID_PROPERTY, "")
    if _MESSAGE_ID.fullmatch(sent):
        return sent
    place = f"{incarnation} {message.physical_queue} {message.offset}"
    return str(uuid.uuid5(uuid.NAMESPACE_OID, place))


def _trace(system: Mapping[str, MessageAttribute]) -> list[tuple[str, str]]:
    for name in system:
        if name != TRACE_HEADER:
            raise invalid_parameter("MessageSystemAttributes", name, TRACE_HEADER)
    found = system.get(TRACE_HEADER)
    if found is None:
        return []
    if not isinstance(found.value, str):
        raise invalid_parameter(TRACE_HEADER, found.data_type, "of type String")
    return [(TRACE_PROPERTY, found.value)]
