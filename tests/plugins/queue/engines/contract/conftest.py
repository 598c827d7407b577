"""Every test here runs on each engine; a further engine adds itself to `STORAGES`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.clock import Clock
from tests.plugins.queue.engines.contract.harness import LiveClock, Running
from tests.plugins.queue.engines.contract.storages import (
    ClusterStorage,
    MemoryStorage,
    RedisStorage,
    SqliteStorage,
)

STORAGES: Final[dict[str, type[MemoryStorage | SqliteStorage | RedisStorage]]] = {
    "memory": MemoryStorage,
    "sqlite": SqliteStorage,
    "redis": RedisStorage,
    "cluster": ClusterStorage,
}


KINDS: Final = [
    pytest.param(name, marks=pytest.mark.more if issubclass(storage, RedisStorage) else ())
    for name, storage in STORAGES.items()
]
"""The engines. Those on Redis are of the second tier: `tests/plugins/queue/engines/redis`, and
`tests/system/test_queue_on_redis` with processes, show their main ways in the first."""

DURABLE: Final = [kind for kind in KINDS if STORAGES[str(kind.values[0])].is_durable]
FILES: Final = [name for name, storage in STORAGES.items() if storage.has_file]


@asynccontextmanager
async def opened(name: str, folder: Path, clock: Clock | None = None) -> AsyncIterator[Running]:
    """Open an engine for a block."""
    under_test = Running(STORAGES[name](folder), clock)
    await under_test.open()
    try:
        yield under_test
    finally:
        await under_test.close()


@pytest.fixture(params=KINDS)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """Open an engine of each kind, its clocks in the test's hands."""
    async with opened(request.param, tmp_path) as under_test:
        yield under_test


@pytest.fixture(params=DURABLE)
async def durable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """Open an engine of each kind whose messages survive it."""
    async with opened(request.param, tmp_path) as under_test:
        yield under_test


@pytest.fixture(params=FILES)
async def filed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """Open an engine of each kind that keeps a file."""
    async with opened(request.param, tmp_path) as under_test:
        yield under_test


@pytest.fixture(params=KINDS)
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """Open an engine of each kind on the machine's clock."""
    async with opened(request.param, tmp_path, LiveClock()) as under_test:
        yield under_test
