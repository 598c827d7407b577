"""The supervisor of this process, as one of the broker's workers sees it.

The two talk in messages of systemd's protocol (see `penstock.broker.process.service_manager`), over
a pair of sockets that ends with either of them. What is not systemd's begins with ``X_``:

* ``X_RELOAD=1``: to a worker: reload; to the supervisor: have all workers reload.
* ``X_RELOADED=JSON``: the answer, a `Reloaded`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

from penstock.broker.operations_contract import Reloaded
from penstock.broker.process.service_manager import ServiceManager

MOST_BYTES: Final = 128 * 1024
"""Of a message; the kernel sends no more at once."""
_MOST_FAULTS_BYTES: Final = 32 * 1024
"""Of the faults in an account of a reload: each line of a file may be one."""

RELOAD: Final = "X_RELOAD"
RELOADED: Final = "X_RELOADED"


class Supervised(ServiceManager):
    """The supervisor of this process, which is told what a service manager is told."""

    def __init__(self, link: int, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take the descriptor of this end of the pair of sockets.

        Raises:
            OSError: it is no socket.
        """
        super().__init__(environment)
        self._link = self._socket = socket.socket(fileno=link)
        self._link.setblocking(False)
        self._asked: list[asyncio.Future[Reloaded]] = []
        self._reloading: set[asyncio.Task[None]] = set()

    def follow(
        self,
        loop: asyncio.AbstractEventLoop,
        reload: Callable[[], Awaitable[Reloaded]],
        stop: Callable[[], object],
    ) -> None:
        """Reload whenever the supervisor asks for it, and stop when it has ended."""

        def read() -> None:
            said = receive(self._link)
            if not said:
                loop.remove_reader(self._link)
                stop()
                return
            if RELOAD in said:
                task = loop.create_task(self._reload(reload), name="reload for the supervisor")
                self._reloading.add(task)
                task.add_done_callback(self._reloading.discard)
            if RELOADED in said:
                asked, self._asked = self._asked, []
                for each in asked:
                    each.set_result(from_json(said[RELOADED]))

        loop.add_reader(self._link, read)

    async def _reload(self, reload: Callable[[], Awaitable[Reloaded]]) -> None:
        try:
            done = await reload()
        except Exception as error:  # noqa: BLE001 (whatever it is, the supervisor waits)
            done = Reloaded(failed={"reload": f"{type(error).__name__}: {error}"})
        self.tell(f"{RELOADED}={to_json(done)}")

    async def reload_all(self) -> Reloaded:
        """Have all workers reload; return one account."""
        asked: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self.tell(f"{RELOAD}=1")
        return await asyncio.shield(asked)


def receive(link: socket.socket) -> dict[str, str]:
    """Return the states of the next message by name; none where the other side has ended."""
    data = b""
    with contextlib.suppress(ConnectionError):  # it had not read everything
        data = link.recv(MOST_BYTES)
    return dict(line.partition("=")[::2] for line in data.decode().split("\n")) if data else {}


def to_json(done: Reloaded) -> str:
    """Return an account of a reload as JSON; of very many faults the first ones, and how many."""
    failed: dict[str, str] = {}
    n_bytes = 0
    for key, why in done.failed.items():
        n_bytes += len(json.dumps((key, why)))
        if n_bytes > _MOST_FAULTS_BYTES:
            failed["further"] = f"{len(done.failed) - len(failed):,}: the log has them"
            break
        failed[key] = why
    return json.dumps([*map(list, done[:3]), failed])


def from_json(text: str) -> Reloaded:
    """Return an account of a reload."""
    return Reloaded(*json.loads(text))
