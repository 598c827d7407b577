from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from penstock.plugins.queue.access import ANYBODY, Caller
from penstock.plugins.queue.batch_format import write_batch
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.http.messages import Sender, read_frames, read_rows
from penstock.plugins.queue.wire.frames import BATCH_HEADER, Batch
from penstock.plugins.web.service import RequestError
from tests.helpers.works import result_of

SENDER = Sender(ANYBODY, 5.0)
NAMED = Sender(Caller("importer", "", {}), 5.0)


def rows(body: Any, sender: Sender = SENDER) -> list[NewMessage]:
    """Read a JSON body."""
    return result_of(read_rows(bytearray(json.dumps(body).encode()), sender))


def frames(body: bytes, sender: Sender = SENDER) -> list[NewMessage]:
    """Read a body of the batch format."""
    return result_of(read_frames(bytearray(body), sender))


def batch(n_messages: int = 1, **columns: Any) -> Batch:
    """Return a batch of messages that are alike."""
    given: dict[str, Any] = {
        "offset": 0,
        "topic": "a",
        "payload": b"x",
        "qos": 1,
        "publisher": "",
        "enqueued_at": 0.0,
        "properties": "",
    } | columns
    return Batch(**{name: [value] * n_messages for name, value in given.items()})


def test_one_message_needs_no_list() -> None:
    """The body is that message."""
    (one,) = rows({"topic": "a/b", "text": "ü"})
    message = one.message
    assert (message.topic, message.payload, message.qos) == ("a/b", "ü".encode(), 1)
    assert (message.arrived_at, one.deduplication_id, one.delay_seconds) == (5.0, b"", None)


def test_messages_carry_all_that_is_given() -> None:
    """Binary values come in base64; a key becomes a user property."""
    row = {
        "topic": "a",
        "payload": "AP8=",
        "publisher": "p",
        "qos": 2,
        "delay_seconds": 2,
        "deduplication_id": "ü",
        "key": "k",
        "properties": {
            "content_type": "x",
            "correlation_data": "AP8=",
            "message_expiry_interval": 60,
            "payload_format_indicator": 1,
            "response_topic": "b",
            "user_property": [["penstock-key", "other"], ["n", "v"]],
        },
    }
    (one,) = rows({"messages": [row]})
    message = one.message
    assert (message.payload, message.publisher, message.expires_at) == (b"\x00\xff", "p", 65.0)
    assert message.qos == 2
    assert (one.deduplication_id, one.delay_seconds) == ("ü".encode(), 2.0)
    assert dict(message.properties) == {
        "content_type": "x",
        "correlation_data": b"\x00\xff",
        "message_expiry_interval": 60,
        "payload_format_indicator": 1,
        "response_topic": "b",
        "user_property": [("n", "v"), ("penstock-key", "k")],
    }


@pytest.mark.parametrize("n_bytes", [0, 1, 2, 196_607, 196_608, 196_609, 1_000_000])
def test_payloads_of_any_size_are_decoded(n_bytes: int) -> None:
    """Also where they are decoded in pieces."""
    payload = bytes(n % 251 for n in range(n_bytes))
    (one,) = rows({"topic": "a", "payload": base64.b64encode(payload).decode()})
    assert one.message.payload == payload


GOOD = {"topic": "a", "text": ""}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "body: read []; allowed: a JSON object"),
        ({}, "topic: read nothing; allowed: text"),
        ({"topic": 5, "text": ""}, "topic: read 5; allowed: text"),
        ({"topic": "a/#", "text": ""}, "topic: "),
        ({"topic": "", "text": ""}, "topic: "),
        ({"topic": "\ud800", "text": ""}, "topic: read half a surrogate"),
        ({"topic": "a"}, "payload: read neither; allowed: payload (base64) or text"),
        ({"topic": "a", "text": "", "payload": ""}, "payload: read payload and text"),
        ({"topic": "a", "payload": "?"}, 'payload: read "?"; allowed: base64'),
        ({"topic": "a", "payload": "ü"}, "allowed: base64"),
        ({"topic": "a", "payload": "A" * 262_143 + "=" + "AAAA" * 9}, "payload: read = at 262144"),
        ({"topic": "a", "payload": "AAAA" * 70_000 + "?"}, "allowed: base64"),
        ({"topic": "a", "text": "\udc00"}, "text: read half a surrogate"),
        *(
            ({**GOOD, "qos": qos}, f"qos: read {told}; allowed: 0 to 2")
            for qos, told in ((3, 3), (-1, -1), (1.0, 1.0), (True, "true"), ("1", '"1"'))
        ),
        ({**GOOD, "qos": None}, "qos: read nothing; allowed: 0 to 2"),
        ({**GOOD, "properties": []}, "properties: read []; allowed: a JSON object"),
        ({**GOOD, "properties": {"x": 1}}, 'properties: read unknown key "x"; allowed: content'),
        ({**GOOD, "properties": {"content_type": 1}}, "properties.content_type: read 1"),
        ({**GOOD, "properties": {"content_type": "a\0"}}, "read a null character"),
        ({**GOOD, "properties": {"content_type": "ü" * 40_000}}, "read 80000 bytes"),
        ({**GOOD, "properties": {"correlation_data": "?"}}, "correlation_data: read"),
        ({**GOOD, "properties": {"correlation_data": "AAAA" * 30_000}}, "read 90000 bytes"),
        ({**GOOD, "properties": {"message_expiry_interval": -1}}, "allowed: 0 to 4294967295"),
        ({**GOOD, "properties": {"payload_format_indicator": 2}}, "allowed: 0 to 1"),
        ({**GOOD, "properties": {"response_topic": "#"}}, "response_topic: "),
        ({**GOOD, "properties": {"user_property": {}}}, "allowed: a list of [name, value]"),
        ({**GOOD, "properties": {"user_property": [["a"]]}}, "user_property[0]: read"),
        ({**GOOD, "properties": {"user_property": [["a", 1]]}}, "user_property[0].1: read 1"),
        (
            {**GOOD, "properties": {"user_property": [["penstock-dead-queue", "x"]]}},
            "user_property[0].0: read",
        ),
        ({**GOOD, "publisher": None}, "publisher: read nothing; allowed: text"),
        ({**GOOD, "key": 1}, "key: read 1; allowed: text"),
        ({**GOOD, "delay_seconds": -1}, "delay_seconds: read -1; allowed: 0 to"),
        ({**GOOD, "deduplication_id": "x" * 129}, "deduplication_id: read 129 characters"),
        ({**GOOD, "q": 1}, 'body: read unknown key "q"; allowed: deduplication_id,'),
        ({"messages": []}, "messages: read 0 messages; allowed: a list of 1 to 10000"),
        ({"messages": [GOOD] * 10_001}, "messages: read 10001 messages"),
        ({"messages": "no"}, 'messages: read "no"'),
        ({"messages": [GOOD, 7]}, "messages[1]: read 7; allowed: a JSON object"),
        ({"messages": [GOOD, {"topic": "+", "text": ""}]}, "messages[1].topic: "),
        ({"messages": [GOOD], "topic": "a"}, 'unknown key "topic"; allowed: messages'),
    ],
)
def test_wrong_messages_are_told(body: Any, told: str) -> None:
    """A mistake names its place, what was read and what is allowed."""
    with pytest.raises(RequestError) as raised:
        rows(body)
    assert told in str(raised.value)
    assert raised.value.status == 400


def test_a_token_is_the_publisher_of_what_it_sends() -> None:
    """It may name itself, and nobody else."""
    assert rows(GOOD, NAMED)[0].message.publisher == "importer"
    assert rows({**GOOD, "publisher": "importer"}, NAMED)[0].message.publisher == "importer"
    assert frames(write_batch(batch()), NAMED)[0].message.publisher == "importer"
    named = {**GOOD, "publisher": "meter-7"}
    told = 'publisher: read "meter-7"; allowed: importer'
    with pytest.raises(RequestError, match=told):
        rows({"messages": [GOOD, named]}, NAMED)
    with pytest.raises(RequestError, match=told):
        frames(write_batch(batch(publisher="meter-7")), NAMED)


def test_frames_carry_whole_messages() -> None:
    """Those of several frames, in their order; offsets and times mean nothing."""
    first = batch(2, payload=b"\x00", qos=0, properties='{"content_type": "x"}')
    found = frames(write_batch(first) + write_batch(batch(topic="b")))
    shown = [(one.message.topic, one.message.payload, one.message.qos) for one in found]
    assert shown == [("a", b"\x00", 0), ("a", b"\x00", 0), ("b", b"x", 1)]
    assert dict(found[0].message.properties) == {"content_type": "x"}
    assert found[0].message.arrived_at == 5.0


FRAME = write_batch(batch(3))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "body: read no messages"),
        (FRAME[:10], "body: read half a header at byte 0"),
        (FRAME[:-1], "bytes as the length of the frame at byte 0; allowed: at most"),
        (FRAME + b"PQB1", f"body: read half a header at byte {len(FRAME)}"),
        (b"X" + FRAME[1:], "body: read no frame of records at byte 0"),
        (FRAME[:4] + b"\1" + FRAME[5:], "body: read no frame of records at byte 0"),
        (FRAME[:8] + struct.pack("<I", 2) + FRAME[12:], "frame at byte 0"),
        (write_batch(batch(1025)), "body: read 1025 messages in the frame at byte 0"),
        (write_batch(batch(1024)) * 10, "body: read 10240 messages; allowed: 10000"),
        (write_batch(batch(topic="+")), "messages[0].topic: "),
        (write_batch(batch(qos=3)), "messages[0].qos: read 3; allowed: 0 to 2"),
        (write_batch(batch(properties="[]")), 'messages[0].properties: read "[]"'),
        (write_batch(batch(properties='{"x": NaN}')), "messages[0].properties: read"),
        (write_batch(batch(properties='{"x": 1}')), 'messages[0].properties: read unknown key "x"'),
    ],
)
def test_wrong_frames_are_told(body: bytes, told: str) -> None:
    """The error names the place."""
    with pytest.raises(RequestError) as raised:
        frames(body)
    assert told in str(raised.value)


def test_a_frame_cut_anywhere_is_refused() -> None:
    """Whatever is missing, and wherever a byte is another one, nothing else is raised."""
    for at in range(len(FRAME)):
        with pytest.raises(RequestError):
            frames(FRAME[:at])
        changed = FRAME[:at] + bytes([FRAME[at] ^ 0x81]) + FRAME[at + 1 :]
        try:
            frames(changed)
        except RequestError:
            continue


def test_a_frame_with_more_distinct_texts_than_messages_is_refused() -> None:
    """It would take long to read, and no writer makes it."""
    head = BATCH_HEADER.pack(b"PQB1", 0, 0, 1, BATCH_HEADER.size + 17 + 4 + 4 * 200_000)
    body = head + bytes(17) + struct.pack("<I", 200_000) + bytes(4 * 200_000)
    with pytest.raises(RequestError, match="200000 distinct texts"):
        frames(body)
