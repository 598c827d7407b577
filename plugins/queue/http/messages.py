"""Bodies with new messages are read: JSON, the batch format and Arrow.

Each reader is a work for `penstock.plugins.web.cooperative_work.Slicer`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import Message
from penstock.broker.mqtt.topics import validate_topic
from penstock.plugins.queue.access import Caller
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.http.requests import MAX_SECONDS, no_json, object_of, seconds, text_of
from penstock.plugins.queue.strategies.message_key import KEY_PROPERTY
from penstock.plugins.queue.wire.frames import (
    BATCH_HEADER,
    BATCH_MAGIC,
    KIND_RECORDS,
    PUBLISHED_AT_PROPERTY,
    read_batch,
)
from penstock.plugins.web.json_text import JsonTextError, read_json
from penstock.plugins.web.service import RequestError, integer, show

MAX_MESSAGES: Final = 10_000
"""The most messages of one request."""

MAX_FRAME_MESSAGES: Final = 1_024
"""The most messages of one frame of the batch format, which is read in one step."""

BASE64_CHARACTERS: Final = 256 * 1024
"""How many characters of a payload one step decodes; a multiple of 4, so that the bytes can be
joined."""

OWN_PROPERTIES: Final = "penstock-"
"""The prefix of user properties that only the queue itself sets."""

_OF_PUBLISHERS: Final = (KEY_PROPERTY, PUBLISHED_AT_PROPERTY)
"""The user properties with that prefix that publishers may set."""

MAX_TEXT_BYTES: Final = 65_535
MAX_IDENTIFIER_CHARACTERS: Final = 128
_MAX_INTERVAL: Final = 2**32 - 1

MESSAGE_KEYS: Final = frozenset(
    {
        "deduplication_id",
        "delay_seconds",
        "key",
        "payload",
        "properties",
        "publisher",
        "qos",
        "text",
        "topic",
    }
)
PROPERTY_KEYS: Final = frozenset(
    {
        "content_type",
        "correlation_data",
        "message_expiry_interval",
        "payload_format_indicator",
        "response_topic",
        "user_property",
    }
)

Reading: TypeAlias = Generator[None, None, list[NewMessage]]


class Sender(NamedTuple):
    """Who sends messages, and when.

    Attributes:
        now: monotonic seconds, as the messages' arrival.
    """

    caller: Caller
    now: float

    def publisher(self, asked: str, path: str) -> str:
        """Return the publisher of a message.

        Raises:
            RequestError: the request names another one than its caller.
        """
        name = self.caller.name
        if not name or asked in ("", name):
            return name or asked
        raise RequestError(f"{path}publisher: read {show(asked)}; allowed: {name}, or none", 403)


def read_rows(data: bytearray, sender: Sender) -> Reading:
    """Read the messages of a JSON body: one, or a list under `messages`.

    Raises:
        RequestError: something in it is not valid.
    """
    try:
        body = yield from read_json(data)
    except JsonTextError as error:
        raise no_json(error) from error
    object_of(body, "body", MESSAGE_KEYS | {"messages"})
    if "messages" not in body:
        return [(yield from _message(body, "", sender))]
    object_of(body, "body", frozenset({"messages"}))
    rows = rows_of(body)
    messages: list[NewMessage] = []
    for index, row in enumerate(rows):
        messages.append((yield from _message(row, f"messages[{index}].", sender)))
        yield
    return messages


def rows_of(body: Mapping[str, Any]) -> list[Any]:
    """Return the list under `messages`.

    Raises:
        RequestError: there is no list, or it has none or too many.
    """
    rows = body.get("messages")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_MESSAGES:
        read = f"{len(rows)} messages" if isinstance(rows, list) else show(rows)
        raise RequestError(f"messages: read {read}; allowed: a list of 1 to {MAX_MESSAGES}")
    return rows


def _message(row: Any, path: str, sender: Sender) -> Generator[None, None, NewMessage]:
    return read_row(object_of(row, path.removesuffix(".") or "body", MESSAGE_KEYS), path, sender)


def read_row(
    row: Mapping[str, Any], path: str, sender: Sender
) -> Generator[None, None, NewMessage]:
    """Read a message of a JSON body, whose keys the caller has checked.

    Raises:
        RequestError: a part is not valid.
    """
    properties = row.get("properties", {})
    if not isinstance(properties, dict):
        raise RequestError(f"{path}properties: read {show(properties)}; allowed: a JSON object")
    delay = row.get("delay_seconds")
    return new_message(
        sender,
        path,
        topic=text_of(row, "topic", path),
        payload=(yield from _payload(row, path)),
        properties=properties,
        publisher=text_of(row, "publisher", path, ""),
        key=text_of(row, "key", path) if "key" in row else None,
        qos=row.get("qos", 1),
        delay_seconds=(
            None if delay is None else seconds(f"{path}delay_seconds", delay, MAX_SECONDS)
        ),
        deduplication_id=text_of(row, "deduplication_id", path, ""),
    )


def _payload(row: Mapping[str, Any], path: str) -> Generator[None, None, bytes]:
    if ("payload" in row) == ("text" in row):
        raise RequestError(
            f"{path}payload: read {'payload and text' if 'text' in row else 'neither'}; allowed: "
            "payload (base64) or text"
        )
    if "text" in row:
        return text_of(row, "text", path).encode()
    text = text_of(row, "payload", path)
    if len(text) <= BASE64_CHARACTERS:
        return _from_base64(text, f"{path}payload")
    payload = bytearray()
    last = len(text) - BASE64_CHARACTERS
    for start in range(0, len(text), BASE64_CHARACTERS):
        some = text[start : start + BASE64_CHARACTERS]
        if start < last and some.endswith("="):
            raise RequestError(f"{path}payload: read = at {start + len(some)}; allowed: base64")
        payload += _from_base64(some, f"{path}payload")
        yield
    return bytes(payload)


def _from_base64(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{path}: read {show(text)}; allowed: base64 ({error})") from error


def read_frames(data: bytearray, sender: Sender) -> Reading:
    """Read the messages of a row of frames of the batch format, of kind records.

    Offsets and times in it mean nothing here.

    Raises:
        RequestError: it is no row of whole frames, or something in them is not valid.
    """
    messages: list[NewMessage] = []
    at = 0
    while at < len(data):
        end = _end_of_frame(data, at)
        try:
            batch = read_batch(bytes(data[at:end]))
        except ValueError as error:
            raise RequestError(f"body: {error}; allowed: whole frames, from byte {at}") from error
        columns = (batch.topic, batch.payload, batch.qos, batch.publisher, batch.properties)
        for topic, payload, qos, publisher, properties in zip(*columns, strict=True):
            path = f"messages[{len(messages)}]."
            messages.append(
                new_message(
                    sender,
                    path,
                    topic=topic,
                    payload=payload,
                    properties=_parsed(properties, path),
                    publisher=publisher,
                    qos=qos,
                )
            )
            yield
        if len(messages) > MAX_MESSAGES:
            raise RequestError(f"body: read {len(messages)} messages; allowed: {MAX_MESSAGES}")
        at = end
    if not messages:
        raise RequestError(f"body: read no messages; allowed: 1 to {MAX_MESSAGES}")
    return messages


def _end_of_frame(data: bytearray, at: int) -> int:
    if at + BATCH_HEADER.size > len(data):
        raise RequestError(f"body: read half a header at byte {at}; allowed: whole frames")
    magic, kind, left_out, count, n_bytes = BATCH_HEADER.unpack_from(data, at)
    if magic != BATCH_MAGIC or kind != KIND_RECORDS or left_out:
        raise RequestError(f"body: read no frame of records at byte {at}; allowed: such frames")
    if not 1 <= count <= MAX_FRAME_MESSAGES:
        raise RequestError(
            f"body: read {count} messages in the frame at byte {at}; allowed: 1 to "
            f"{MAX_FRAME_MESSAGES}"
        )
    if not BATCH_HEADER.size < n_bytes <= len(data) - at:
        raise RequestError(
            f"body: read {n_bytes} bytes as the length of the frame at byte {at}; allowed: at most "
            f"{len(data) - at}"
        )
    return at + int(n_bytes)


def _parsed(properties: str, path: str) -> Mapping[str, Any]:
    """Return the properties of a row that has them as JSON text; "" for none."""
    if not properties:
        return {}
    try:
        found = json.loads(properties, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError(f"{path}properties: read {show(properties)}; allowed: a JSON object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def read_arrow(data: bytearray, sender: Sender) -> Reading:
    """Read the messages of an Arrow IPC stream; see `penstock.plugins.queue.http.arrow`.

    Raises:
        RequestError: it is no such stream, or something in it is not valid.
    """
    messages: list[NewMessage] = []
    rows = arrow.read_rows(data, MAX_MESSAGES)
    for row in rows:
        if row is not None:
            path = f"messages[{len(messages)}]."
            delay = row.get("delay_seconds")
            messages.append(
                new_message(
                    sender,
                    path,
                    topic=text_of(row, "topic", path),
                    payload=row["payload"],
                    properties=_parsed(row.get("properties") or "", path),
                    publisher=row.get("publisher") or "",
                    key=row.get("key"),
                    qos=1 if row.get("qos") is None else row["qos"],
                    delay_seconds=(
                        None
                        if delay is None
                        else seconds(f"{path}delay_seconds", delay, MAX_SECONDS)
                    ),
                    deduplication_id=row.get("deduplication_id") or "",
                )
            )
        yield
    if not messages:
        raise RequestError(f"body: read no messages; allowed: 1 to {MAX_MESSAGES}")
    return messages


def new_message(
    sender: Sender,
    path: str,
    *,
    topic: str,
    payload: bytes,
    properties: Mapping[str, Any],
    publisher: str = "",
    key: str | None = None,
    qos: int = 1,
    delay_seconds: float | None = None,
    deduplication_id: str = "",
) -> NewMessage:
    """Return a message whose every part is valid.

    Args:
        sender: the sender of the request.
        path: the place of the message in the body, for errors, with a dot at its end.
        topic: Topic Name.
        payload: payload bytes.
        properties: MQTT 5 properties as JSON has them.
        publisher: the publisher as the request names it; "" for none.
        key: its key; None for what the queue's `key` says.
        qos: it was published with.
        delay_seconds: the time until it can be received; None for the queue's.
        deduplication_id: "" for none.

    Raises:
        RequestError: a part is not valid.
    """
    try:
        validate_topic(topic)
    except MalformedPacketError as error:
        raise RequestError(f"{path}topic: {error}") from error
    checked = _properties(properties, f"{path}properties") if properties else {}
    if key is not None:
        _check_length(key, f"{path}key")
        pairs = [pair for pair in checked.get("user_property", ()) if pair[0] != KEY_PROPERTY]
        checked["user_property"] = [*pairs, (KEY_PROPERTY, key)]
    if len(deduplication_id) > MAX_IDENTIFIER_CHARACTERS:
        raise RequestError(
            f"{path}deduplication_id: read {len(deduplication_id)} characters; allowed: at most "
            f"{MAX_IDENTIFIER_CHARACTERS}"
        )
    interval = checked.get("message_expiry_interval")
    message = Message(
        topic,
        payload,
        qos=integer(f"{path}qos", qos, 0, 2),
        arrived_at=sender.now,
        expires_at=None if interval is None else sender.now + interval,
        properties=checked,
        publisher=sender.publisher(publisher, path),
    )
    return NewMessage(message, deduplication_id.encode(), delay_seconds)


def _properties(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return properties as a PUBLISH may have them: consumers over MQTT get them, too."""
    object_of(given, path, PROPERTY_KEYS)
    found: dict[str, Any] = {}
    for name, value in given.items():
        place = f"{path}.{name}"
        if name == "payload_format_indicator":
            found[name] = integer(place, value, 0, 1)
        elif name == "message_expiry_interval":
            found[name] = integer(place, value, 0, _MAX_INTERVAL)
        elif name == "correlation_data":
            found[name] = _from_base64(text_of(given, name, f"{path}."), place)
            if len(found[name]) > MAX_TEXT_BYTES:
                raise RequestError(
                    f"{place}: read {len(found[name])} bytes; allowed: at most {MAX_TEXT_BYTES}"
                )
        elif name == "user_property":
            found[name] = _user_properties(value, place)
        else:
            found[name] = _check_length(text_of(given, name, f"{path}."), place)
            if name == "response_topic":
                try:
                    validate_topic(value)
                except MalformedPacketError as error:
                    raise RequestError(f"{place}: {error}") from error
    return found


def _user_properties(value: Any, path: str) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise RequestError(f"{path}: read {show(value)}; allowed: a list of [name, value]")
    pairs: list[tuple[str, str]] = []
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2:
            raise RequestError(f"{path}[{index}]: read {show(pair)}; allowed: [name, value]")
        row = {"0": pair[0], "1": pair[1]}
        name, text = (text_of(row, key, f"{path}[{index}].") for key in row)
        if name.startswith(OWN_PROPERTIES) and name not in _OF_PUBLISHERS:
            raise RequestError(
                f"{path}[{index}].0: read {show(name)}; allowed: no name that begins with "
                f"{OWN_PROPERTIES}, except {' and '.join(_OF_PUBLISHERS)}"
            )
        pairs.append(
            (_check_length(name, f"{path}[{index}].0"), _check_length(text, f"{path}[{index}].1"))
        )
    return pairs


def _check_length(text: str, path: str) -> str:
    if len(text) > MAX_TEXT_BYTES // 4 and len(text.encode()) > MAX_TEXT_BYTES:
        raise RequestError(
            f"{path}: read {len(text.encode())} bytes; allowed: at most {MAX_TEXT_BYTES}"
        )
    if "\0" in text:
        raise RequestError(f"{path}: read a null character; allowed: other characters")
    return text
