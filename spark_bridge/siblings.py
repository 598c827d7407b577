"""The coordination of several sources of one query: they have one group, and commit their minimum.

Theory of operation. A self-join, a union and two ``load()``s have several sources in one query.
Spark runs each in a Python process of its own on the driver, and tells it neither the query nor the
checkpoint. But all of them share the folder of the driver's temporary files.

A query without a checkpoint needs a name to which its group belongs. The first source makes the
name and leaves it in the folder, where the next ones find it until a micro-batch runs: Spark asks
all sources where a batch ends before it runs the batch. From then on, the name is in the
checkpoint, in the position of each source.

Each source writes its position to a file that it has locked. A commit is the minimum over all
sources whose process lives.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.spark_bridge.offsets import Position, least

if sys.platform != "win32":
    import fcntl

_FOLDERS: Final = "SPARK_LOCAL_DIRS"
_OF_DRIVER: Final = "blockmgr-"
"""The beginning of the name of a folder that belongs to one driver, and is deleted with it."""


class Siblings:
    """The other sources of a source's query.

    Args:
        folder: the driver's folder; None where each source is alone.
        scope: the server and the group. Sources with another scope are ignored.
    """

    def __init__(self, folder: Path | None, scope: str) -> None:
        self._folder = folder
        self._scope = hashlib.sha256(scope.encode()).hexdigest()[:16]
        self._own = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._file: int | None = None

    @classmethod
    def of_driver(cls, scope: str) -> Siblings:
        """Return the source's siblings in the driver that has started this process."""
        folder = Path(os.environ.get(_FOLDERS, "").split(",")[0])
        is_own = folder.name.startswith(_OF_DRIVER) and folder.is_dir()
        return cls(folder if is_own and sys.platform != "win32" else None, scope)

    def new_name(self) -> str:
        """Return the name of a query that has none yet."""
        name = (
            f"{socket.gethostname()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-"
            f"{uuid.uuid4().hex[:8]}"
        )
        if self._folder is None:
            return name
        with self._alone():
            try:
                return self._path("new").read_text(encoding="utf-8")
            except FileNotFoundError:
                self._path("new").write_text(name, encoding="utf-8")
                return name

    def end_new(self) -> None:
        """Give the next query another name, as a micro-batch of this one runs."""
        if self._folder is not None:
            with self._alone():
                self._path("new").unlink(missing_ok=True)

    def hold(self, name: str, position: Position) -> None:
        """Tell the others that this source of a query reads nothing below a position any more."""
        if self._folder is None:
            return
        text = json.dumps([name, position.to_json()]).encode()
        with self._alone():
            if self._file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._path(f"of-{self._own}"), flags, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)

    def least(self, name: str, position: Position) -> Position:
        """Return the minimum of this source's new position and those of the other sources."""
        if self._folder is None:
            return position
        self.hold(name, position)
        found = [position]
        with self._alone():
            for path in self._folder.glob(self._path("of-*").name):
                if path.name == self._path(f"of-{self._own}").name:
                    continue
                other = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # its process lives
                    of, queues = json.loads(path.read_text(encoding="utf-8"))
                    if of == name:
                        found.append(Position.from_json(queues))
                else:
                    path.unlink(missing_ok=True)
                finally:
                    os.close(other)
        return least(found)

    def close(self) -> None:
        """Hold nothing any more."""
        if self._file is not None:
            with suppress(OSError):  # Spark may have deleted the folder
                self._path(f"of-{self._own}").unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder against other sources."""
        lock = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _path(self, name: str) -> Path:
        assert self._folder is not None  # noqa: S101 - asked before
        return self._folder / f"penstock-{self._scope}-{name}"
