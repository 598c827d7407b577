"""The OpenAPI 3.1 description of the HTTP API; a test holds it against the server's answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock import __version__
from penstock.plugins.queue.http import arrow
from penstock.plugins.queue.http.message_routes import MAX_ACKNOWLEDGED
from penstock.plugins.queue.http.messages import MAX_MESSAGES
from penstock.plugins.queue.http.openapi_schemas import (
    COUNT,
    COUNTS,
    POSITIVE,
    SECONDS,
    START,
    TEXT,
    Schema,
    list_of,
    object_of,
    or_null,
    reference,
    schemas,
)
from penstock.plugins.queue.http.positions import MAX_PLANNED_QUEUES, MAX_READER_CHARACTERS
from penstock.plugins.queue.http.publishing import MAX_WAIT_SECONDS
from penstock.plugins.queue.http.requests import ACTIONS, JSON_TYPE
from penstock.plugins.queue.publishing.counts import UNPUBLISHED_REASONS
from penstock.plugins.queue.wire.frames import (
    BATCH_CONTENT_TYPE,
    COLUMNS,
    LOOKED_AT_HEADER,
    NEXT_OFFSET_HEADER,
    NOT_ACKNOWLEDGED_HEADER,
)

_ERRORS: Final = {
    "400": "A part of the request is not valid; the text names it.",
    "401": "No token, or one that the server does not know.",
    "403": "The token lacks the role; or a request of another site.",
    "404": "No such queue or group, or the policy file has no `publishing`.",
    "406": "The client accepts none of the content types.",
    "408": "The body was not complete in time.",
    "409": "It exists with other settings, the file of a backup exists, the group is of the other "
    "kind, or the queue to be deleted is the dead letter queue of a group; with `incarnation`, the "
    "position is of a queue that was deleted, and this one was created after it; or a stage is not "
    "there as the request says.",
    "410": "The range begins below the earliest offset.",
    "413": "The body is too large.",
    "415": "Another content type, or a compressed body.",
    "429": "The queue or the stage is full, too many messages are leased, too many requests wait, "
    "or the token sends more requests than it may.",
    "503": "The storage or the server cannot do it at the moment, or no broker runs here.",
    "507": "The storage is full.",
}
"""Meaning of each status of a refusal."""


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
        return messages | {"properties": {"messages": list_of(reference(name))}}

    deleted = object_of({"deleted": {"const": True}})
    position = reference("Position")
    start = {"incarnation": TEXT, "offsets": COUNTS}
    empty: Schema = {"type": "object", "additionalProperties": False}
    queue, group = "/queues/{queue}", "/queues/{queue}/groups/{group}"
    reading = "404 503"
    changing = "404 409 503 507"
    return {
        "/health": {
            "get": _operation(
                "Say whether a message would be stored; `problem` says why not everywhere, and "
                "`set_aside` has the messages that cannot be read.",
                object_of(
                    {
                        "status": {"enum": ["ok", "damaged", "degraded"]},
                        "set_aside": COUNTS,
                        "problem": TEXT,
                    },
                    optional=["set_aside", "problem"],
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
                object_of({"queues": list_of(reference("Queue"))}),
                "",
                role="read or admin",
            )
        },
        queue: {
            "get": _operation("Show a queue.", reference("Queue"), "404", role="read or admin"),
            "put": _operation(
                "Create a queue, or give it other settings. Settings that are left out have their "
                "defaults; topics and tags stay.",
                reference("Queue"),
                "409 503 507",
                role="admin",
                body=reference("QueueSettings"),
            ),
            "patch": _operation(
                "Change settings of a queue; those that are left out stay.",
                reference("Queue"),
                changing,
                role="admin",
                body=reference("QueueSettings"),
            ),
            "delete": _operation(
                "Delete a queue with its messages and groups; one that groups of other queues send "
                "dead letters to stays.",
                deleted,
                changing,
                role="admin",
            ),
        },
        f"{queue}/groups": {
            "get": _operation(
                "List the groups of a queue.",
                object_of({"groups": list_of(reference("Group"))}),
                "404",
                role="read or admin",
            )
        },
        group: {
            "get": _operation("Show a group.", reference("Group"), "404", role="read or admin"),
            "put": _operation(
                "Create a group, or give it other settings; its position stays.",
                reference("Group"),
                changing,
                role="admin",
                body=reference("GroupSettings"),
            ),
            "patch": _operation(
                "Change settings of a group; those that are left out stay.",
                reference("Group"),
                changing,
                role="admin",
                body=reference("GroupSettings"),
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
                reference("Stored"),
                "404 429 503 507",
                role="write",
                body={
                    "oneOf": [
                        reference("NewMessage"),
                        several("NewMessage")
                        | {
                            "additionalProperties": False,
                            "properties": {
                                "messages": list_of(reference("NewMessage"))
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
                "while. `acknowledge` has receipt handles of earlier ones, to be settled first; "
                f"the header `{NOT_ACKNOWLEDGED_HEADER}` has as JSON, by reason (`stale`, "
                "`unknown`), the indexes of those that settle nothing, where there are any.",
                several("ReceivedMessage"),
                "404 406 409 429 503 507",
                role="read",
                body=object_of(
                    body := {
                        "max_messages": POSITIVE,
                        "wait_seconds": SECONDS,
                        "visibility_timeout": or_null(SECONDS),
                        "min_messages": POSITIVE,
                        "min_bytes": COUNT,
                        "acknowledge": list_of(TEXT) | {"maxItems": MAX_ACKNOWLEDGED},
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
                object_of(
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
                body=object_of(
                    {
                        "action": {"enum": [*ACTIONS]},
                        "receipt_handles": list_of(TEXT) | {"maxItems": 10_000},
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
                body=object_of(
                    body := start
                    | {
                        "max_messages": or_null(POSITIVE),
                        "max_bytes": or_null(POSITIVE),
                        "wait_seconds": SECONDS,
                    },
                    optional=[*body],
                ),
            )
        },
        "/plan": {
            "post": _operation(
                "Return the end of the next range of several queues, from a position in each; wait "
                "where no queue has messages. Queues share the limits in proportion to what waits. "
                "No range goes beyond `until`, where that is given.",
                object_of(
                    {"queues": {"type": "object", "additionalProperties": reference("Plan")}}
                ),
                f"409 {reading}",
                role="read",
                body=object_of(
                    {
                        "queues": {
                            "type": "object",
                            "minProperties": 1,
                            "maxProperties": MAX_PLANNED_QUEUES,
                            "additionalProperties": object_of(
                                start | {"until": COUNTS}, optional=["until"]
                            ),
                        },
                        "max_messages": or_null(POSITIVE),
                        "max_bytes": or_null(POSITIVE),
                        "wait_seconds": SECONDS,
                    },
                    optional=["max_messages", "max_bytes", "wait_seconds"],
                ),
            )
        },
        f"{queue}/physical/{{number}}/range": {
            "get": _operation(
                "Read messages with `start` <= offset < `end`. The answer may be shorter than the "
                f"range; it is read on from the offset in the header `{NEXT_OFFSET_HEADER}`. "
                f"`{LOOKED_AT_HEADER}` counts the messages below that, those that match no topic "
                "filter included.",
                several("StoredMessage"),
                f"400 406 409 410 {reading}",
                role="read",
                query={
                    "start": COUNT,
                    "end": COUNT,
                    "max_messages": POSITIVE,
                    "incarnation": TEXT,
                    "columns": TEXT
                    | {
                        "description": f"Of {', '.join(COLUMNS)}, with commas; all without it. The "
                        "offset always comes."
                    },
                    "topic_filter": TEXT
                    | {"description": "MQTT topic filter; may be repeated, one must match."},
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
                body=object_of(start | {"reader": TEXT | {"maxLength": MAX_READER_CHARACTERS}}),
            )
        },
        f"{group}/seek": {
            "post": _operation(
                "Move a group to another place; its leases end.",
                position,
                "404 503 507",
                role="admin",
                body=object_of({"to": START}),
            )
        },
        f"{queue}/purge": {
            "post": _operation(
                "Remove all messages.",
                object_of({"removed": COUNT}),
                "404 503 507",
                role="admin",
                body=empty,
            )
        },
        f"{queue}/redrive": {
            "post": _operation(
                "Move dead letters to `target`, or back to the queues in which they died.",
                object_of({"moved": COUNT}),
                "404 503 507",
                role="admin, and write in the target",
                body=object_of(
                    {"target": TEXT, "max_messages": or_null(POSITIVE)},
                    optional=["target", "max_messages"],
                ),
            )
        },
        "/stages/{writer}/{stage}/{place}": {
            "put": _operation(
                "Store rows that are to be published, until a commit names their stage. A refusal "
                "has the first wrong row as `index`. The same place may be stored again.",
                object_of({"rows": POSITIVE | {"description": "Of the stage."}}),
                "404 409 503 507",
                role="publish",
                body=several("Row"),
            )
        },
        "/stages/{writer}": {
            "delete": _operation(
                "Delete the stages of a writer that no commit has named.",
                object_of({"stages": COUNT}),
                "404 503 507",
                role="publish",
            )
        },
        "/batches/{query}/{batch}": {
            "put": _operation(
                "Publish stages of a writer as one batch, once, and delete its others; wait until "
                "the broker has acknowledged each row, but no longer than `wait_seconds`. A batch "
                "that was committed before, or an older one of its query, is not published again.",
                object_of(
                    {
                        "finished": {"type": "boolean"},
                        "repeated": {"type": "boolean"},
                        "rows": COUNT,
                        "done": COUNT,
                        "unpublished": {
                            "type": "object",
                            "description": "Rows that are not published, by reason: "
                            + "; ".join(f"`{k}`: {why}" for k, why in UNPUBLISHED_REASONS.items()),
                            "additionalProperties": COUNT,
                        },
                        "obstacle": TEXT
                        | {"description": "What the next row waits for, or empty."},
                    }
                ),
                "404 409 503 507",
                role="publish",
                body=object_of(
                    {
                        "writer": TEXT,
                        "stages": list_of(object_of({"name": TEXT, "rows": POSITIVE})),
                        "wait_seconds": SECONDS | {"maximum": MAX_WAIT_SECONDS},
                    },
                    optional=["wait_seconds"],
                ),
            )
        },
        "/compact": {
            "post": _operation(
                "Give unused space of the storage back.",
                object_of({"freed_bytes": {"type": "integer"}}),
                "503 507",
                role="admin in all queues",
                body=empty,
            )
        },
        "/backup": {
            "post": _operation(
                "Write a copy of the storage to a new file on the server.",
                object_of({"bytes": COUNT}),
                "409 503 507",
                role="admin in all queues",
                body=object_of({"path": TEXT}),
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
                    "schema": COUNT if name in ("number", "place", "batch") else TEXT,
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
                    "content": {JSON_TYPE: {"schema": reference("Error")}},
                }
                for status, text in _ERRORS.items()
            },
            "schemas": schemas(),
        },
    }
