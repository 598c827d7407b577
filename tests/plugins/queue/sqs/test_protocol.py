from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.sqs import protocol
from penstock.plugins.queue.sqs.errors import (
    SERIALIZATION,
    STORAGE_FULL,
    UNKNOWN_ACTION,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.protocol import (
    MAX_FORM_FIELDS,
    is_xml_text,
    read_query_call,
    write_json_answer,
    write_query_error_header,
    write_xml_answer,
    write_xml_error,
)
from tests.helpers.works import finished, result_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def parsed(document: bytes) -> ET.Element:
    """Return the root of a document of our own."""
    return ET.fromstring(document)  # noqa: S314 (nobody else has written it)


def fault_of(query: str = "", body: bytes = b"") -> Fault:
    """Return why a request of the query protocol is refused."""
    with pytest.raises(SqsError) as refused:
        result_of(read_query_call(query, body))
    return refused.value.fault


@pytest.mark.parametrize(
    ("form", "parameters"),
    [
        ("QueueUrl=http%3A%2F%2Fh%2Fq", {"QueueUrl": "http://h/q"}),
        ("MaxNumberOfMessages=10", {"MaxNumberOfMessages": 10}),
        ("MaxNumberOfMessages=ten", {"MaxNumberOfMessages": "ten"}),
        ("AttributeName.2=B&AttributeName.1=A", {"AttributeNames": ["A", "B"]}),
        ("AttributeName.10=B&AttributeName.9=A", {"AttributeNames": ["A", "B"]}),
        ("AttributeName=All", {"AttributeNames": ["All"]}),
        ("AttributeName=&Attribute=", {"AttributeNames": [], "Attributes": {}}),
        ("Entries=", {"Entries": []}),
        ("TagKey.1=a", {"TagKeys": ["a"]}),
        ("Tag.1.Key=a&Tag.1.Value=b", {"Tags": {"a": "b"}}),
        (
            "Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=30",
            {"Attributes": {"VisibilityTimeout": "30"}},
        ),
        (
            "Attribute.Name=VisibilityTimeout&Attribute.Value=30",
            {"Attributes": {"VisibilityTimeout": "30"}},
        ),
        (
            (
                "MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=Number"
                "&MessageAttribute.1.Value.StringValue=1"
            ),
            {"MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}}},
        ),
        (
            (
                "SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.DelaySeconds=5"
                "&SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n"
                "&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=String"
            ),
            {
                "Entries": [
                    {
                        "Id": "a",
                        "DelaySeconds": 5,
                        "MessageAttributes": {"n": {"DataType": "String"}},
                    }
                ]
            },
        ),
        (
            (
                "DeleteMessageBatchRequestEntry.1.Id=a"
                "&DeleteMessageBatchRequestEntry.1.ReceiptHandle=h"
            ),
            {"Entries": [{"Id": "a", "ReceiptHandle": "h"}]},
        ),
        ("MessageBody=", {"MessageBody": ""}),
    ],
)
def test_forms_are_read_by_the_names_of_json(form: str, parameters: dict[str, Any]) -> None:
    """In the body, or in the query."""
    assert result_of(read_query_call("", f"Action=A&{form}".encode())) == ("A", parameters)
    assert result_of(read_query_call(f"Action=A&{form}", b"")) == ("A", parameters)


@pytest.mark.parametrize(
    "form",
    [
        "AttributeName.x=A",
        "Attribute.1.Name=a",
        "Attribute.1.Value=a",
        "Attribute.1=a",
        "Tag.1.Key.2=a&Tag.1.Value=b",
        "a=1&a.b=2",
        "a.b=1&a=2",
        "a.b.c.d.e.f.g.h=1",
        "MessageBody=%FF",
        "&".join(f"a{n}=1" for n in range(MAX_FORM_FIELDS + 1)),
    ],
)
def test_forms_that_are_no_request_are_refused(form: str) -> None:
    """With an error that SDKs understand."""
    assert fault_of(body=f"Action=A&{form}".encode()) == SERIALIZATION


@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), max_size=3), n_characters=st.integers(3, 9))
def test_a_form_is_read_in_steps_as_python_reads_it(
    pairs: list[tuple[str, str]], n_characters: int
) -> None:
    """No escape is cut; a megabyte of escapes would take 0.1 s in one step."""
    form = urlencode(pairs)
    with patch.object(protocol, "_FORM_CHARACTERS", n_characters):
        read, n_steps = finished(protocol._read_form(form))
    assert read == parse_qsl(form, keep_blank_values=True)
    assert n_steps >= len(form.replace("&", "").replace("=", "")) // n_characters // 2


def test_a_large_answer_is_written_in_steps() -> None:
    """Each message is one."""
    result = {"Messages": [{"Body": "a"}, {"Body": "b"}], "MessageId": "m"}
    body, n_steps = finished(write_json_answer(result))
    assert (json.loads(body), n_steps) == (result, 2)
    assert finished(write_xml_answer("ReceiveMessage", result, "id"))[1] == 3


def test_a_form_without_an_action_is_refused() -> None:
    """So is anything else that comes to the address, such as a browser."""
    assert fault_of() == UNKNOWN_ACTION
    assert fault_of(body=b"Action.1=A") == UNKNOWN_ACTION


@given(body=st.binary(max_size=60))
def test_no_form_gets_anything_but_an_error_of_the_protocol(body: bytes) -> None:
    """Whatever bytes come."""
    with suppress(SqsError):
        result_of(read_query_call("", b"Action=A&" + body))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_xml_carries_every_allowed_text(text: str) -> None:
    """Also a carriage return, which XML would read as a line feed."""
    answer = result_of(write_xml_answer("ReceiveMessage", {"Messages": [{"Body": text}]}, "id"))
    found = parsed(answer).findtext(f".//{SPACE}Body")
    if is_xml_text(text):
        assert found == text
    else:
        assert found != text
        assert len(found or "") == len(text)


@pytest.mark.parametrize("text", ["", "a\t\n\r", "\ud7ff\ue000\ufffd\U00010000\U0010ffff"])
def test_what_xml_allows(text: str) -> None:
    """The ends of the ranges."""
    assert is_xml_text(text)


@pytest.mark.parametrize("code", [0, 0x0B, 0x1F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF])
def test_what_xml_does_not_allow(code: int) -> None:
    """The characters beside them."""
    assert not is_xml_text(f"a{chr(code)}")


def test_an_error_of_the_server_says_so() -> None:
    """SDKs repeat such a request."""
    error = SqsError(STORAGE_FULL, "full")
    assert write_query_error_header(error) == "ServiceUnavailable;Receiver"
    assert b"<Type>Receiver</Type>" in write_xml_error(error, "id")
