"""What the tests of the HTTP API share: a server with an engine in memory, and requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.extensions import LocalClients
from penstock.plugins.queue.access import QueueAccess
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.http.api import QueueApi
from penstock.plugins.queue.publishing.batches import Batches
from penstock.plugins.queue.service import QueueService
from penstock.plugins.web.bodies import Bodies
from penstock.plugins.web.cooperative_work import Slicer
from penstock.plugins.web.service import HttpServer
from penstock.plugins.web.tls import ServerTls

LOGGER: Final = logging.getLogger("penstock.queue")

LONG_SECONDS: Final = 60.0
"""Longer than anything here takes; only a test that fails waits for it."""

QUEUES: Final[Mapping[str, Any]] = {
    "work": {"physical_queues": 2, "n_max": 10},
    "log": {"physical_queues": 1, "groups": {"spark": {"kind": "offsets"}}},
}


class Answer(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Serving:
    """A server that runs.

    Attributes:
        url: of the API.
        service: behind it.
        store: of the engine.
        batches: None without `publishing`.
        token: sent with each request that names no other; "" for none.
        tls: of the client; None for plain connections.
    """

    url: str
    service: QueueService
    store: MemoryStore
    batches: Batches | None = None
    token: str = ""
    tls: ssl.SSLContext | None = None

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        address = urlsplit(self.url).netloc
        if self.tls is not None:
            return http.client.HTTPSConnection(address, timeout=LONG_SECONDS, context=self.tls)
        return http.client.HTTPConnection(address, timeout=LONG_SECONDS)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request over a connection of its own.

        Args:
            method: of HTTP.
            path: with the query.
            body: bytes, or a JSON value; None for none.
            headers: besides Content-Type and Authorization.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"

        def send() -> Answer:
            connection = self.connection()
            connection.request(method, path, data, sent | dict(headers or {}))
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
            connection.close()
            return answer

        return await asyncio.to_thread(send)

    async def store_rows(self, queue: str, *texts: str, **more: Any) -> None:
        """Store a message for each text."""
        rows: list[dict[str, Any]] = [{"topic": "a", "text": text} | more for text in texts]
        answer = await self.ask("POST", f"/queues/{queue}/messages", {"messages": rows})
        assert (answer.status, answer.json["stored"]) == (200, len(texts))

    async def receive(self, queue: str = "work", **body: Any) -> list[dict[str, Any]]:
        """Receive messages of the default group."""
        answer = await self.ask("POST", f"/queues/{queue}/groups/default/receive", body)
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json["messages"]
        return found


@asynccontextmanager
async def serving(
    access: QueueAccess | None = None,
    tls: ServerTls | None = None,
    clients: LocalClients | None = None,
    **keys: Any,
) -> AsyncIterator[Serving]:
    """Start a server with `QUEUES`.

    Args:
        access: None for that of callers without tokens.
        tls: None for plain connections.
        clients: of a broker; None for a gateway alone.
        keys: of the policy file, in place of others.
    """
    given = {"engine": "memory", "http": "127.0.0.1:0", "queues": QUEUES} | keys
    config = validate_config(QueueConfig, given, "policy.yaml", "plugins.queue")
    store = MemoryStore()
    engine = LocalEngine(store, commit_max_messages=1000, logger=LOGGER)
    service = QueueService(config, engine, time.monotonic, LOGGER)
    limits = config.http_limits
    bodies = Bodies(limits.body_bytes, limits.body_timeout_seconds)
    access = access or QueueAccess.open_to_all()
    batches = None
    if config.publishing is not None:
        batches = Batches(config.publishing, "normal", clients, LOGGER, time.monotonic, time.time)
    api = QueueApi(service, access, time.monotonic, LOGGER, bodies, Slicer(), batches)
    application = api.application(config.max_request_bytes)
    server = HttpServer(application, "plugins.queue.http", limits, LOGGER, tls=tls)
    await service.open()
    if batches is not None:
        await batches.open()
        if clients is not None:
            await batches.begin()
    try:
        url = await server.start(config.http or "")
        yield Serving(url, service, store, batches)
    finally:
        service.close_requests()
        await server.close()
        await service.close()
        if batches is not None:
            await batches.close()
