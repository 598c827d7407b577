"""HTTP requests to checked values; every error says what was read and what is allowed."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from penstock.broker.errors import MalformedPacketError
from penstock.broker.message import Message
from penstock.broker.mqtt.topics import validate_topic
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.service import RequestError, integer, show

MAX_OFFSET = 2**63 - 1


async def read_object(
    request: web.Request, bodies: Bodies, keys: frozenset[str]
) -> Mapping[str, Any]:
    """Return the JSON object in a request's body.

    Args:
        request: with the body.
        bodies: those that are being received.
        keys: the allowed keys.

    Raises:
        RequestError: another content type, a compressed body, no JSON, no object, or an unknown
            key.
    """
    # A page in a browser may send other types to this machine without a preflight request.
    if request.content_type != "application/json":
        read = request.headers.get("Content-Type", "none")
        raise RequestError(f"Content-Type: read {show(read)}; allowed: application/json", 415)
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(f"Content-Encoding: read {show(encoding)}; allowed: none", 415)
    async with bodies.read(request) as data:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"body: read no JSON ({error}); allowed: a JSON object") from error
    return _object(body, "body", keys)


def read_messages(body: Mapping[str, Any], now: float, max_messages: int) -> list[Message]:
    """Return the messages of an enqueue: one, or a list under `messages`.

    Args:
        body: with `messages`, or with the keys of one message.
        now: monotonic seconds, as the messages' arrival.
        max_messages: how many are allowed.

    Raises:
        RequestError: something in it is not valid.
    """
    rows = body.get("messages", [body])
    if not isinstance(rows, list) or not 1 <= len(rows) <= max_messages:
        read = f"{len(rows)} messages" if isinstance(rows, list) else show(rows)
        raise RequestError(f"messages: read {read}; allowed: a list of 1 to {max_messages}")
    is_one = "messages" not in body
    if not is_one:
        _object(body, "body", frozenset({"messages"}))
    return [
        _message(row, "" if is_one else f"messages[{index}].", now)
        for index, row in enumerate(rows)
    ]


MESSAGE_KEYS = frozenset({"topic", "payload", "text", "publisher", "properties"})


def _message(row: Any, path: str, now: float) -> Message:
    row = _object(row, path.removesuffix(".") or "body", MESSAGE_KEYS)
    topic = _text(row, "topic", path, None)
    try:
        validate_topic(topic)
    except MalformedPacketError as error:
        raise RequestError(f"{path}topic: {error}") from error
    properties = row.get("properties", {})
    if not isinstance(properties, dict):
        raise RequestError(f"{path}properties: read {show(properties)}; allowed: a JSON object")
    return Message(
        topic,
        _payload(row, path),
        qos=1,
        arrived_at=now,
        properties=properties,
        publisher=_text(row, "publisher", path, ""),
    )


def _payload(row: Mapping[str, Any], path: str) -> bytes:
    if ("payload" in row) == ("text" in row):
        raise RequestError(
            f"{path}payload: read {'payload and text' if 'text' in row else 'neither'}; allowed: "
            "payload (base64) or text"
        )
    if "text" in row:
        return _text(row, "text", path, None).encode()
    try:
        return base64.b64decode(_text(row, "payload", path, None), validate=True)
    except (binascii.Error, ValueError) as error:
        read = show(row["payload"])
        raise RequestError(f"{path}payload: read {read}; allowed: base64 ({error})") from error


def _text(row: Mapping[str, Any], key: str, path: str, default: str | None) -> str:
    value = row.get(key, default)
    if not isinstance(value, str):
        raise RequestError(f"{path}{key}: read {show(value)}; allowed: text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{path}{key}: read half a surrogate; allowed: Unicode") from error
    return value


def read_handles(body: Mapping[str, Any], max_handles: int) -> list[str]:
    """Return the receipt handles of a delete.

    Raises:
        RequestError: not a list of as many texts as allowed.
    """
    handles = body.get("receipt_handles")
    is_list = isinstance(handles, list) and len(handles) <= max_handles
    if not isinstance(handles, list) or not is_list:
        read = f"{len(handles)} handles" if isinstance(handles, list) else show(handles)
        raise RequestError(
            f"receipt_handles: read {read}; allowed: a list of at most {max_handles}"
        )
    for handle in handles:
        if not isinstance(handle, str):
            raise RequestError(f"receipt_handles: read {show(handle)}; allowed: texts")
    return handles


def read_offsets(body: Mapping[str, Any]) -> dict[int, int]:
    """Return the offsets of a commit, by number of physical queue.

    Raises:
        RequestError: not an object of numbers to offsets.
    """
    offsets = body.get("offsets")
    if not isinstance(offsets, dict):
        raise RequestError(
            f"offsets: read {show(offsets)}; allowed: an object of physical queue to offset"
        )
    return {
        integer("physical queue", number, 0, MAX_OFFSET, int): integer(
            f"offsets.{number}", offset, 0, MAX_OFFSET
        )
        for number, offset in offsets.items()
    }


def seconds(name: str, value: Any, most: float) -> float:
    """Return a duration from 0 to `most` seconds.

    Raises:
        RequestError: it is not such a duration.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise RequestError(f"{name}: read {show(value)}; allowed: 0 to {most:g} seconds")
    return float(value)


def _object(value: Any, path: str, keys: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{path}: read {show(value)}; allowed: a JSON object")
    unknown = sorted(set(value) - keys)
    if unknown:
        allowed = ", ".join(sorted(keys))
        raise RequestError(f"{path}: read unknown key {show(unknown[0])}; allowed: {allowed}")
    return value
