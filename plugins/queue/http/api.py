"""The HTTP API of the queue: its routes, and the statuses of errors.

``GET /openapi.json`` describes it; the description stands in openapi.yaml.

Theory of admin. The API runs on the event loop that serves MQTT clients, as the engine does.
What takes longer than a millisecond, such as reading a body or writing an answer of some megabytes,
is divided into slices, of which one runs in a round of the loop
(`penstock.plugins.web.cooperative_work`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Final, TypeAlias

from aiohttp import web

from penstock.broker.errors import PenstockError
from penstock.plugins.queue.access import OperatorAccess, QueueAccess
from penstock.plugins.queue.engines.contract import (
    BackupExistsError,
    BackupFolderError,
    ExistsError,
    GroupKindError,
    IncarnationError,
    KeyOrderError,
    OffsetError,
    RangeGoneError,
    ReaderError,
    StorageError,
    StorageFullError,
    UnknownGroupError,
    UnknownQueueError,
)
from penstock.plugins.queue.http.admin_routes import AdminRoutes
from penstock.plugins.queue.http.message_routes import MessageRoutes
from penstock.plugins.queue.http.positions import Positions
from penstock.plugins.queue.http.publishing import Publishing
from penstock.plugins.queue.http.requests import RETRY_AFTER_SECONDS, AnswerError, Context, refusal
from penstock.plugins.queue.logical_queue import BusyError
from penstock.plugins.queue.publishing.batches import Batches, NoBrokerError, StageFullError
from penstock.plugins.queue.publishing.row_publisher import RelayLostError
from penstock.plugins.queue.publishing.stage_file import NoStageError, StageError, StageSpaceError
from penstock.plugins.queue.service import InUseError, QueueService, SettingError
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.service import answering_errors

_STATUS: Final[tuple[tuple[type[PenstockError], int], ...]] = (
    (UnknownQueueError, 404),
    (UnknownGroupError, 404),
    (SettingError, 400),
    (OffsetError, 400),
    (ExistsError, 409),
    (BackupExistsError, 409),
    (BackupFolderError, 400),
    (GroupKindError, 409),
    (KeyOrderError, 409),
    (InUseError, 409),
    (BusyError, 429),
    (StorageFullError, 507),
    (StorageError, 503),
    (NoStageError, 409),
    (StageFullError, 429),
    (StageSpaceError, 507),
    (StageError, 503),
    (NoBrokerError, 503),
    (RelayLostError, 503),
)

_Route: TypeAlias = tuple[str, str, Callable[[web.Request], Awaitable[web.StreamResponse]]]

_QUEUE: Final = "/queues/{queue}"
_GROUP: Final = f"{_QUEUE}/groups/{{group}}"

_LATER: Final = (429, 503)
"""The statuses after which a client should try again later."""


class QueueApi:
    """The HTTP API."""

    def __init__(
        self,
        service: QueueService,
        access: QueueAccess,
        clock: Callable[[], float],
        logger: Logger,
        bodies: Bodies,
        slicer: Slicer,
        batches: Batches | None = None,
    ) -> None:
        self._batches = batches
        self._context = Context(service, access, clock, bodies, slicer)
        self._logger = logger

    def application(self, max_request_bytes: int) -> web.Application:
        """Return the API as an aiohttp application."""
        application = self._empty(max_request_bytes)
        messages, positions = MessageRoutes(self._context), Positions(self._context)
        admin = AdminRoutes(self._context)
        publishing = Publishing(self._context, self._batches)
        # A path is looked up in this order: what is asked for most stands first.
        routes: list[_Route] = [
            ("POST", f"{_GROUP}/receive", messages.receive),
            ("POST", f"{_GROUP}/settle", messages.settle),
            ("POST", f"{_QUEUE}/messages", messages.store),
            ("GET", "/health", admin.health),
            ("GET", "/openapi.json", admin.openapi),
            *_management(admin, messages),
            ("GET", f"{_QUEUE}/position", positions.locate),
            ("POST", f"{_QUEUE}/plan", positions.plan),
            ("POST", "/plan", positions.plan_queues),
            ("GET", f"{_QUEUE}/physical/{{number}}/range", positions.range),
            ("POST", f"{_GROUP}/commit", positions.commit),
            ("POST", f"{_GROUP}/seek", positions.seek),
            ("POST", "/compact", admin.compact),
            ("POST", "/backup", admin.backup),
            ("PUT", "/stages/{writer}/{stage}/{place}", publishing.stage),
            ("DELETE", "/stages/{writer}", publishing.give_up),
            ("PUT", "/batches/{query}/{batch}", publishing.publish),
        ]
        for method, path, handler in routes:
            application.router.add_route(method, path, handler)
        return application

    def management(self, max_request_bytes: int) -> web.Application:
        """Return what operators need of it, for callers that the console has checked."""
        application = self._empty(max_request_bytes)
        context = self._context._replace(access=OperatorAccess())
        for method, path, handler in _management(AdminRoutes(context), MessageRoutes(context)):
            application.router.add_route(method, path, handler)
        return application

    def _empty(self, max_request_bytes: int) -> web.Application:
        return web.Application(
            client_max_size=max_request_bytes,
            middlewares=[
                _asking_to_wait,
                answering_errors("queue API", self._logger, _STATUS),
                _answering_more,
            ],
        )


def _management(admin: AdminRoutes, messages: MessageRoutes) -> list[_Route]:
    """Return the routes of operators, as (method, path, handler)."""
    return [
        ("GET", "/queues", admin.list),
        ("GET", _QUEUE, admin.show),
        ("PUT", _QUEUE, admin.put),
        ("PATCH", _QUEUE, admin.patch),
        ("DELETE", _QUEUE, admin.delete),
        ("GET", f"{_QUEUE}/groups", admin.list_groups),
        ("GET", _GROUP, admin.show_group),
        ("PUT", _GROUP, admin.put_group),
        ("PATCH", _GROUP, admin.patch_group),
        ("DELETE", _GROUP, admin.delete_group),
        ("GET", f"{_QUEUE}/peek", messages.peek),
        ("POST", f"{_QUEUE}/purge", admin.purge),
        ("POST", f"{_QUEUE}/redrive", admin.redrive),
    ]


@web.middleware
async def _asking_to_wait(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Say when a client may try again."""
    answer = await handler(request)
    if answer.status in _LATER and not answer.prepared:
        answer.headers.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    return answer


@web.middleware
async def _answering_more(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer errors that say more than their text."""
    try:
        return await handler(request)
    except AnswerError as error:
        return refusal(error)
    except RangeGoneError as error:
        return refusal(AnswerError(str(error), 410, {"earliest": error.earliest}))
    except ReaderError as error:
        return refusal(AnswerError(str(error), 409, {"reader": error.reader}))
    except IncarnationError as error:
        return refusal(
            AnswerError(str(error), 409, {"incarnation": error.incarnation, "queue": error.queue})
        )
