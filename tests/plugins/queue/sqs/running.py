"""The SQS API on a socket, over queues in memory."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from penstock.broker.config.checked_yaml import validate_config
from penstock.plugins.queue.access import QueueAccess
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.sqs.api import SqsApi
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.limits import HttpLimits
from penstock.plugins.web.service import HttpServer

LOGGER: Final = logging.getLogger("penstock.queue")


class RunningSqs(NamedTuple):
    """A running API.

    Attributes:
        url: of it.
        service: of its queues.
    """

    url: str
    service: QueueService


@asynccontextmanager
async def running_sqs(
    queues: Mapping[str, Any] | None = None,
    *,
    access: QueueAccess | None = None,
    wall_clock: Callable[[], float] = time.time,
    store: Any = None,
    max_request_bytes: int = 4 * 1024 * 1024,
    **keys: Any,
) -> AsyncIterator[RunningSqs]:
    """Serve queues of a policy file and those that requests create.

    Args:
        queues: keys of the policy file by name.
        access: callers and their keys; none are needed where it is missing.
        wall_clock: returns seconds since the Unix epoch.
        store: of the engine.
        max_request_bytes: of a body.
        keys: others of the plugin.
    """
    given = {"engine": "memory", "queues": dict(queues or {}), "sqs": "127.0.0.1:0"} | keys
    config = validate_config(QueueConfig, given, "policy.yaml", "plugins.queue")
    engine = LocalEngine(
        store or MemoryStore(), clock=time.monotonic, commit_max_messages=1_000, logger=LOGGER
    )
    service = QueueService(config, engine, time.monotonic, LOGGER)
    api = SqsApi(
        service,
        access or QueueAccess.open_to_all(),
        time.monotonic,
        LOGGER,
        Bodies(64 * 1024 * 1024, 30.0),
        Slicer(),
        wall_clock,
    )
    server = HttpServer(
        api.application(max_request_bytes), "plugins.queue.sqs", HttpLimits(), LOGGER
    )
    await service.open()
    try:
        url = await server.start("127.0.0.1:0")
        yield RunningSqs(url, service)
    finally:
        service.close_requests()
        await server.close()
        await service.close()
