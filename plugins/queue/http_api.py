"""The queue's HTTP API.

* ``GET /queues``, ``GET /queues/{queue}``: figures.
* ``POST /queues/{queue}/messages``: enqueue one message, or several under ``messages``; each
  with ``topic`` and ``payload`` (base64) or ``text``, perhaps ``publisher`` and ``properties``.
* ``POST /queues/{queue}/dequeue``: up to ``n_max`` messages, waiting up to ``wait_seconds``.
* ``POST /queues/{queue}/delete``: processed messages, by ``receipt_handles``.
* ``GET /queues/{queue}/offsets``: earliest and next offset of each physical queue.
* ``GET /queues/{queue}/physical/{number}/range?start=&end=&max_messages=``: messages with
  ``start <= offset < end``; the answer may be cut and is asked on from behind its last offset.
* ``POST /queues/{queue}/commit``: delete everything below ``offsets``.
* ``GET /health``: 200, or 503 while the storage refuses to write or to read; ``status`` is
  ``damaged`` where messages that could not be read are set aside.

Answers are JSON; messages come in the batch format (see `batch_format`) where the request
accepts ``application/vnd.penstock.batch``. An error is ``{"error": "..."}``.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from logging import Logger
from typing import Any

from aiohttp import web

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.plugins.queue.batch_format import write_deliveries
from penstock.plugins.queue.client import BATCH_CONTENT_TYPE, Batch, ReceivedMessage, read_batch
from penstock.plugins.queue.engine import (
    Engine,
    OffsetError,
    RangeGoneError,
    StorageError,
    StorageFullError,
)
from penstock.plugins.queue.http_requests import (
    MAX_OFFSET,
    MESSAGE_KEYS,
    read_handles,
    read_messages,
    read_object,
    read_offsets,
    seconds,
)
from penstock.plugins.queue.intake import Intake
from penstock.plugins.queue.logical_queue import BusyError, LogicalQueue, WrongReaderError
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.service import (
    CHECK_ROOM,
    RequestError,
    answering_errors,
    error_answer,
    integer,
    show,
)

MAX_ENQUEUE_MESSAGES = 10_000
MAX_DELETE_HANDLES = 10_000
MAX_RANGE_MESSAGES = 100_000

RANGES_AT_A_TIME = 4
"""Answers of some megabytes that are made concurrently. Each is handed over before the next one
begins, for which there may be no room then (`penstock.plugins.web.guard`)."""

_STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (RangeGoneError, 410),
    (OffsetError, 400),
    (WrongReaderError, 409),
    (BusyError, 429),
    (StorageFullError, 507),
    (StorageError, 503),
)


class _Outcome:
    """The receipt of the messages of one enqueue.

    Attributes:
        refused: how many were not stored.
        reason_code: of the last refusal.
        done: set when all messages are settled.
    """

    def __init__(self, n_messages: int) -> None:
        self.refused = 0
        self.reason_code = 0
        self.done = asyncio.Event()
        self._n_open = n_messages

    def settle(self, reason_code: int) -> None:
        """Take the outcome of one message."""
        if reason_code >= ReasonCode.UNSPECIFIED_ERROR:
            self.refused += 1
            self.reason_code = reason_code
        self._n_open -= 1
        if not self._n_open:
            self.done.set()


class QueueApi:
    """The routes and their answers.

    Args:
        queues: the logical queues by name.
        intakes: take each queue's HTTP enqueues.
        published: take what each queue gets from the broker.
        engine: asked for its health.
        clock: returns monotonic seconds.
        logger: gets what should not happen.
        bodies: of requests that are being received.
    """

    def __init__(
        self,
        queues: Mapping[str, LogicalQueue],
        intakes: Mapping[str, Intake],
        published: Mapping[str, Intake],
        engine: Engine,
        clock: Callable[[], float],
        logger: Logger,
        bodies: Bodies,
    ) -> None:
        self._bodies = bodies
        self._making_ranges = asyncio.Semaphore(RANGES_AT_A_TIME)
        self._queues = queues
        self._intakes = intakes
        self._published = published
        self._engine = engine
        self._clock = clock
        self._logger = logger

    def application(self, max_request_bytes: int) -> web.Application:
        """Return the API as an aiohttp application."""
        application = web.Application(
            client_max_size=max_request_bytes,
            middlewares=[answering_errors("queue API", self._logger, _STATUS)],
        )
        queue = "/queues/{queue}"
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/queues", self._list),
                web.get(queue, self._show),
                web.post(f"{queue}/messages", self._enqueue),
                web.post(f"{queue}/dequeue", self._dequeue),
                web.post(f"{queue}/delete", self._delete),
                web.get(f"{queue}/offsets", self._offsets),
                web.get(f"{queue}/physical/{{number}}/range", self._range),
                web.post(f"{queue}/commit", self._commit),
            ]
        )
        return application

    def _queue(self, request: web.Request) -> LogicalQueue:
        name = request.match_info["queue"]
        queue = self._queues.get(name)
        if queue is None:
            allowed = ", ".join(sorted(self._queues))
            raise RequestError(f"queue: read {show(name)}; allowed: {allowed}", 404)
        return queue

    async def _health(self, _: web.Request) -> web.Response:
        failure = self._engine.failure()
        if failure is not None:
            return error_answer(503, failure)
        aside = {name: n for name in self._queues if (n := self._engine.set_aside(name))}
        if aside:
            return web.json_response({"status": "damaged", "set_aside": aside})
        return web.json_response({"status": "ok"})

    async def _list(self, _: web.Request) -> web.Response:
        figures = [self._figures(queue) for queue in self._queues.values()]
        return web.json_response({"queues": figures})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._figures(self._queue(request)))

    def _figures(self, queue: LogicalQueue) -> dict[str, Any]:
        return queue.figures() | {
            "enqueued": {
                "published": asdict(self._published[queue.name].counts),
                "http": asdict(self._intakes[queue.name].counts),
            }
        }

    async def _enqueue(self, request: web.Request) -> web.Response:
        intake = self._intakes[self._queue(request).name]
        body = await read_object(request, self._bodies, MESSAGE_KEYS | {"messages"})
        messages = read_messages(body, self._clock(), MAX_ENQUEUE_MESSAGES)
        del body  # frees the text, which may be as large as all payloads, before the commit
        outcome = _Outcome(len(messages))
        for message in messages:
            intake.accept(message, outcome)
        await outcome.done.wait()
        if not outcome.refused:
            return web.json_response({"enqueued": len(messages)})
        status = 507 if outcome.reason_code == ReasonCode.QUOTA_EXCEEDED else 503
        why = self._engine.failure() or describe_reason_code(outcome.reason_code)
        stored = len(messages) - outcome.refused
        return error_answer(status, f"{outcome.refused} messages refused, {stored} stored: {why}")

    async def _dequeue(self, request: web.Request) -> web.Response:
        queue = self._queue(request)
        body = await read_object(request, self._bodies, frozenset({"n_max", "wait_seconds"}))
        config = queue.config
        n_max = integer("n_max", body.get("n_max", config.n_max), 1, config.n_max)
        wait = seconds("wait_seconds", body.get("wait_seconds", 0), config.max_wait_seconds)
        request.app[CHECK_ROOM]()
        deliveries = await queue.dequeue(n_max, wait)
        if _accepts_batch(request):
            return _batch_response(write_deliveries(deliveries))
        return web.json_response({"messages": [_delivery_json(one) for one in deliveries]})

    async def _delete(self, request: web.Request) -> web.Response:
        queue = self._queue(request)
        body = await read_object(request, self._bodies, frozenset({"receipt_handles"}))
        handles = read_handles(body, MAX_DELETE_HANDLES)
        unknown = await queue.delete(handles)
        return web.json_response({"deleted": len(handles) - len(unknown), "unknown": unknown})

    async def _offsets(self, request: web.Request) -> web.Response:
        offsets = self._queue(request).offsets()
        answer = {
            str(number): {"earliest": earliest, "next": behind}
            for number, (earliest, behind) in offsets.items()
        }
        return web.json_response({"physical_queues": answer})

    async def _range(self, request: web.Request) -> web.Response:
        queue = self._queue(request)
        query = request.query
        number = integer("physical queue", request.match_info["number"], 0, MAX_OFFSET, int)
        start = integer("start", query.get("start"), 0, MAX_OFFSET, int)
        end = integer("end", query.get("end"), 0, MAX_OFFSET, int)
        most = query.get("max_messages", str(MAX_RANGE_MESSAGES))
        max_messages = integer("max_messages", most, 1, MAX_OFFSET, int)
        max_messages = min(max_messages, MAX_RANGE_MESSAGES)
        async with self._making_ranges:
            request.app[CHECK_ROOM]()
            frames = await queue.read_range(number, start, end, max_messages)
            body = b"".join(frames)
            if _accepts_batch(request):
                return _batch_response(body)
            batch = read_batch(body)
            return web.json_response({"messages": _batch_json(batch)})

    async def _commit(self, request: web.Request) -> web.Response:
        queue = self._queue(request)
        body = await read_object(request, self._bodies, frozenset({"offsets"}))
        await queue.commit(read_offsets(body))
        return web.json_response({"committed": True})


def _accepts_batch(request: web.Request) -> bool:
    return BATCH_CONTENT_TYPE in request.headers.get("Accept", "")


def _batch_response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type=BATCH_CONTENT_TYPE)


def _delivery_json(delivery: ReceivedMessage) -> dict[str, Any]:
    fields = delivery._asdict()
    return fields | {"payload": base64.b64encode(delivery.payload).decode()}


def _batch_json(batch: Batch) -> Sequence[dict[str, Any]]:
    return [
        dict(zip(Batch._fields, row, strict=True)) | {"payload": base64.b64encode(row[2]).decode()}
        for row in zip(*batch, strict=True)
    ]
