"""Message attributes of SQS: their checks, their digest, and their form as MQTT properties.

Theory of operation. What a sender gives as attributes becomes user properties of the message, so
that receivers over MQTT and HTTP see it: the value of a binary attribute in base64, and the types
of those that are no plain ``String`` in one more property, `TYPES_PROPERTY`. SQS receivers of such
a message get back exactly what was sent. A message that came over MQTT or HTTP has its topic, QoS,
publisher and properties as attributes instead.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.plugins.queue.engines.segments import DELAY_PROPERTY
from penstock.plugins.queue.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    SqsError,
)
from penstock.plugins.queue.sqs.protocol import is_xml_text
from penstock.plugins.queue.strategies.message_key import KEY_PROPERTY
from penstock.plugins.queue.wire.frames import ReceivedMessage

OWN_PREFIX: Final = "penstock-"
"""The prefix of user properties that become no attribute."""

MESSAGE_ID_PROPERTY: Final = "penstock-message-id"
"""The user property that marks a message sent over SQS. It keeps the MessageId on the way to a
dead-letter queue and back."""
TYPES_PROPERTY: Final = "penstock-sqs-types"
TRACE_PROPERTY: Final = "penstock-sqs-trace"
DEDUPLICATION_PROPERTY: Final = "penstock-deduplication-id"
_NO_ATTRIBUTES: Final = frozenset(
    {
        DEDUPLICATION_PROPERTY,
        DELAY_PROPERTY,
        KEY_PROPERTY,
        MESSAGE_ID_PROPERTY,
        TRACE_PROPERTY,
        TYPES_PROPERTY,
    }
)

MAX_ATTRIBUTES: Final = 10
MAX_NAME_CHARACTERS: Final = 256
MAX_TEXT_BYTES: Final = 65_535
"""The longest value of an attribute, in base64 where it is binary, as MQTT limits
strings."""

BODY_ENCODING: Final = "body_encoding"
"""The attribute of a message whose body is base64 because its payload is no text."""
USER_PROPERTIES: Final = "user_properties"
"""The attribute that holds, as JSON, the user properties whose names cannot be names of
attributes."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_RESERVED: Final = re.compile(r"(?i)(aws|amazon)\.")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BASE_TYPES: Final = ("String", "Number", "Binary")
_NUMBERS: Final = ("payload_format_indicator", "message_expiry_interval")
_TEXTS: Final = ("content_type", "response_topic")
_STRING: Final = "String"


class MessageAttribute(NamedTuple):
    """The value of one attribute.

    Attributes:
        data_type: ``String``, ``Number`` or ``Binary``, perhaps followed by a dot and a label.
        value: text, or bytes where it is binary.
    """

    data_type: str
    value: str | bytes

    @property
    def size_bytes(self) -> int:
        """What counts towards the size of a message, besides the name."""
        return len(self.data_type.encode()) + len(_as_bytes(self.value))

    def as_json(self) -> dict[str, str]:
        """Return it as the JSON protocol has it."""
        if isinstance(self.value, bytes):
            text = base64.b64encode(self.value).decode()
            return {"DataType": self.data_type, "BinaryValue": text}
        return {"DataType": self.data_type, "StringValue": self.value}


def read_attributes(raw: Any, kind: str = "message attribute") -> dict[str, MessageAttribute]:
    """Return the attributes of a request.

    Raises:
        SqsError: an attribute is not allowed.
    """
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise _refused(f"The {kind}s must be an object.")
    if len(raw) > MAX_ATTRIBUTES:
        raise _refused(
            f"Number of {kind}s [{len(raw)}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        )
    return {_checked_name(kind, name): _read_attribute(kind, name, raw[name]) for name in raw}


def _checked_name(kind: str, name: str) -> str:
    if (
        len(name) > MAX_NAME_CHARACTERS
        or not _NAME.fullmatch(name)
        or _RESERVED.match(name)
        or name.startswith(OWN_PREFIX)
    ):
        raise _refused(
            f"The {kind} name '{name[:80]}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters, no period at its ends or two "
            f"in a row, at most {MAX_NAME_CHARACTERS}, and must not begin with AWS., Amazon. or "
            f"{OWN_PREFIX}."
        )
    return name


def _read_attribute(kind: str, name: str, raw: Any) -> MessageAttribute:
    data_type = raw.get("DataType") if isinstance(raw, dict) else None
    if not isinstance(data_type, str) or not data_type:
        raise _refused(f"The {kind} '{name}' must contain non-empty message attribute value.")
    base = data_type.partition(".")[0]
    is_text = is_xml_text(data_type) and len(data_type) <= MAX_NAME_CHARACTERS
    if base not in _BASE_TYPES or not is_text:
        raise _refused(
            f"The {kind} '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    field = "BinaryValue" if base == "Binary" else "StringValue"
    text = raw.get(field)
    if not isinstance(text, str) or not text:
        raise _refused(
            f"The {kind} '{name}' must contain non-empty message attribute value for message "
            f"attribute type '{data_type}' in {field}."
        )
    if not is_xml_text(text):
        raise SqsError(
            INVALID_MESSAGE_CONTENTS, f"The {kind} '{name}' has characters that XML does not allow."
        )
    if base == "Number" and not _NUMBER.fullmatch(text):
        raise _refused(f"Can't cast the value of {kind} '{name}' to a number.")
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise _refused(
            f"The value of {kind} '{name}' must be shorter than {MAX_TEXT_BYTES} bytes, in base64 "
            "where it is binary, as an MQTT user property must."
        )
    if base != "Binary":
        return MessageAttribute(data_type, text)
    try:
        return MessageAttribute(data_type, base64.b64decode(text, validate=True))
    except ValueError:
        raise _refused(f"The {kind} '{name}' has a BinaryValue that is no base64.") from None


def md5_of_text(text: str) -> str:
    """Return the digest of a body, in hexadecimal."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, MessageAttribute]) -> str:
    """Return the digest of attributes, in hexadecimal, as Amazon defines it."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        data_type, value = attributes[name]
        for part in (name.encode(), data_type.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        data = _as_bytes(value)
        digest.update(b"\x02" if isinstance(value, bytes) else b"\x01")
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()


def to_user_properties(attributes: Mapping[str, MessageAttribute]) -> list[tuple[str, str]]:
    """Return attributes as user properties of a message."""
    pairs = []
    types = {}
    for name, (data_type, value) in attributes.items():
        if data_type != _STRING:
            types[name] = data_type
        pairs.append(
            (name, base64.b64encode(value).decode() if isinstance(value, bytes) else value)
        )
    if types:
        pairs.append((TYPES_PROPERTY, json.dumps(types)))
    return pairs


def read_properties(message: ReceivedMessage) -> dict[str, Any]:
    """Return the MQTT properties of a received message."""
    found = json.loads(message.properties) if message.properties else {}
    return found if isinstance(found, dict) else {}


def own_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the user properties of `OWN_PREFIX`; the last value of each."""
    pairs = properties.get("user_property", ())
    return {name: value for name, value in pairs if name.startswith(OWN_PREFIX)}


def of_received(
    message: ReceivedMessage, properties: Mapping[str, Any], own: Mapping[str, str]
) -> dict[str, MessageAttribute]:
    """Return all attributes of a received message, besides that of its body."""
    pairs = [
        (name, value)
        for name, value in properties.get("user_property", ())
        if name not in _NO_ATTRIBUTES
    ]
    if MESSAGE_ID_PROPERTY in own:
        return _as_sent(pairs, own.get(TYPES_PROPERTY, ""))
    found = {"topic": _text(message.topic), "qos": MessageAttribute("Number", str(message.qos))}
    if message.publisher:
        found["publisher"] = _text(message.publisher)
    for name in _TEXTS:
        if properties.get(name):
            found[name] = _text(properties[name])
    for name in _NUMBERS:
        if name in properties:
            found[name] = MessageAttribute("Number", str(properties[name]))
    correlation = base64.b64decode(properties.get("correlation_data", ""))
    if correlation:
        found["correlation_data"] = MessageAttribute("Binary", correlation)
    others = []
    names = [name for name, _ in pairs]
    for name, value in pairs:
        is_name = len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name)
        is_taken = name in found or name in (BODY_ENCODING, USER_PROPERTIES)
        if (
            value
            and is_name
            and not _RESERVED.match(name)
            and not is_taken
            and (names.count(name) == 1)
        ):
            found[name] = _text(value)
        else:
            others.append((name, value))
    if others:
        found[USER_PROPERTIES] = MessageAttribute(_STRING, json.dumps(others))
    return found


def select(
    attributes: Mapping[str, MessageAttribute], wanted: Iterable[str]
) -> dict[str, MessageAttribute]:
    """Return the attributes that a receiver asked for."""
    names = set(wanted)
    if names & {"All", ".*"}:
        return dict(attributes)
    beginnings = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in names or name.startswith(beginnings)
    }


def _as_sent(pairs: Iterable[tuple[str, str]], types_text: str) -> dict[str, MessageAttribute]:
    """Return the attributes with which a message was sent over SQS."""
    try:
        types = dict(json.loads(types_text)) if types_text else {}
    except (ValueError, TypeError, RecursionError):
        types = {}
    return {name: _typed(str(types.get(name, _STRING)), value) for name, value in pairs}


def _typed(data_type: str, text: str) -> MessageAttribute:
    """Return the attribute of a user property; a plain text where the type is not of our making."""
    base = data_type.partition(".")[0]
    if base == "Binary":
        with suppress(ValueError):
            return MessageAttribute(data_type, base64.b64decode(text, validate=True))
    return MessageAttribute(data_type, text) if base in _BASE_TYPES[:2] else _text(text)


def _text(text: str) -> MessageAttribute:
    """Return the attribute of any text; as bytes where XML does not allow its characters."""
    if is_xml_text(text):
        return MessageAttribute(_STRING, text)
    return MessageAttribute("Binary", text.encode(errors="surrogatepass"))


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _refused(message: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, message)
