"""The SQS API over HTTP: authentication, protocol and errors of a request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack
from logging import Logger
from typing import Final, NamedTuple

from aiohttp import web

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.access import ANYBODY, Caller, QueueAccess
from penstock.plugins.queue.engines.contract import (
    ExistsError,
    GroupKindError,
    StorageError,
    StorageFullError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.service import InUseError, QueueService, SettingError
from penstock.plugins.queue.sqs.actions import SqsActions, SqsRequest, unknown_queue
from penstock.plugins.queue.sqs.errors import (
    ACCESS_DENIED,
    INTERNAL_FAILURE,
    INVALID_PARAMETER_VALUE,
    QUEUE_NAME_EXISTS,
    REQUEST_THROTTLED,
    REQUEST_TIMEOUT,
    REQUEST_TOO_LARGE,
    SERIALIZATION,
    SERVICE_UNAVAILABLE,
    STORAGE_FULL,
    UNKNOWN_ACCESS_KEY,
    UNKNOWN_ACTION,
    UNSUPPORTED_OPERATION,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.protocol import (
    JSON_CONTENT_TYPE,
    XML_CONTENT_TYPE,
    Call,
    read_json_call,
    read_query_call,
    write_json_answer,
    write_json_error,
    write_query_error_header,
    write_xml_answer,
    write_xml_error,
)
from penstock.plugins.queue.sqs.signature import SignedRequest, read_credential, verify
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.service import CHECK_ROOM, RequestError

DEFAULT_REGION: Final = "us-east-1"
"""The region in ARNs of requests without a signature."""

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""The largest body of a request. A batch of messages, 1 MiB, may be JSON escapes of six characters
a byte."""

_FAULTS: Final[tuple[tuple[type[PenstockError], Fault], ...]] = (
    (ExistsError, QUEUE_NAME_EXISTS),
    (SettingError, INVALID_PARAMETER_VALUE),
    (GroupKindError, UNSUPPORTED_OPERATION),
    (InUseError, UNSUPPORTED_OPERATION),
    (UnknownGroupError, SERVICE_UNAVAILABLE),
    (StorageFullError, STORAGE_FULL),
    (StorageError, SERVICE_UNAVAILABLE),
)
_FAULTS_BY_STATUS: Final[Mapping[int, Fault]] = {
    403: ACCESS_DENIED,
    408: REQUEST_TIMEOUT,
    413: REQUEST_TOO_LARGE,
    503: SERVICE_UNAVAILABLE,
}


class _Sender(NamedTuple):
    """Who sends a request; see `SqsRequest`."""

    caller: Caller
    access_key_id: str
    region: str


class SqsApi:
    """The application and its answers."""

    def __init__(
        self,
        service: QueueService,
        access: QueueAccess,
        clock: Callable[[], float],
        logger: Logger,
        bodies: Bodies,
        slicer: Slicer,
        wall_clock: Callable[[], float] = time.time,
        *,
        ignores: bool = False,
    ) -> None:
        self._actions = SqsActions(service, clock, wall_clock, slicer, logger, ignores=ignores)
        self._access = access
        self._clock = clock
        self._wall_clock = wall_clock
        self._logger = logger
        self._bodies = bodies
        self._slicer = slicer

    def application(self, max_request_bytes: int) -> web.Application:
        """Return the API as an aiohttp application."""
        application = web.Application(
            client_max_size=min(max_request_bytes, MAX_BODY_BYTES),
            middlewares=[self._answer_errors],
        )
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.on_cleanup.append(self._end_tasks)
        return application

    async def _handle(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "POST"):
            raise SqsError(UNKNOWN_ACTION, f"method: read {request.method}; allowed: POST and GET")
        async with self._bodies.read(request) as received:
            body = bytes(received)
            sender = self._sender(request, body)
            call = await self._slicer.run(_read_call(request, body))
            del body  # frees the text, which may be as large as all payloads, before the commit
        if call.action == "ReceiveMessage":
            request.app[CHECK_ROOM]()
        request_id = str(uuid.uuid4())
        is_json = _is_json(request)
        with ExitStack() as undo:
            result = await self._actions.run(
                SqsRequest(
                    call.action,
                    call.parameters,
                    sender.caller,
                    sender.access_key_id,
                    sender.region,
                    f"{request.scheme}://{request.host}",
                    request.path,
                    undo,
                )
            )
            answer = await self._slicer.run(
                write_json_answer(result)
                if is_json
                else write_xml_answer(call.action, result, request_id)
            )
            undo.pop_all()
        content_type = JSON_CONTENT_TYPE if is_json else XML_CONTENT_TYPE
        return _answer(200, content_type, answer, request_id)

    async def _end_tasks(self, _: web.Application) -> None:
        await self._actions.close()

    def _sender(self, request: web.Request, body: bytes) -> _Sender:
        """Return who sends a request.

        Raises:
            SqsError: its signature is missing, or wrong.
        """
        path, _, query = request.raw_path.partition("?")
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        signed = SignedRequest(request.method, path, query, headers, body)
        if self._access.is_open and "X-Amz-Target" in request.headers:
            return _Sender(ANYBODY, *_named_in(signed))
        # Without tokens, too: a page in a browser can send forms, but no such header.
        credential = read_credential(signed)
        caller = self._access.by_key(credential.access_key_id)
        if caller is None:
            raise SqsError(
                UNKNOWN_ACCESS_KEY,
                "The security token included in the request is invalid: access key "
                f"{credential.access_key_id[:80]} is not in the file of tokens.",
            )
        if not self._access.is_open:
            verify(signed, credential, caller.secret, self._wall_clock())
        wait = caller.seconds_to_wait(self._clock())
        if wait:
            raise SqsError(
                REQUEST_THROTTLED,
                f"token {caller.name}: read more requests than its requests_per_second; allowed: "
                f"another one in {wait:.3g} s",
            )
        return _Sender(caller, credential.access_key_id, credential.region)

    @web.middleware
    async def _answer_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001 (each is told in the protocol's own form)
            return _error_answer(request, self._told(request, error))

    def _told(self, request: web.Request, error: Exception) -> SqsError:
        """Return an error as SDKs know it."""
        if isinstance(error, SqsError):
            return error
        if isinstance(error, UnknownQueueError):
            return unknown_queue()
        if isinstance(error, RequestError):
            return SqsError(_FAULTS_BY_STATUS.get(error.status, SERIALIZATION), str(error))
        if isinstance(error, web.HTTPException):
            # aiohttp keeps the error with the request; the traceback's frames would keep the body.
            error.__traceback__ = None
            fault = _FAULTS_BY_STATUS.get(error.status, SERIALIZATION)
            return SqsError(fault, error.text or error.reason)
        for kind, fault in _FAULTS:
            if isinstance(error, kind):
                return SqsError(fault, str(error))
        if isinstance(error, web.RequestPayloadError):
            return SqsError(SERIALIZATION, "ill-formed request body")
        self._logger.error("SQS API: %s %s failed", request.method, request.path, exc_info=error)
        return SqsError(INTERNAL_FAILURE, "the server failed; its log says why")


def _named_in(request: SignedRequest) -> tuple[str, str]:
    """Return the access key and the region that a request names, which needs neither."""
    try:
        credential = read_credential(request)
    except SqsError:
        return "", DEFAULT_REGION
    return credential.access_key_id, credential.region


def _is_json(request: web.Request) -> bool:
    content_type = request.headers.get("Content-Type", "")
    return "X-Amz-Target" in request.headers or content_type.startswith("application/x-amz-json")


def _read_call(request: web.Request, body: bytes) -> Generator[None, None, Call]:
    if _is_json(request):
        return read_json_call(request.headers.get("X-Amz-Target", ""), body)
    return read_query_call(request.raw_path.partition("?")[2], body)


def _answer(status: int, content_type: str, body: bytes, request_id: str) -> web.Response:
    headers = {"x-amzn-RequestId": request_id, "Content-Type": content_type}
    return web.Response(status=status, body=body, headers=headers)


def _error_answer(request: web.Request, error: SqsError) -> web.Response:
    request_id = str(uuid.uuid4())
    status = error.fault.status
    if not _is_json(request):
        return _answer(status, XML_CONTENT_TYPE, write_xml_error(error, request_id), request_id)
    answer = _answer(status, JSON_CONTENT_TYPE, write_json_error(error), request_id)
    answer.headers["x-amzn-query-error"] = write_query_error_header(error)
    return answer
