from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.policy import parse_policy
from penstock.broker.message import Message
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.plugin_loader import load_plugins
from penstock.plugins.queue.engine import EngineStartError
from penstock.plugins.queue.sink import QueuePlugin
from penstock.plugins.web.service import HttpStartError
from tests.plugins.queue.running import (
    LOGGER,
    LONG_SECONDS,
    Receipts,
    message,
    queue_config,
    running_plugin,
    until,
)

QUEUES = {
    "telemetry": {"topics": ["plant/+/temperature", "plant/#"], "physical_queues": 2},
    "pictures": {"topics": ["camera/#"]},
}


async def test_policy_file_brings_a_sink_for_each_queue() -> None:
    """The plugin is found by its short name and offers one route target a logical queue."""
    policy = parse_policy(
        """
        plugins:
          queue:
            engine: memory
            http: null
            queues:
              telemetry: {topics: [plant/+/temperature, plant/#]}
              pictures: {topics: [camera/#], sizes: large}
        """,
        "policy.yaml",
    )
    loaded = load_plugins(policy)
    (plugin,) = loaded.plugins
    assert isinstance(plugin, QueuePlugin)
    assert {sink.name: (list(sink.topic_filters), sink.sizes) for sink in loaded.sinks} == {
        "queue.telemetry": (["plant/+/temperature", "plant/#"], None),
        "queue.pictures": (["camera/#"], "large"),
    }


async def test_published_message_is_acknowledged_when_it_is_stored(tmp_path: Path) -> None:
    """The receipt is settled after the commit, and the message can be dequeued."""
    path = str(tmp_path / "queue.db")
    async with running_plugin(engine="sqlite", path=path, queues=QUEUES) as plugin:
        receipts = Receipts()
        sink = plugin.sinks[0]
        sink.accept(message(b"21.5", "plant/1/temperature", qos=1), receipts)
        assert (sink.counts.matched, sink.counts.queued, receipts.codes) == (1, 1, [])
        await until(partial(receipts.have, [ReasonCode.SUCCESS]))
        assert (sink.counts.stored, sink.counts.queued) == (1, 0)
        (received,) = await plugin.queues["telemetry"].dequeue(10, LONG_SECONDS)
        assert (received.topic, received.payload) == ("plant/1/temperature", b"21.5")
        assert await plugin.queues["pictures"].dequeue(10, 0) == []


async def test_messages_outlive_the_program(tmp_path: Path) -> None:
    """With `sqlite` what was acknowledged is there after a restart, received or not."""
    path = str(tmp_path / "queue.db")
    for payload in (b"first", b"second"):
        async with running_plugin(engine="sqlite", path=path, queues=QUEUES) as plugin:
            receipts = Receipts()
            plugin.sinks[0].accept(message(payload), receipts)
            await until(partial(receipts.have, [ReasonCode.SUCCESS]))
            await plugin.queues["telemetry"].dequeue(1, 0)
    async with running_plugin(engine="sqlite", path=path, queues=QUEUES) as plugin:
        received = await plugin.queues["telemetry"].dequeue(10, LONG_SECONDS)
        received += await plugin.queues["telemetry"].dequeue(10, 0)
        assert sorted(one.payload for one in received) == [b"first", b"second"]


async def test_close_stores_what_was_accepted(tmp_path: Path) -> None:
    """A publisher whose message was accepted before the close gets its answer."""
    path = str(tmp_path / "queue.db")
    receipts = Receipts()
    keys = {"engine": "sqlite", "path": path, "queues": QUEUES, "commit_wait_seconds": 1}
    async with running_plugin(**keys) as plugin:
        for _ in range(20):
            plugin.sinks[0].accept(message(), receipts)
    assert receipts.codes == [ReasonCode.SUCCESS] * 20
    assert plugin.sinks[0].counts.stored == 20
    await plugin.close()


async def test_durability_reaches_the_engine(tmp_path: Path) -> None:
    """`durability: normal` leaves flushing to the operating system."""
    path = str(tmp_path / "queue.db")
    keys = {"engine": "sqlite", "path": path, "queues": QUEUES, "durability": "normal"}
    async with running_plugin(**keys) as plugin:
        receipts = Receipts()
        plugin.sinks[0].accept(message(), receipts)
        await until(partial(receipts.have, [ReasonCode.SUCCESS]))
        connection = plugin.engine._store._writer  # type: ignore[attr-defined]
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)


async def test_pending_limits_reach_the_sinks() -> None:
    """`max_pending_messages` and `max_pending_bytes` hold over all queues."""
    keys = {"queues": QUEUES, "commit_wait_seconds": 1}
    async with running_plugin(**keys, max_pending_messages=1) as plugin:
        for sink in plugin.sinks:
            sink.accept(message(), None)
        assert plugin.sinks[1].counts.dropped == {"pending_full": 1}
    async with running_plugin(**keys, max_pending_bytes=10) as plugin:
        for sink in plugin.sinks:
            sink.accept(message(bytes(8)), None)
        assert plugin.sinks[1].counts.dropped == {"pending_full": 1}


async def test_commit_bounds_reach_the_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`commit_max_messages` ends the wait that `commit_wait_seconds` allows."""
    keys = {"queues": QUEUES, "commit_wait_seconds": 1, "commit_max_messages": 2}
    async with running_plugin(**keys) as plugin:
        receipts = Receipts()
        appended: list[int] = []
        append = plugin.engine.append

        def note(queue: str, number: int, messages: Sequence[Message]) -> asyncio.Future[Any]:
            appended.append(len(messages))
            return append(queue, number, messages)

        monkeypatch.setattr(plugin.engine, "append", note)
        for _ in range(2):
            plugin.sinks[1].accept(message(), receipts)
        assert appended == [1, 1]


async def test_old_messages_leave_by_themselves() -> None:
    """A queue with `retention_seconds` is cleaned while the program runs."""
    queues = {"telemetry": {"topics": ["plant/#"], "retention_seconds": 0.02}}
    async with running_plugin(queues=queues) as plugin:
        plugin.sinks[0].accept(message(), None)
        await until(lambda: plugin.queues["telemetry"].expired == 1)
        assert plugin.queues["telemetry"].figures()["messages"] == 0


async def test_address_in_use_is_told_and_frees_everything(tmp_path: Path) -> None:
    """A port that is taken ends the start with what to change; the file is free again."""
    path = str(tmp_path / "queue.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HttpStartError, match=f"plugins.queue.http: read {bind}; allowed: an"):
            async with running_plugin(engine="sqlite", path=path, http=bind):
                pass
    async with running_plugin(engine="sqlite", path=path):
        pass


async def test_file_in_use_is_told(tmp_path: Path) -> None:
    """Two programs cannot have one file."""
    keys = {"engine": "sqlite", "path": str(tmp_path / "queue.db")}
    async with running_plugin(**keys):
        with pytest.raises(EngineStartError, match="in use by process"):
            async with running_plugin(**keys):
                pass


async def test_without_http_nothing_listens() -> None:
    """`http: null` opens no socket."""
    async with running_plugin(http=None) as plugin:
        assert plugin.http_url is None


async def test_api_listens_on_both_address_families() -> None:
    """The URL names the port that was bound, in a form that clients take."""
    async with running_plugin(http="[::1]:0") as plugin:
        assert plugin.http_url is not None
        assert plugin.http_url.startswith("http://[::1]:")
        assert not plugin.http_url.endswith(":0")


def test_plugin_is_made_without_a_running_loop() -> None:
    """The broker makes plugins before its loop runs."""
    plugin = QueuePlugin.alone(queue_config(), LOGGER, "policy.yaml")
    assert [sink.name for sink in plugin.sinks] == ["queue.q"]
