"""What the queue's tests share: messages, receipts, running services and plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.message import Message
from penstock.broker.reports.sys_topics import topics_of
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engines.contract import NewMessage
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.plugin import QueuePlugin
from penstock.plugins.queue.service import QueueService
from tests.helpers.clock import Clock

LOGGER: Final = logging.getLogger("penstock.queue")
ENGINES: Final = ("memory", "sqlite")
LONG_SECONDS: Final = 60.0
"""Longer than anything here takes; only a test that fails waits for it."""
UNTIL_SECONDS: Final = 600.0
"""Longest wait on a machine that is busy with something else; shorter than the limit of a test."""


class Receipts:
    """Takes what became of messages.

    Attributes:
        codes: reason codes in the order in which they came.
        deduplication_id: of each message; b"" for none.
        is_repeat: whether each may be a duplicate.
    """

    def __init__(self, deduplication_id: bytes = b"", *, is_repeat: bool = False) -> None:
        self.codes: list[int] = []
        self.deduplication_id = deduplication_id
        self.is_repeat = is_repeat

    def settle(self, reason_code: int) -> None:
        """Note the outcome of one message."""
        self.codes.append(reason_code)

    def have(self, codes: Sequence[int]) -> bool:
        """Say whether these and no others have come."""
        return self.codes == list(codes)


class LostPayload:
    """A payload whose store cannot read it back."""

    def __len__(self) -> int:
        return 4

    def read(self) -> bytes:
        """Fail as a broken disk does."""
        raise OSError("gone")


def message(payload: bytes = b"21.5", topic: str = "plant/1", **more: Any) -> Message:
    """Return a message that arrives when a `Clock` begins, unless `arrived_at` is given."""
    more.setdefault("arrived_at", Clock().now)
    return Message(topic, payload, **more)


def queue_config(**keys: Any) -> QueueConfig:
    """Check keys as the broker does; `q`, memory and a free port where nothing else is given."""
    given = {"engine": "memory", "http": "127.0.0.1:0", "queues": {"q": {}}} | keys
    return validate_config(QueueConfig, given, "policy.yaml", "plugins.queue")


@asynccontextmanager
async def running_service(
    clock: Callable[[], float] | None = None, folder: Path | None = None, **keys: Any
) -> AsyncIterator[QueueService]:
    """Open a service with one queue `q`, in memory or, with a folder, in SQLite there.

    Args:
        clock: of requests and engine; one that stands still where none is given.
        folder: for the file.
        keys: of the queue.
    """
    config = queue_config(queues={"q": keys})
    clock = clock or Clock()
    store = MemoryStore() if folder is None else SqliteStore(str(folder / "queue.db"), "normal")
    engine = LocalEngine(store, clock=clock, commit_max_messages=1000, logger=LOGGER)
    service = QueueService(config, engine, clock, LOGGER)
    await service.open()
    try:
        yield service
    finally:
        await service.close()


async def put(service: QueueService, *payloads: bytes, queue: str = "q", **more: Any) -> None:
    """Have messages stored."""
    outcomes = await service.queue(queue).buffer.store(
        [NewMessage(message(each, **more)) for each in payloads]
    )
    assert [outcome.reason for outcome in outcomes] == [""] * len(payloads)


async def put_at(service: QueueService, number: int, *payloads: bytes, **more: Any) -> None:
    """Have messages stored in one physical queue of `q`."""
    for payload in payloads:
        assert service.engine.reserve("q", 1, len(payload))
    await service.engine.append(
        "q", number, [NewMessage(message(payload, **more)) for payload in payloads]
    )


@asynccontextmanager
async def running_plugin(**keys: Any) -> AsyncIterator[QueuePlugin]:
    """Start the plugin with keys of the policy file."""
    plugin = QueuePlugin.alone(queue_config(**keys), LOGGER, "policy.yaml")
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.close()


async def until(is_true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(UNTIL_SECONDS):
        while True:
            answer = is_true()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


def sys_topics(plugin: QueuePlugin) -> dict[str, str]:
    """Return the plugin's figures by their topics below ``$SYS/broker/penstock/queue/``."""
    return {
        topic.removeprefix("penstock/queue/"): value
        for metric in plugin.figures()
        for topic, value in topics_of("queue", metric)
    }
