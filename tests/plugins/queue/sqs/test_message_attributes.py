from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.sqs.models import Message as MotosMessage

from penstock.plugins.queue.batch_format import properties_json
from penstock.plugins.queue.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    SqsError,
)
from penstock.plugins.queue.sqs.message_attributes import (
    MAX_ATTRIBUTES,
    MAX_TEXT_BYTES,
    MESSAGE_ID_PROPERTY,
    MessageAttribute,
    md5_of_attributes,
    md5_of_text,
    of_received,
    own_properties,
    read_attributes,
    read_properties,
    select,
    to_user_properties,
)
from penstock.plugins.queue.wire.frames import ReceivedMessage

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True).filter(
    lambda name: not name.startswith("penstock-")
)
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn"]), min_size=1, max_size=20)
ATTRIBUTES = st.dictionaries(
    NAMES,
    st.one_of(
        st.builds(MessageAttribute, st.sampled_from(["String", "String.x"]), TEXTS),
        st.builds(MessageAttribute, st.just("Number"), st.integers().map(str)),
        st.builds(MessageAttribute, st.just("Binary.png"), st.binary(min_size=1, max_size=20)),
    ),
    max_size=MAX_ATTRIBUTES,
)


def received(
    properties: dict[str, Any] | None = None, topic: str = "plant/1", publisher: str = "sensor"
) -> ReceivedMessage:
    """Return a message as the engine hands it out."""
    text = properties_json(properties) if properties else ""
    return ReceivedMessage("handle", 1, 0, 7, topic, b"21.5", 1, publisher, 1.5e9, text)


def attributes_of(message: ReceivedMessage) -> dict[str, MessageAttribute]:
    """Return all attributes of a received message."""
    properties = read_properties(message)
    return of_received(message, properties, own_properties(properties))


def text_attribute(text: str) -> MessageAttribute:
    """Return an attribute of type String."""
    return MessageAttribute("String", text)


@given(attributes=ATTRIBUTES)
def test_attributes_come_back_as_they_were_sent(attributes: dict[str, MessageAttribute]) -> None:
    """From the request through the properties of the message to the receiver."""
    raw = {name: attribute.as_json() for name, attribute in attributes.items()}
    read = read_attributes(raw)
    assert read == attributes
    pairs = [*to_user_properties(read), (MESSAGE_ID_PROPERTY, "id")]
    assert attributes_of(received({"user_property": pairs})) == attributes


@given(attributes=ATTRIBUTES)
def test_the_digest_is_that_of_moto(attributes: dict[str, MessageAttribute]) -> None:
    """SDKs check it."""
    other = MotosMessage("id", "body")
    other.message_attributes = {
        name: {
            "DataType": attribute.data_type,
            ("BinaryValue" if isinstance(attribute.value, bytes) else "StringValue"): (
                attribute.value
            ),
        }
        for name, attribute in attributes.items()
    }
    assert md5_of_attributes(attributes) == other.attribute_md5


def test_the_digest_of_a_body() -> None:
    """The digest is that of the UTF-8 bytes."""
    assert md5_of_text("This is a test message") == "fafb00f5732ab283681e124bf8747ed1"


@pytest.mark.parametrize(
    "name", ["", "a b", ".a", "a.", "a..b", "AWS.a", "amazon.a", "ä", "a" * 257, "penstock-key"]
)
def test_names_that_are_not_allowed(name: str) -> None:
    """The error says what is."""
    with pytest.raises(SqsError, match="A-Z, a-z, 0-9") as refused:
        read_attributes({name: {"DataType": "String", "StringValue": "a"}})
    assert refused.value.fault == INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(
    "raw",
    [
        None,
        {},
        {"DataType": ""},
        {"DataType": "Float", "StringValue": "1"},
        {"DataType": "String"},
        {"DataType": "String", "StringValue": ""},
        {"DataType": "String", "StringValue": 1},
        {"DataType": "String", "BinaryValue": "YQ=="},
        {"DataType": "Number", "StringValue": "one"},
        {"DataType": "Number", "StringValue": "nan"},
        {"DataType": "Binary", "BinaryValue": "no base64!"},
        {"DataType": "String", "StringValue": "a" * (MAX_TEXT_BYTES + 1)},
        {"DataType": "String." + "a" * 256, "StringValue": "a"},
    ],
)
def test_values_that_are_not_allowed(raw: Any) -> None:
    """The error names the attribute."""
    with pytest.raises(SqsError, match="'level'") as refused:
        read_attributes({"level": raw})
    assert refused.value.fault == INVALID_PARAMETER_VALUE


def test_characters_that_xml_does_not_allow_are_refused() -> None:
    """As in a body."""
    with pytest.raises(SqsError, match="'level'") as refused:
        read_attributes({"level": {"DataType": "String", "StringValue": "a\x00"}})
    assert refused.value.fault == INVALID_MESSAGE_CONTENTS


def test_there_are_at_most_ten() -> None:
    """And they are an object."""
    one = {"DataType": "String", "StringValue": "a"}
    assert len(read_attributes({str(n): one for n in range(MAX_ATTRIBUTES)})) == MAX_ATTRIBUTES
    for raw in ({str(n): one for n in range(MAX_ATTRIBUTES + 1)}, [one]):
        with pytest.raises(SqsError) as refused:
            read_attributes(raw)
        assert refused.value.fault == INVALID_PARAMETER_VALUE


def test_a_message_of_mqtt_has_its_topic_and_properties() -> None:
    """Those that say nothing are left out."""
    message = received(
        {
            "content_type": "text/plain",
            "response_topic": "answers",
            "correlation_data": b"\x00\x01",
            "payload_format_indicator": 1,
            "message_expiry_interval": 60,
            "user_property": [("unit", "C"), ("penstock-key", "k")],
        }
    )
    assert attributes_of(message) == {
        "topic": text_attribute("plant/1"),
        "qos": MessageAttribute("Number", "1"),
        "publisher": text_attribute("sensor"),
        "content_type": text_attribute("text/plain"),
        "response_topic": text_attribute("answers"),
        "payload_format_indicator": MessageAttribute("Number", "1"),
        "message_expiry_interval": MessageAttribute("Number", "60"),
        "correlation_data": MessageAttribute("Binary", b"\x00\x01"),
        "unit": text_attribute("C"),
    }
    assert set(attributes_of(received(publisher=""))) == {"topic", "qos"}


def test_user_properties_that_fit_no_attribute_are_kept_together() -> None:
    """Names that repeat, are taken or are no names, and empty values, which SQS does not know."""
    pairs = [
        ["a", "1"],
        ["a", "2"],
        ["topic", "x"],
        ["b c", "3"],
        ["aws.x", "4"],
        ["empty", ""],
        ["body_encoding", "none"],
    ]
    found = attributes_of(received({"user_property": [*pairs, ["good", "5"]]}))
    assert json.loads(str(found["user_properties"].value)) == pairs
    assert found["topic"] == text_attribute("plant/1")
    assert found["good"] == text_attribute("5")


def test_text_that_xml_does_not_allow_is_binary() -> None:
    """Nothing of a topic is lost."""
    found = attributes_of(received(topic="a\x01"))
    assert found["topic"] == MessageAttribute("Binary", b"a\x01")
    assert found["topic"].as_json()["BinaryValue"] == base64.b64encode(b"a\x01").decode()


@pytest.mark.parametrize("types", ["{", "[1]", '{"a": 5}', '{"a": "Binary"}', "[" * 9999])
def test_types_that_somebody_else_wrote_do_no_harm(types: str) -> None:
    """A publisher over MQTT may send properties of any name."""
    pairs = [("a", "abc"), (MESSAGE_ID_PROPERTY, "x"), ("penstock-sqs-types", types)]
    assert attributes_of(received({"user_property": pairs})) == {"a": text_attribute("abc")}


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ([], set()),
        (["All"], {"a", "ab", "b.c"}),
        ([".*"], {"a", "ab", "b.c"}),
        (["a"], {"a"}),
        (["a.*"], {"a", "ab"}),
        (["b.*", "ab", "x"], {"ab", "b.c"}),
    ],
)
def test_receivers_get_the_attributes_that_they_name(wanted: list[str], names: set[str]) -> None:
    """All, by name, or by the beginning of the name."""
    found = {name: text_attribute("1") for name in ("a", "ab", "b.c")}
    assert set(select(found, wanted)) == names
