"""What programs do when the kernel lets them open no more files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiomqtt

from broker.mqtt.packets import ConnAck, PingReq, PingResp
from tests.helpers.open_files import flooded, is_served, limit_of_files, no_free_files
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.scripted import SECONDS, open_client

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
        client = await open_client(("127.0.0.1", broker.port))
        assert isinstance(await client.receive(), ConnAck)
        async with flooded("127.0.0.1", broker.port, 60):
            client.send(PingReq())
            assert await client.receive() == PingResp()
        async with asyncio.timeout(SECONDS):
            while not await is_served(broker.port):
                pass
        await client.close()
