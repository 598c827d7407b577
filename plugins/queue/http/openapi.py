"""The OpenAPI 3.1 description of the HTTP API; a test holds it against the server's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import cleandoc
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter

from penstock import __version__
from penstock.broker.extensions import SinkCounts
from penstock.plugins.queue.client import BATCH_CONTENT_TYPE, DEAD_LETTER
from penstock.plugins.queue.config import GroupConfig, LogicalQueueConfig
from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.http.messages import MAX_MESSAGES, PROPERTY_KEYS
from penstock.plugins.queue.http.requests import ACTIONS, GROUP_KEYS, JSON_TYPE, SPEC_KEYS
from penstock.plugins.queue.intake import DROP_REASONS
from penstock.plugins.queue.strategies.dequeue import DequeueCounts

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

_ERRORS: Final = {
    "400": "A part of the request is not valid; the text names it.",
    "401": "No token, or one that the server does not know.",
    "403": "The token lacks the role; or a request of another site.",
    "404": "No such queue or group.",
    "406": "The client accepts none of the content types.",
    "408": "The body was not complete in time.",
    "409": "It exists with other settings, the file of a backup exists, the group is of the other "
    "kind, or the queue to be deleted is the dead letter queue of a group; with `incarnation`, the "
    "position is of a queue that was deleted, and this one was created after it.",
    "410": "The range begins below the earliest offset.",
    "413": "The body is too large.",
    "415": "Another content type, or a compressed body.",
    "429": "The queue is full, too many messages are leased, too many requests wait, or the token "
    "sends more requests than it may.",
    "503": "The storage or the server cannot do it at the moment.",
    "507": "The storage is full.",
}
"""Meaning of each status of a refusal."""


def _object(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": dict(properties),
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
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


def _schemas() -> dict[str, Schema]:
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
            "additionalProperties": _ref("GroupSettings"),
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
            "description": f"MQTT 5 properties, and `{DEAD_LETTER}` of a dead letter.",
            "additionalProperties": True,
            "properties": {DEAD_LETTER: _object(death)},
        },
    }
    new = {
        "topic": TEXT,
        "payload": BASE64,
        "text": TEXT | {"description": "In place of `payload`."},
        "publisher": TEXT | {"description": "With a token: its name, or left out."},
        "properties": _ref("Properties"),
        "delay_seconds": SECONDS,
        "deduplication_id": TEXT | {"maxLength": 128},
        "key": TEXT,
    }
    outcome = {
        "stored": COUNT,
        "duplicates": _list(COUNT) | {"description": "Indexes of messages stored before."},
        "refused": {
            "type": "object",
            "description": "Reason by index of each message that is not stored: "
            + "; ".join(f"`{reason}`: {why}" for reason, why in DROP_REASONS.items()),
            "additionalProperties": {"enum": [*DROP_REASONS]},
        },
    }
    return {
        "Error": _object(
            {"error": TEXT, "earliest": COUNT, "incarnation": TEXT} | outcome,
            optional=["earliest", "incarnation", *outcome],
        ),
        "GroupSettings": _settings(GroupConfig, GROUP_KEYS),
        "QueueSettings": queue_settings,
        "Properties": _properties(),
        "NewMessage": _object(new, optional=[name for name in new if name != "topic"])
        | {"oneOf": [{"required": ["payload"]}, {"required": ["text"]}]},
        "Stored": _object(outcome),
        "StoredMessage": _object(stored),
        "ReceivedMessage": _object(
            {"receipt_handle": TEXT, "receive_count": POSITIVE, "physical_queue": COUNT} | stored
        ),
        "PeekedMessage": _object({"physical_queue": COUNT} | stored),
        "Position": _object({"incarnation": TEXT, "offsets": COUNTS}),
        "GroupFigures": _object(_group_figures(), optional=["requests"]),
        "Group": _object(
            {"name": TEXT, "incarnation": TEXT} | _group_figures(), optional=["requests"]
        ),
        "Queue": _object(_queue_figures()),
    }


def _properties() -> Schema:
    kinds: dict[str, Schema] = dict.fromkeys(PROPERTY_KEYS, TEXT) | {
        "payload_format_indicator": {"enum": [0, 1]},
        "message_expiry_interval": COUNT,
        "correlation_data": BASE64,
        "user_property": _list(_list(TEXT) | {"minItems": 2, "maxItems": 2}),
    }
    return {
        "type": "object",
        "description": "MQTT 5 properties.",
        "additionalProperties": False,
        "properties": {name: kinds[name] for name in sorted(kinds)},
    }


def _group_figures() -> dict[str, Schema]:
    return {
        "settings": _ref("GroupSettings"),
        "position": COUNTS,
        "waiting": COUNT,
        "leased": COUNT,
        "delayed": COUNT,
        "received": COUNT,
        "settled": COUNTS,
        "idle_seconds": SECONDS,
        "requests": _object({key.name: COUNT for key in fields(DequeueCounts)}),
    }


def _queue_figures() -> dict[str, Schema]:
    books = _object({key.name: COUNT for key in fields(SinkCounts)} | {"dropped": COUNTS})
    usage = {"earliest": COUNT, "next": COUNT, "messages": COUNT, "stored_bytes": COUNT}
    return {
        "name": TEXT,
        "incarnation": TEXT,
        "settings": _ref("QueueSettings"),
        "messages": COUNT,
        "payload_bytes": COUNT,
        "stored_bytes": COUNT,
        "reserved": COUNT,
        "removed": COUNTS,
        "set_aside": COUNT,
        "oldest_seconds": _or_null(SECONDS),
        "enqueued": _object({"published": books, "requested": books}),
        "physical_queues": {"type": "object", "additionalProperties": _object(usage)},
        "groups": {"type": "object", "additionalProperties": _ref("GroupFigures")},
    }


def _operation(
    summary: str,
    answer: Schema,
    errors: str,
    *,
    role: str | None,
    body: Schema | None = None,
    query: Mapping[str, Schema] | None = None,
    needed: Sequence[str] = (),
    is_bulk: bool = False,
    takes_bulk: bool = False,
) -> Schema:
    """Describe one method of a path.

    Args:
        summary: what it does.
        answer: schema of status 200.
        errors: other statuses, between blanks, besides those that every operation has.
        role: that the token needs; None for an operation that needs no token.
        body: schema of the JSON body; None for none.
        query: schemas of the query's keys.
        needed: of these, those that there must be.
        is_bulk: whether the answer may be in the batch format or Arrow.
        takes_bulk: the same of the body.
    """
    bulk = {one: {"schema": {"type": "string"}} for one in (BATCH_CONTENT_TYPE, arrow.CONTENT_TYPE)}
    statuses = sorted({*errors.split(), *(["401", "403", "429"] if role else ["403"])})
    if body is not None:
        statuses = sorted({*statuses, "400", "408", "413", "415"})
    described: Schema = {
        "summary": summary,
        "responses": {
            "200": {
                "description": "It is done.",
                "content": {JSON_TYPE: {"schema": answer}} | (bulk if is_bulk else {}),
            },
            **{status: {"$ref": f"#/components/responses/{status}"} for status in statuses},
        },
    }
    if role is None:
        described["security"] = []
    else:
        described["description"] = f"Needs role {role}."
    if body is not None:
        content = {JSON_TYPE: {"schema": body}} | (bulk if takes_bulk else {})
        described["requestBody"] = {"required": True, "content": content}
    if query:
        described["parameters"] = [
            {"name": name, "in": "query", "required": name in needed, "schema": schema}
            for name, schema in query.items()
        ]
    return described


def _paths() -> dict[str, Schema]:
    messages = {"type": "object", "required": ["messages"]}

    def several(name: str) -> Schema:
        return messages | {"properties": {"messages": _list(_ref(name))}}

    deleted = _object({"deleted": {"const": True}})
    position = _ref("Position")
    start = {"incarnation": TEXT, "offsets": COUNTS}
    empty: Schema = {"type": "object", "additionalProperties": False}
    queue, group = "/queues/{queue}", "/queues/{queue}/groups/{group}"
    reading = "404 503"
    changing = "404 409 503 507"
    return {
        "/health": {
            "get": _operation(
                "Say whether the storage works; `set_aside` has the messages that cannot be read.",
                _object(
                    {"status": {"enum": ["ok", "damaged"]}, "set_aside": COUNTS},
                    optional=["set_aside"],
                ),
                "503",
                role=None,
            )
        },
        "/openapi.json": {
            "get": _operation("Describe the API: this document.", {"type": "object"}, "", role=None)
        },
        "/queues": {
            "get": _operation(
                "List the queues that the token may read or administer.",
                _object({"queues": _list(_ref("Queue"))}),
                "",
                role="read or admin",
            )
        },
        queue: {
            "get": _operation("Show a queue.", _ref("Queue"), "404", role="read or admin"),
            "put": _operation(
                "Create a queue, or give it other settings. Settings that are left out have their "
                "defaults; tags stay.",
                _ref("Queue"),
                "409 503 507",
                role="admin",
                body=_ref("QueueSettings"),
            ),
            "delete": _operation(
                "Delete a queue with its messages and groups; one that groups of other queues send "
                "dead letters to stays.",
                deleted,
                changing,
                role="admin",
            ),
        },
        group: {
            "get": _operation("Show a group.", _ref("Group"), "404", role="read or admin"),
            "put": _operation(
                "Create a group, or give it other settings; its position stays.",
                _ref("Group"),
                changing,
                role="admin",
                body=_ref("GroupSettings"),
            ),
            "delete": _operation(
                "Delete a group; it holds no messages any more.",
                deleted,
                "404 503 507",
                role="admin",
            ),
        },
        f"{queue}/messages": {
            "post": _operation(
                "Store one message, or several. Status 200 means that all are stored. Otherwise "
                "the answer says which are: some may be.",
                _ref("Stored"),
                "404 429 503 507",
                role="write",
                body={
                    "oneOf": [
                        _ref("NewMessage"),
                        several("NewMessage")
                        | {
                            "additionalProperties": False,
                            "properties": {
                                "messages": _list(_ref("NewMessage"))
                                | {"minItems": 1, "maxItems": MAX_MESSAGES}
                            },
                        },
                    ]
                },
                takes_bulk=True,
            )
        },
        f"{group}/receive": {
            "post": _operation(
                "Receive messages of a lease group; each is invisible to its other receivers for a "
                "while.",
                several("ReceivedMessage"),
                "404 406 409 429 503 507",
                role="read",
                body=_object(
                    body := {
                        "max_messages": POSITIVE,
                        "wait_seconds": SECONDS,
                        "visibility_timeout": _or_null(SECONDS),
                        "min_messages": POSITIVE,
                        "min_bytes": COUNT,
                    },
                    optional=[*body],
                ),
                is_bulk=True,
            )
        },
        f"{group}/settle": {
            "post": _operation(
                "Settle received messages. `failed` has by index the handles that settle nothing: "
                "`stale` where the message was settled or received again since, `unknown` where "
                "there was no such receive.",
                _object(
                    {
                        "settled": COUNT,
                        "failed": {
                            "type": "object",
                            "additionalProperties": {"enum": ["stale", "unknown"]},
                        },
                    }
                ),
                changing,
                role="read",
                body=_object(
                    {
                        "action": {"enum": [*ACTIONS]},
                        "receipt_handles": _list(TEXT) | {"maxItems": 10_000},
                        "seconds": SECONDS,
                    },
                    optional=["seconds"],
                ),
            )
        },
        f"{queue}/peek": {
            "get": _operation(
                "Show messages, the oldest of each physical queue first; nothing changes. With "
                "`group`, those from its position on.",
                several("PeekedMessage"),
                f"400 {reading}",
                role="read",
                query={"max_messages": POSITIVE | {"default": 10}, "group": TEXT},
            )
        },
        f"{queue}/position": {
            "get": _operation(
                "Find a position in the queue.",
                position,
                f"400 {reading}",
                role="read",
                query={"at": START},
            )
        },
        f"{queue}/plan": {
            "post": _operation(
                "Return the end of the next range from a position, or from the earliest offsets; "
                "wait where nothing is there.",
                position,
                f"409 {reading}",
                role="read",
                body=_object(
                    body := start
                    | {
                        "max_messages": _or_null(POSITIVE),
                        "max_bytes": _or_null(POSITIVE),
                        "wait_seconds": SECONDS,
                    },
                    optional=[*body],
                ),
            )
        },
        f"{queue}/physical/{{number}}/range": {
            "get": _operation(
                "Read messages with `start` <= offset < `end`. The answer may be shorter than the "
                "range; it is read on from behind its last offset.",
                several("StoredMessage"),
                f"400 406 409 410 {reading}",
                role="read",
                query={
                    "start": COUNT,
                    "end": COUNT,
                    "max_messages": POSITIVE,
                    "incarnation": TEXT,
                },
                needed=["start", "end"],
                is_bulk=True,
            )
        },
        f"{group}/commit": {
            "post": _operation(
                "Move an offsets group up to a position; lower offsets do nothing.",
                position,
                changing,
                role="read",
                body=_object(start),
            )
        },
        f"{group}/seek": {
            "post": _operation(
                "Move a group to another place; its leases end.",
                position,
                "404 503 507",
                role="admin",
                body=_object({"to": START}),
            )
        },
        f"{queue}/purge": {
            "post": _operation(
                "Remove all messages.",
                _object({"removed": COUNT}),
                "404 503 507",
                role="admin",
                body=empty,
            )
        },
        f"{queue}/redrive": {
            "post": _operation(
                "Move dead letters to `target`, or back to the queues in which they died.",
                _object({"moved": COUNT}),
                "404 503 507",
                role="admin, and write in the target",
                body=_object(
                    {"target": TEXT, "max_messages": _or_null(POSITIVE)},
                    optional=["target", "max_messages"],
                ),
            )
        },
        "/compact": {
            "post": _operation(
                "Give unused space of the storage back.",
                _object({"freed_bytes": {"type": "integer"}}),
                "503 507",
                role="admin in all queues",
                body=empty,
            )
        },
        "/backup": {
            "post": _operation(
                "Write a copy of the storage to a new file on the server.",
                _object({"bytes": COUNT}),
                "409 503 507",
                role="admin in all queues",
                body=_object({"path": TEXT}),
            )
        },
    }


def document() -> Schema:
    """Return the document."""
    paths = _paths()
    for path, methods in paths.items():
        names = re.findall(r"\{(\w+)\}", path)
        if names:
            methods["parameters"] = [
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": COUNT if name == "number" else TEXT,
                }
                for name in names
            ]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock queue",
            "version": __version__,
            "description": "Messages of devices, pulled by back ends. Messages come in JSON, as "
            f"`{BATCH_CONTENT_TYPE}`, or, where the server has pyarrow, as `{arrow.CONTENT_TYPE}`.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed where the server has a file of tokens.",
                }
            },
            "responses": {
                status: {
                    "description": text,
                    "content": {JSON_TYPE: {"schema": _ref("Error")}},
                }
                for status, text in _ERRORS.items()
            },
            "schemas": _schemas(),
        },
    }
