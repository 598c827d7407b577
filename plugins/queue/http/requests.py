"""The checks that all routes share: sender, roles, body, query and values.

Every refusal names what was read and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from aiohttp import web

from penstock.broker.config.checked_yaml import MisfitError, fit
from penstock.plugins.queue.access import ALL_QUEUES, Caller, OperatorAccess, QueueAccess, Role
from penstock.plugins.queue.config import GroupConfig, LogicalQueueConfig
from penstock.plugins.queue.engines.contract import (
    Action,
    GroupSpec,
    Position,
    QueueSpec,
    Start,
    UnknownQueueError,
)
from penstock.plugins.queue.service import QueueService, group_spec, queue_spec
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.json_text import JsonTextError, read_json
from penstock.plugins.web.service import (
    SEND_PIECES,
    Pieces,
    RequestError,
    error_answer,
    integer,
    show,
)

Writing: TypeAlias = Generator[None, None, Pieces]
"""A generator that writes the pieces of an answer's body in slices."""

MAX_OFFSET: Final = 2**63 - 1
MAX_SECONDS: Final = 366 * 86_400.0
"""The longest delay or visibility timeout."""
MAX_TAGS: Final = 50
MAX_TAG_CHARACTERS: Final = 256

JSON_TYPE: Final = "application/json"

RETRY_AFTER_SECONDS: Final = 1
"""How long a client should wait after an answer of status 429 or 503."""

ACTIONS: Final = get_args(Action)

GROUP_KEYS: Final = tuple(key.name for key in fields(GroupSpec))
SPEC_KEYS: Final = frozenset(key.name for key in fields(QueueSpec))


class AnswerError(RequestError):
    """A refusal whose answer has more than its text.

    Attributes:
        more: keys of the answer beside `error`.
    """

    def __init__(
        self,
        message: str,
        status: int,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, status)
        self.more = more or {}
        self.headers = headers or {}


class Context(NamedTuple):
    """What the routes need.

    Attributes:
        clock: returns monotonic seconds.
    """

    service: QueueService
    access: QueueAccess | OperatorAccess
    clock: Callable[[], float]
    bodies: Bodies
    slicer: Slicer

    def caller(self, request: web.Request) -> Caller:
        """Return who sends a request, which counts towards the caller's rate: call it once.

        Raises:
            AnswerError: 401, it is nobody that is known; 429, it sends too many requests.
        """
        caller = self.access.of(request)
        if caller is None:
            read = "another token" if "Authorization" in request.headers else "nothing"
            raise AnswerError(
                f"Authorization: read {read}; allowed: Bearer and a token of this server",
                401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        wait = caller.seconds_to_wait(self.clock())
        if wait:
            raise AnswerError(
                f"token {caller.name}: read more requests than its requests_per_second; allowed: "
                f"another one in {wait:.3g} s",
                429,
                headers={"Retry-After": str(math.ceil(wait))},
            )
        return caller

    def allow(self, request: web.Request, queue: str, *roles: Role) -> Caller:
        """Return who sends a request, if the caller has one of these roles in a queue.

        Raises:
            RequestError: see `caller` and `check_role`.
        """
        caller = self.caller(request)
        check_role(caller, queue, *roles)
        return caller

    def queue(self, request: web.Request, *roles: Role) -> str:
        """Return the name of a request's queue; see `enter`."""
        return self.enter(request, *roles)[0]

    def enter(self, request: web.Request, *roles: Role) -> tuple[str, Caller]:
        """Return the name of a request's queue, which exists, and who sends the request.

        Raises:
            RequestError: see `caller` and `check_role`; 404 where there is no such queue.
        """
        name = request.match_info["queue"]
        caller = self.caller(request)
        self.check_queue(caller, name, *roles)
        return name, caller

    def check_queue(self, caller: Caller, name: str, *roles: Role) -> None:
        """Check that a queue exists, and that a caller has one of these roles in it.

        Raises:
            RequestError: see `check_role`; 404 where there is no such queue.
        """
        check_role(caller, name, *roles)
        try:
            self.service.queue(name)
        except UnknownQueueError:
            # The caller does not learn of queues that it may not see.
            names = self.service.names()
            visible = [one for one in names if any(caller.may(role, one) for role in roles)]
            allowed = ", ".join(visible) or "none, there are no queues"
            raise RequestError(f"queue: read {show(name)}; allowed: {allowed}", 404) from None

    async def object(self, request: web.Request, *keys: str) -> Mapping[str, Any]:
        """Return the JSON object in a request's body; see `read_object`."""
        return await read_object(request, self.bodies, self.slicer, frozenset(keys))

    async def send(
        self, request: web.Request, writing: Writing, content_type: str
    ) -> web.StreamResponse:
        """Write messages in slices, and send them."""
        pieces = await self.slicer.run(writing)
        return await request.config_dict[SEND_PIECES](request, pieces, content_type)


def check_role(caller: Caller, queue: str, *roles: Role) -> None:
    """Check that a caller has one of these roles in a queue; `ALL_QUEUES` for the storage.

    Raises:
        RequestError: 403, the caller has none of them.
    """
    if not any(caller.may(role, queue) for role in roles):
        where = "all queues" if queue == ALL_QUEUES else f"queue {show(queue)}"
        raise RequestError(
            f"token {caller.name}: read no role {' or '.join(roles)} in {where}; allowed: a token "
            "with it",
            403,
        )


def refusal(error: AnswerError) -> web.Response:
    """Return the answer of an error that has more than its text."""
    if not error.more and not error.headers:
        return error_answer(error.status, str(error))
    body = {"error": str(error), **error.more}
    return web.json_response(body, status=error.status, headers=dict(error.headers))


def query_of(
    request: web.Request, allowed: Sequence[str], *, repeatable: str = ""
) -> Mapping[str, str]:
    """Return a request's query.

    Raises:
        RequestError: it has an unknown key, or one twice.
    """
    query = request.query
    for key in query:
        if key not in allowed or (key != repeatable and len(query.getall(key)) > 1):
            listed = ", ".join(allowed) or "none"
            raise RequestError(f"query: read {show(key)}; allowed, each once: {listed}")
    return query


@asynccontextmanager
async def read_body(
    request: web.Request, bodies: Bodies, content_types: Sequence[str]
) -> AsyncIterator[bytearray]:
    """Receive a request's body, which counts until the block ends.

    Raises:
        RequestError: another content type, or a compressed body.
    """
    # A page in a browser may send other types to this machine without a preflight request.
    if request.content_type not in content_types or "Content-Type" not in request.headers:
        read = request.headers.get("Content-Type", "none")
        allowed = ", ".join(content_types)
        raise RequestError(f"Content-Type: read {show(read)}; allowed: {allowed}", 415)
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(f"Content-Encoding: read {show(encoding)}; allowed: none", 415)
    async with bodies.read(request) as data:
        yield data


async def read_object(
    request: web.Request, bodies: Bodies, slicer: Slicer, keys: frozenset[str]
) -> Mapping[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        RequestError: another content type, a compressed body, no JSON, no object, or an unknown
            key.
    """
    async with read_body(request, bodies, [JSON_TYPE]) as data:
        try:
            body = await slicer.run(read_json(data))
        except JsonTextError as error:
            raise no_json(error) from error
    return object_of(body, "body", keys)


def no_json(error: JsonTextError) -> RequestError:
    """Return the error of a body that is no JSON."""
    return RequestError(f"body: read no JSON ({error}); allowed: a JSON object")


def object_of(value: Any, path: str, keys: frozenset[str]) -> Mapping[str, Any]:
    """Return a JSON object.

    Raises:
        RequestError: it is no object, or has an unknown key.
    """
    if not isinstance(value, dict):
        raise RequestError(f"{path}: read {show(value)}; allowed: a JSON object")
    for key in value:
        if key not in keys:
            allowed = ", ".join(sorted(keys)) or "none"
            raise RequestError(f"{path}: read unknown key {show(key)}; allowed: {allowed}")
    return value


def text_of(row: Mapping[str, Any], key: str, path: str, default: str | None = None) -> str:
    """Return a text that UTF-8 can encode.

    Args:
        row: with the text.
        key: the key of the text.
        path: the place of the row in the body, with a dot at its end.
        default: the text where there is no such key; None where there must be one.

    Raises:
        RequestError: it is no such text.
    """
    value = row.get(key, default)
    if not isinstance(value, str):
        raise RequestError(f"{path}{key}: read {show(value)}; allowed: text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{path}{key}: read half a surrogate; allowed: Unicode") from error
    return value


def seconds(name: str, value: Any, most: float, *, is_zero_allowed: bool = True) -> float:
    """Return a duration of at most `most` seconds.

    Raises:
        RequestError: it is not such a duration.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most or not (value or is_zero_allowed):
        least = "0" if is_zero_allowed else "more than 0"
        raise RequestError(f"{name}: read {show(value)}; allowed: {least} to {most:g} seconds")
    return float(value)


def optional_integer(body: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number of 1 or more, or None where it is not given.

    Raises:
        RequestError: it is another value.
    """
    value = body.get(name)
    return None if value is None else integer(name, value, 1, MAX_OFFSET)


def read_handles(
    body: Mapping[str, Any], max_handles: int, name: str = "receipt_handles"
) -> list[str]:
    """Return the receipt handles of a request.

    Raises:
        RequestError: not a list of as many texts as allowed.
    """
    handles = body.get(name)
    if not isinstance(handles, list) or len(handles) > max_handles:
        read = f"{len(handles)} handles" if isinstance(handles, list) else show(handles)
        raise RequestError(f"{name}: read {read}; allowed: a list of at most {max_handles}")
    if set(map(type, handles)) - {str}:
        handle = next(handle for handle in handles if not isinstance(handle, str))
        raise RequestError(f"{name}: read {show(handle)}; allowed: texts")
    return handles


def read_action(body: Mapping[str, Any]) -> Action:
    """Return what becomes of received messages.

    Raises:
        RequestError: another action, or nothing.
    """
    action: Any = body.get("action")
    if action not in ACTIONS:
        raise RequestError(f"action: read {show(action)}; allowed: {', '.join(ACTIONS)}")
    return cast("Action", action)


def read_start(name: str, value: Any) -> Start:
    """Return where a group begins, from a body or a query.

    Raises:
        RequestError: neither `earliest` nor `latest` nor a time.
    """
    if value in ("earliest", "latest"):
        word: Literal["earliest", "latest"] = value
        return word
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not 0 <= number < float(MAX_OFFSET):
        raise RequestError(
            f"{name}: read {show(value)}; allowed: earliest, latest, or seconds since the Unix "
            "epoch"
        )
    return float(number)


def read_position(body: Mapping[str, Any], incarnation: str | None = None) -> Position:
    """Return the position in a body.

    Args:
        body: with `incarnation` and `offsets`.
        incarnation: that of the queue, where the position may be left out; the offsets are then
            the earliest.

    Raises:
        RequestError: not an incarnation and an object of numbers to offsets.
    """
    if incarnation is not None and "offsets" not in body and "incarnation" not in body:
        return Position(incarnation, {})
    offsets = body.get("offsets")
    if not isinstance(offsets, dict):
        raise RequestError(
            f"offsets: read {show(offsets)}; allowed: an object of physical queue to offset"
        )
    return Position(
        text_of(body, "incarnation", ""),
        {
            integer("physical queue", number, 0, MAX_OFFSET, int): integer(
                f"offsets.{number}", offset, 0, MAX_OFFSET
            )
            for number, offset in offsets.items()
        },
    )


def read_queue_spec(body: Mapping[str, Any]) -> QueueSpec:
    """Return the settings of a queue; without `groups`, it has none.

    Raises:
        RequestError: with each wrong key or value.
    """
    tags = body.get("tags", {})
    if (
        not isinstance(tags, dict)
        or len(tags) > MAX_TAGS
        or any(not isinstance(value, str) for value in tags.values())
        or any(len(text) > MAX_TAG_CHARACTERS for pair in tags.items() for text in pair)
    ):
        raise RequestError(
            f"tags: read {show(tags)}; allowed: an object of at most {MAX_TAGS} texts of "
            f"{MAX_TAG_CHARACTERS} characters"
        )
    for pair in tags.items():
        for text in pair:
            text_of({"tags": text}, "tags", "")
    keys = {key: value for key, value in body.items() if key != "tags"}
    spec = queue_spec(_fitted(LogicalQueueConfig, keys))
    groups = spec.groups if "groups" in body else {}
    return QueueSpec(
        **{key: getattr(spec, key) for key in SPEC_KEYS - {"groups", "tags"}},
        groups=groups,
        tags=tags,
    )


def read_group_spec(body: Mapping[str, Any]) -> GroupSpec:
    """Return the settings of a group.

    Raises:
        RequestError: with each wrong key or value.
    """
    return group_spec(_fitted(GroupConfig, body))


def _fitted(cls: Any, body: Mapping[str, Any]) -> Any:
    try:
        return fit(cls, body)
    except MisfitError as error:
        told = [
            f"{'.'.join(misfit.place) or 'body'}: read {misfit.read}; allowed: {misfit.allowed}"
            for misfit in error.misfits
        ]
        raise RequestError("; ".join(told)) from error
