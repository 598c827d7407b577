"""The storages that the contract suite runs on."""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path
from typing import Final

from penstock.broker.durable.storage_clock import Boot, Clocks
from penstock.plugins.queue.engines.contract import Engine
from penstock.plugins.queue.engines.local import LocalEngine
from penstock.plugins.queue.engines.memory import MemoryStore
from penstock.plugins.queue.engines.redis.engine import RedisEngine
from penstock.plugins.queue.engines.sqlite import SqliteStore
from penstock.plugins.queue.engines.store import Store
from penstock.plugins.redis.server import RedisServer
from tests.helpers.clock import Clock
from tests.helpers.redis_server import shared_cluster, shared_redis

LOGGER: Final = logging.getLogger("penstock.queue")


class LocalStorage:
    """What engines of one process have in common."""

    def __init__(self) -> None:
        self._n_boots = 0

    def reboot(self) -> None:
        """Let the machine have another boot identifier."""
        self._n_boots += 1

    def _engine(self, store: Store, clock: Clock, wall: Clock) -> Engine:
        boot_id = f"boot-{self._n_boots}"
        clocks = Clocks(monotonic=clock, wall=wall, boot=lambda: Boot(boot_id, clock()))
        return LocalEngine(store, clocks=clocks, commit_max_messages=1000, logger=LOGGER)


class MemoryStorage(LocalStorage):
    """Nothing outlives the engine.

    Args:
        folder: not used.
    """

    is_durable = False
    keeps_leases = False
    has_file = False

    def __init__(self, folder: Path) -> None:
        super().__init__()
        del folder

    def engine(self, clock: Clock, wall: Clock) -> Engine:
        """Return an engine in memory."""
        return self._engine(MemoryStore(), clock, wall)

    def kill(self) -> None:
        """Lose everything."""

    def of_backup(self, path: Path) -> MemoryStorage:
        """Refuse: this engine makes no backups."""
        raise NotImplementedError(path)


class SqliteStorage(LocalStorage):
    """A SQLite file.

    Args:
        folder: for the file.
        file: in another place.
    """

    is_durable = True
    keeps_leases = False
    has_file = True

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._file = file or folder / "queue.db"
        self._n_kills = 0

    def engine(self, clock: Clock, wall: Clock) -> Engine:
        """Return an engine on the file."""
        return self._engine(SqliteStore(str(self._file), "normal"), clock, wall)

    def kill(self) -> None:
        """Go on with a copy of what the file and its log hold at this moment.

        The kernel keeps all that a killed process has written: the copy is what it leaves. The
        process that is not really killed keeps the old files.
        """
        self._n_kills += 1
        killed = self._folder / f"killed{self._n_kills}"
        killed.mkdir()
        # The log behind the file: what moves from the one to the other meanwhile is in both.
        for name in (self._file.name, f"{self._file.name}-wal"):
            file = self._file.with_name(name)
            if file.exists():
                shutil.copy(file, killed)
        self._file = killed / self._file.name

    def of_backup(self, path: Path) -> SqliteStorage:
        """Return the storage of a backup."""
        return SqliteStorage(path.parent, path)


class RedisStorage:
    """Keys of one test on a real server, whose time goes on whatever becomes of engines.

    Args:
        folder: not used.
    """

    is_durable = True
    keeps_leases = True
    has_file = False

    def __init__(self, folder: Path) -> None:
        del folder
        self._prefix = f"test-{uuid.uuid4().hex}"
        self._clock: Clock | None = None
        self._shift = 0.0

    def engine(self, clock: Clock, wall: Clock) -> Engine:
        """Return an engine on the keys; the server's time passes as that of the test."""
        if self._clock is not None:
            self._shift += self._clock() - clock()
        self._clock = clock
        shift = self._shift
        clocks = Clocks(monotonic=clock, wall=wall)
        return RedisEngine(
            self._server(), clocks=clocks, server_clock=lambda: clock() + shift, logger=LOGGER
        )

    def _server(self) -> RedisServer:
        return RedisServer(port=shared_redis(), prefix=self._prefix)

    def kill(self) -> None:
        """Leave what is there: the server lives on."""

    def reboot(self) -> None:
        """Leave the server's time alone: it is another machine."""

    def of_backup(self, path: Path) -> RedisStorage:
        """Refuse: this engine makes no backups."""
        raise NotImplementedError(path)


class ClusterStorage(RedisStorage):
    """The engine on a cluster, where each physical queue may be on another node."""

    def _server(self) -> RedisServer:
        return RedisServer(cluster=shared_cluster(), prefix=self._prefix)
