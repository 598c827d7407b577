"""What all routes of the HTTP API share: the service, callers and their roles, and bodies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from penstock.plugins.queue.access import ALL_QUEUES, Caller, QueueAccess, Role
from penstock.plugins.queue.engines.contract import UnknownQueueError
from penstock.plugins.queue.http.answers import Writing
from penstock.plugins.queue.http.requests import read_object
from penstock.plugins.queue.service import QueueService
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.service import (
    SEND_PIECES,
    Pieces,
    RequestError,
    error_answer,
    show,
)

RETRY_AFTER_SECONDS: Final = 1
"""What an answer of status 429 or 503 asks a client to wait."""


class AnswerError(RequestError):
    """A refusal whose answer has more than its text.

    Attributes:
        more: keys of the answer beside `error`.
        headers: of the answer.
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
        service: the queues.
        access: the callers.
        clock: returns monotonic seconds.
        bodies: of requests that are being received.
        slicer: runs what takes long.
    """

    service: QueueService
    access: QueueAccess
    clock: Callable[[], float]
    bodies: Bodies
    slicer: Slicer

    def caller(self, request: web.Request) -> Caller:
        """Return who sends a request, which counts towards the caller's rate: call it once.

        Raises:
            AnswerError: 401, it is nobody that is known; 429, it sends too many requests.
        """
        header = request.headers.get("Authorization")
        caller = self.access.bearer(header)
        if caller is None:
            read = "another token" if header else "nothing"
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
        return await self.send_pieces(request, await self.slicer.run(writing), content_type)

    async def send_pieces(
        self,
        request: web.Request,
        pieces: Pieces,
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        """Answer with the pieces of a body."""
        return await request.app[SEND_PIECES](request, pieces, content_type, headers)


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

    Args:
        request: with the query.
        allowed: its keys.
        repeatable: the only key that may come more than once.

    Raises:
        RequestError: it has an unknown key, or one twice.
    """
    query = request.query
    for key in query:
        if key not in allowed or (key != repeatable and len(query.getall(key)) > 1):
            listed = ", ".join(allowed) or "none"
            raise RequestError(f"query: read {show(key)}; allowed, each once: {listed}")
    return query
