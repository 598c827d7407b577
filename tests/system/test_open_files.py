"""What programs do when the kernel lets them open no more files."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import aiomqtt

from tests.helpers.open_files import check_flood, flooded, is_served, limit_of_files, no_free_files
from tests.helpers.process import SECONDS, anonymous_policy, running_broker
from tests.helpers.scripted import accepted_client

CHANGES = "$SYS/broker/load/bytes/sent"
"""A figure that is another each time, as its own publication changes it."""


async def several(figures: AsyncIterator[aiomqtt.Message]) -> None:
    """Wait for some publications."""
    async with asyncio.timeout(SECONDS):
        for _ in range(4):
            await anext(figures)


async def test_a_moment_without_free_files_stops_neither_sys_nor_the_listener(
    tmp_path: Path,
) -> None:
    """Figures go on meanwhile for those who have a connection; afterwards others connect again."""
    with running_broker(anonymous_policy(sys_interval=0.05), tmp_path) as broker:
        async with aiomqtt.Client("127.0.0.1", broker.port, timeout=SECONDS) as watcher:
            await watcher.subscribe(CHANGES)
            figures = aiter(watcher.messages)
            with no_free_files(broker.process.pid):
                # The first may have been published before; the others come one a round.
                await several(figures)
            await several(figures)
            async with aiomqtt.Client("127.0.0.1", broker.port, timeout=SECONDS) as other:
                await other.publish("t")
        assert "failed" not in broker.log


async def test_a_flood_that_takes_all_files_does_not_end_the_listener(tmp_path: Path) -> None:
    """Who is there is served meanwhile, and others once the flood has gone."""
    with running_broker(anonymous_policy(), tmp_path, preexec_fn=limit_of_files(40, 40)) as broker:
        await check_flood(broker.port)


async def test_neither_http_nor_mqtt_takes_the_files_of_the_other(tmp_path: Path) -> None:
    """Floods of connections that say nothing, first to both HTTP APIs, then to the listener."""
    queue = {"engine": "memory", "http": "127.0.0.1:0", "queues": {"q": {"topics": ["q/#"]}}}
    plugins = {"queue": queue, "console": {"http": "127.0.0.1:0"}}
    limits = limit_of_files(256, 256)
    with running_broker(anonymous_policy(plugins), tmp_path, preexec_fn=limits) as broker:
        urls = [broker.queue_url, broker.console_url]
        async with contextlib.AsyncExitStack() as stack:
            for url in urls:
                port = urlsplit(url).port or 0
                await stack.enter_async_context(flooded("127.0.0.1", port, 200))
            assert await is_served(broker.port)
            for client in [await accepted_client(broker.port) for _ in range(20)]:
                await client.close()
        async with flooded("127.0.0.1", broker.port, 200):
            for url, path in zip(urls, ("/queues", "/api/clients"), strict=True):
                assert await status(f"{url}{path}") == 200
        assert "plugins.queue.http: 1 connections above the limit of 32 refused" in broker.log


async def status(url: str) -> int:
    """Return the status of an answer, once there is a place for who asks."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status != 503:
                        return answer.status
            except aiohttp.ClientConnectionError:
                continue
