"""Receives the bodies of requests in time, and limits the bytes of all of them together.

Theory of operation. Received bytes of a body count at once. Where all bodies together are too
large, a client is not read from until others have been handled: TCP's back-pressure stops it. The
oldest body is always read, or half-received bodies would wait for each other. So is the beginning
of each body, so that a small body does not wait for large ones that arrive slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from penstock.plugins.web.service import RequestError

BEGINNING_BYTES: Final = 4096
"""There is always room for so much of each body: most requests of a back end are smaller. A
thousand connections take 4 MB by it."""


class Bodies:
    """The bodies that one HTTP API is receiving or handling.

    Invariant: `received_bytes` is the sum of their bytes; at most `most_bytes`, one body and
    `BEGINNING_BYTES` of each other body.

    Attributes:
        received_bytes: the bytes that are received or handled at the moment.
    """

    def __init__(self, most_bytes: int, timeout_seconds: float) -> None:
        """Begin without a body."""
        self.received_bytes = 0
        self._most_bytes = most_bytes
        self._timeout_seconds = timeout_seconds
        self._readers: dict[object, None] = {}  # the oldest first
        self._changed = asyncio.Event()
        self._is_awaited = False

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """Receive a body, which counts until the block ends.

        Raises:
            RequestError: it was not complete in time, or is larger than the application allows.
        """
        body = bytearray()
        reader = object()
        self._readers[reader] = None
        try:
            await self._receive(request, body, reader)
            yield body
        finally:
            del self._readers[reader]
            self.received_bytes -= len(body)
            if self._is_awaited:
                self._is_awaited = False
                self._changed.set()
                self._changed = asyncio.Event()

    async def _receive(self, request: web.Request, body: bytearray, reader: object) -> None:
        most = request.client_max_size
        if (request.content_length or 0) > most:
            raise _too_large(request.content_length or 0, most)
        if request.content_length is not None and request.content.is_eof():
            # All of it came with the header: there is nothing to wait for.
            n_bytes = request.content_length
            if self._has_room(n_bytes, n_bytes, reader):
                body += request.content.read_nowait()
                self.received_bytes += len(body)
                return
        has_room = True
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while chunk := await request.content.readany():
                    n_bytes = len(body) + len(chunk)
                    if n_bytes > most:
                        raise _too_large(n_bytes, most)
                    while not (has_room := self._has_room(n_bytes, len(chunk), reader)):
                        self._is_awaited = True
                        await self._changed.wait()
                    self.received_bytes += len(chunk)
                    body += chunk
        except TimeoutError:
            if has_room:
                why = f"body: read {len(body)} bytes in {self._timeout_seconds:g} s; allowed: all"
                raise RequestError(why, 408) from None
            raise RequestError("too many bodies are being received; try again later", 503) from None

    def _has_room(self, body_bytes: int, more_bytes: int, reader: object) -> bool:
        """Say whether a body may grow."""
        if body_bytes <= BEGINNING_BYTES or self.received_bytes + more_bytes <= self._most_bytes:
            return True
        return next(iter(self._readers)) is reader


def _too_large(n_bytes: int, most: int) -> RequestError:
    return RequestError(f"body: read {n_bytes} bytes or more; allowed: {most}", 413)
