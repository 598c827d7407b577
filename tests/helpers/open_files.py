"""Limits of a process's open files, so that the kernel lets it open few or none."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable, Iterator

from penstock.broker.mqtt.packets import ConnAck, PingReq, PingResp
from tests.helpers.process import SECONDS
from tests.helpers.scripted import accepted_client, open_client


@contextlib.contextmanager
def no_free_files(pid: int) -> Iterator[None]:
    """Let a process open no file and accept no connection for a while; what it has open stays."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def limit_of_files(soft: int, hard: int) -> Callable[[], None]:
    """Return what `preexec_fn` of `subprocess.Popen` is to be for a process with these limits."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def flooded(host: str, port: int, n_connections: int) -> AsyncIterator[None]:
    """Open connections that say nothing, until one is closed for want of files; hold the others."""
    writers = []
    ends = []
    for _ in range(n_connections):
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        ends.append(asyncio.ensure_future(_end(reader)))
    try:
        async with asyncio.timeout(SECONDS):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*ends)


async def check_flood(port: int) -> None:
    """Check that a flood that takes all files of a program ends neither clients nor listener.

    A client that is there is served meanwhile, and others are once the flood has gone.
    """
    client = await accepted_client(port)
    async with flooded("127.0.0.1", port, 60):
        client.send(PingReq())
        assert await client.receive() == PingResp()
    async with asyncio.timeout(SECONDS):
        while not await is_served(port):
            pass
    await client.close()


async def _end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()


async def is_served(port: int) -> bool:
    """Return whether a client that connects is accepted."""
    client = await open_client(("127.0.0.1", port))
    try:
        connack = await client.receive()
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    finally:
        await client.close()
    return isinstance(connack, ConnAck) and connack.reason_code == 0
