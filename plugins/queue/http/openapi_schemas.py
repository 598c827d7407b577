"""What the OpenAPI document says of the values in requests and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import cleandoc
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter

from penstock.broker.extensions import SinkCounts
from penstock.plugins.queue.append_buffer import DROP_REASONS
from penstock.plugins.queue.config import GroupConfig, LogicalQueueConfig
from penstock.plugins.queue.http.messages import PROPERTY_KEYS
from penstock.plugins.queue.http.requests import GROUP_KEYS, SPEC_KEYS
from penstock.plugins.queue.strategies.dequeue import DequeueCounts
from penstock.plugins.queue.wire.frames import DEAD_LETTER, RETAIN

Schema: TypeAlias = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
COUNTS: Final[Schema] = {"type": "object", "additionalProperties": COUNT}
BASE64: Final[Schema] = {"type": "string", "contentEncoding": "base64"}
START: Final[Schema] = {
    "description": "The first message, behind the last, or the first that arrived at or after a "
    "time, in seconds since the Unix epoch.",
    "anyOf": [{"enum": ["earliest", "latest"]}, SECONDS],
}

_ATTRIBUTE: Final = re.compile(r"^    (\w+): ((?:.|\n(?:        ))*)", re.MULTILINE)


def object_of(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Return the schema of an object; keys that are not optional are required."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": dict(properties),
    }


def list_of(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def reference(name: str) -> Schema:
    """Return a reference to one of `schemas`."""
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def _settings(cls: Any, keys: Sequence[str]) -> Schema:
    """Return the schema of settings, with the texts of the class that checks them."""
    texts = {
        name: " ".join(text.split()).replace("None", "null")
        for name, text in _ATTRIBUTE.findall(cleandoc(cls.__doc__))
    }
    found = TypeAdapter(cls).json_schema(ref_template="#/components/schemas/{model}")
    properties = {
        key: _without_titles(found["properties"][key]) | {"description": texts[key]}
        for key in sorted(keys)
        if key in found["properties"]
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _without_titles(schema: Any) -> Any:
    """Drop what pydantic adds and nobody needs."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if key not in ("title", "ge")
        }
    return [_without_titles(one) for one in schema] if isinstance(schema, list) else schema


def schemas() -> dict[str, Schema]:
    """Return the schemas that the operations refer to."""
    queue_settings = _settings(LogicalQueueConfig, sorted(SPEC_KEYS))
    queue_settings["properties"] |= {
        "tags": {
            "type": "object",
            "maxProperties": 50,
            "additionalProperties": TEXT,
            "description": "Texts by name, which mean nothing to the server.",
        },
        "groups": {
            "type": "object",
            "additionalProperties": reference("GroupSettings"),
            "description": "Groups by name, which are created where they are missing. A new queue "
            "without them gets a lease group `default`.",
        },
    }
    death = {
        "queue": TEXT,
        "physical_queue": COUNT,
        "group": TEXT,
        "reason": {"enum": ["max_receives", "dead"]},
        "receives": COUNT,
    }
    stored = {
        "offset": COUNT,
        "topic": TEXT,
        "payload": BASE64,
        "qos": {"enum": [0, 1, 2]},
        "publisher": TEXT,
        "enqueued_at": {"type": "number", "description": "Seconds since the Unix epoch."},
        "properties": {
            "type": "object",
            "description": f"MQTT 5 properties, `{DEAD_LETTER}` of a dead letter, and `{RETAIN}` "
            "of a message that was published with the RETAIN flag.",
            "additionalProperties": True,
            "properties": {DEAD_LETTER: object_of(death), RETAIN: {"const": True}},
        },
    }
    new = {
        "topic": TEXT,
        "payload": BASE64,
        "text": TEXT | {"description": "In place of `payload`."},
        "publisher": TEXT | {"description": "With a token: its name, or left out."},
        "properties": reference("Properties"),
        "qos": stored["qos"] | {"default": 1, "description": "As readers are told."},
        "delay_seconds": SECONDS,
        "deduplication_id": TEXT | {"maxLength": 128},
        "key": TEXT,
    }
    row = {name: new[name] for name in ("topic", "payload", "text", "properties")}
    row |= {"qos": stored["qos"], "retain": {"type": "boolean"}}
    outcome = {
        "stored": COUNT,
        "ids": list_of({"type": ["string", "null"]})
        | {
            "description": "PHYSICAL_QUEUE-OFFSET of each message, as its receivers know it; null "
            "where it is not stored, or where it was stored before and its place is not known."
        },
        "duplicates": list_of(COUNT) | {"description": "Indexes of messages stored before."},
        "refused": {
            "type": "object",
            "description": "Reason by index of each message that is not stored: "
            + "; ".join(f"`{reason}`: {why}" for reason, why in DROP_REASONS.items()),
            "additionalProperties": {"enum": [*DROP_REASONS]},
        },
    }
    return {
        "Error": object_of(
            {"error": TEXT, "earliest": COUNT, "incarnation": TEXT, "queue": TEXT, "index": COUNT}
            | outcome,
            optional=["earliest", "incarnation", "queue", "index", *outcome],
        ),
        "GroupSettings": _settings(GroupConfig, GROUP_KEYS),
        "QueueSettings": queue_settings,
        "Properties": _properties(),
        "NewMessage": object_of(new, optional=[name for name in new if name != "topic"])
        | {"oneOf": [{"required": ["payload"]}, {"required": ["text"]}]},
        "Row": object_of(row, optional=[name for name in row if name != "topic"])
        | {"oneOf": [{"required": ["payload"]}, {"required": ["text"]}]},
        "Stored": object_of(outcome),
        "StoredMessage": object_of(stored),
        "ReceivedMessage": object_of(
            {"receipt_handle": TEXT, "receive_count": POSITIVE, "physical_queue": COUNT} | stored
        ),
        "PeekedMessage": object_of({"physical_queue": COUNT} | stored),
        "Position": object_of({"incarnation": TEXT, "offsets": COUNTS}),
        "Plan": object_of(
            {"incarnation": TEXT, "offsets": COUNTS, "earliest": COUNTS, "latest": COUNTS}
        ),
        "GroupFigures": object_of(_group_figures(), optional=["requests"]),
        "Group": object_of(
            {"name": TEXT, "incarnation": TEXT} | _group_figures(), optional=["requests"]
        ),
        "Queue": object_of(_queue_figures()),
    }


def _properties() -> Schema:
    kinds: dict[str, Schema] = dict.fromkeys(PROPERTY_KEYS, TEXT) | {
        "payload_format_indicator": {"enum": [0, 1]},
        "message_expiry_interval": COUNT,
        "correlation_data": BASE64,
        "user_property": list_of(list_of(TEXT) | {"minItems": 2, "maxItems": 2}),
    }
    return {
        "type": "object",
        "description": "MQTT 5 properties.",
        "additionalProperties": False,
        "properties": {name: kinds[name] for name in sorted(kinds)},
    }


def _group_figures() -> dict[str, Schema]:
    counts = {key.name: COUNT for key in fields(DequeueCounts)}
    by_strategy = {"type": "object", "additionalProperties": object_of(counts)}
    return {
        "settings": reference("GroupSettings"),
        "position": COUNTS,
        "waiting": COUNT,
        "leased": COUNT,
        "delayed": COUNT,
        "received": COUNT,
        "settled": COUNTS,
        "idle_seconds": SECONDS,
        "reader": TEXT,
        "requests": object_of(counts | {"waiting": COUNT, "by_strategy": by_strategy}),
    }


def _queue_figures() -> dict[str, Schema]:
    books = object_of({key.name: COUNT for key in fields(SinkCounts)} | {"dropped": COUNTS})
    usage = {"earliest": COUNT, "next": COUNT, "messages": COUNT, "stored_bytes": COUNT}
    return {
        "name": TEXT,
        "incarnation": TEXT,
        "settings": reference("QueueSettings"),
        "messages": COUNT,
        "payload_bytes": COUNT,
        "stored_bytes": COUNT,
        "reserved": COUNT,
        "removed": COUNTS,
        "set_aside": COUNT,
        "oldest_seconds": or_null(SECONDS),
        "enqueued": object_of(
            {
                "published": books,
                "requested": books,
                "excluded": list_of(COUNT),
                "exclusions": COUNT,
            }
        ),
        "physical_queues": {"type": "object", "additionalProperties": object_of(usage)},
        "groups": {"type": "object", "additionalProperties": reference("GroupFigures")},
    }
