"""What the queue's tests share: messages, receipts, running engines and plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.message import Message
from penstock.plugins.queue.config import QueueConfig
from penstock.plugins.queue.engine import Engine, QueueLayout
from penstock.plugins.queue.engine_local import LocalEngine
from penstock.plugins.queue.engine_memory import MemoryStore
from penstock.plugins.queue.engine_sqlite import SqliteStore
from penstock.plugins.queue.sink import QueuePlugin
from penstock.plugins.queue.store import Store
from tests.helpers.clock import Clock

LOGGER: Final = logging.getLogger("penstock.queue")
ENGINES: Final = ("memory", "sqlite")
LONG_SECONDS: Final = 30.0
"""Longer than anything here takes; only a test that fails waits for it."""


class Receipts:
    """Takes what became of messages.

    Attributes:
        codes: reason codes in the order in which they came.
    """

    def __init__(self) -> None:
        self.codes: list[int] = []

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


def store(kind: str, folder: Path) -> Store:
    """Return a store of one of `ENGINES`, not opened."""
    return MemoryStore() if kind == "memory" else SqliteStore(str(folder / "queue.db"))


@asynccontextmanager
async def running_engine(
    of: Store,
    queues: Mapping[str, int] | None = None,
    *,
    clock: Callable[[], float] | None = None,
    visibility_timeout: float = 30.0,
) -> AsyncIterator[LocalEngine]:
    """Open an engine with queues by name and number of physical queues; `q` with one by default.

    Its clock stands still unless one is given.
    """
    engine = LocalEngine(of, clock=clock or Clock(), commit_max_messages=1000, logger=LOGGER)
    layouts = {name: QueueLayout(n, visibility_timeout) for name, n in (queues or {"q": 1}).items()}
    await engine.open(layouts)
    try:
        yield engine
    finally:
        await engine.close()


async def store_messages(
    engine: Engine, payloads: Sequence[bytes], number: int = 0, **more: Any
) -> None:
    """Have messages stored in a physical queue of `q`."""
    await engine.append("q", number, [message(payload, **more) for payload in payloads])


def queue_config(**keys: Any) -> QueueConfig:
    """Check keys as the broker does; `q`, memory and a free port where nothing else is given."""
    given = {"engine": "memory", "http": "127.0.0.1:0", "queues": {"q": {}}} | keys
    return validate_config(QueueConfig, given, "policy.yaml", "plugins.queue")


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
    async with asyncio.timeout(LONG_SECONDS):
        while True:
            answer = is_true()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)
