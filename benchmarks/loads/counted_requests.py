"""A counter of HTTP requests to a server, which forwards clients' connections unread.

Clients of HTTP/1.1 send the next request of a connection when they have the answer to the last one.
So a request begins with the first bytes that a client sends, and with those that it sends after
bytes of the server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

READ_BYTES: Final = 1 << 18


class RequestCounter:
    """A counter of requests; a thread of its own forwards the connections.

    Attributes:
        url: the URL for the clients.
        requests: the number of requests so far.
    """

    def __init__(self, port: int) -> None:
        """Make it."""
        self.url = ""
        self.requests = 0
        self._port = port
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Forward while the block runs."""
        self._thread.start()
        self._is_ready.wait()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = asyncio.start_server(self._forward, "127.0.0.1", 0, limit=READ_BYTES)
        server = self._loop.run_until_complete(listening)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._is_ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _forward(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        is_answered = True

        async def requests() -> None:
            nonlocal is_answered
            while data := await from_client.read(READ_BYTES):
                self.requests += is_answered
                is_answered = False
                to_server.write(data)
                await to_server.drain()
            to_server.close()

        async def answers() -> None:
            nonlocal is_answered
            while data := await from_server.read(READ_BYTES):
                is_answered = True
                to_client.write(data)
                await to_client.drain()
            to_client.close()

        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(requests(), answers())
        except OSError:
            to_client.close()  # one of the two has gone
