from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.runs.broker_process import RunningBroker
from penstock.plugins.queue.append_buffer import Stored
from penstock.plugins.queue.engines.contract import (
    AppendResult,
    NewMessage,
    StorageError,
    UnknownQueueError,
)
from penstock.plugins.queue.logical_queue import ReceiveRequest
from penstock.plugins.queue.service import QueueService
from penstock.plugins.queue.slow_appends import SlowAppends
from penstock.plugins.queue.strategies.slowdown_exclusion import SlowdownExclusion
from tests.helpers.redis_server import RedisProcess, running_cluster
from tests.plugins.queue.running import LOGGER, message, running_plugin, sys_topics, until

STORED = AppendResult([0], (), {})
N_QUEUES = 30


def make(seconds: float = 60.0) -> tuple[SlowAppends, SlowdownExclusion[int]]:
    """Return what times the appends of two physical queues."""
    exclusion = SlowdownExclusion(range(2), seconds)
    return SlowAppends("q", exclusion, seconds, LOGGER), exclusion


def append() -> asyncio.Future[AppendResult]:
    """Return an append that is under way."""
    return asyncio.get_running_loop().create_future()


async def test_a_physical_queue_that_fails_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once in the log, and again when it is back; counted."""
    caplog.set_level(logging.INFO)
    slow, exclusion = make()
    for _ in range(2):
        refused = append()
        slow.sent(1, refused)
        refused.set_exception(StorageError("too few replicas"))
        await asyncio.sleep(0)
    assert (slow.excluded, slow.counts.exclusions) == ([1], 1)
    assert caplog.messages == [
        "queue q: physical queue 1 is left out: it is away, fails, or takes over 60 s to store"
    ]
    stored = append()
    slow.sent(1, stored)
    stored.set_result(STORED)
    await asyncio.sleep(0)
    assert (slow.excluded, slow.counts.exclusions) == ([], 1)
    assert caplog.messages[1:] == ["queue q: physical queue 1 is quick again"]
    assert exclusion.counts.failed == 2
    slow.close()


async def test_what_is_new_is_left_out_where_it_is_known_to_be_away() -> None:
    """The engine knew of the physical queue before: it tells nothing new."""
    slow, _ = make()
    away = frozenset({1, 2})
    slow.note_away(away)
    slow.change_physical_queues(3)
    slow.note_away(away)
    assert slow.excluded == [1, 2]
    slow.close()


async def test_what_takes_too_long_is_left_out_while_it_is_under_way() -> None:
    """Nothing has to end for it: a timer looks."""
    slow, _ = make(0.01)
    slow.sent(0, append())
    await until(lambda: slow.excluded == [0])
    slow.close()


async def test_a_queue_that_is_gone_is_not_slow() -> None:
    """The node has answered."""
    slow, _ = make()
    gone = append()
    slow.sent(0, gone)
    gone.set_exception(UnknownQueueError("q"))
    await asyncio.sleep(0)
    assert slow.excluded == []
    slow.close()


async def store(service: QueueService, texts: list[str]) -> Sequence[Stored]:
    """Store messages by one request."""
    return await service.queue("q").buffer.store(
        [NewMessage(message(text.encode())) for text in texts]
    )


async def receive_all(service: QueueService, n_messages: int) -> Counter[str]:
    """Receive so many messages and what else is there, and acknowledge none."""
    found = Counter[str]()
    wait_seconds = 60.0  # what a node has that has just come back may be told later
    while received := await service.queue("q").receive(
        "default", ReceiveRequest(100, wait_seconds)
    ):
        found.update(one.payload.decode() for one in received)
        wait_seconds = 60.0 if found.total() < n_messages else 0.0
    return found


class Frozen:
    """A node that stands still for a while."""

    def __init__(self, node: RedisProcess, folder: Path) -> None:
        del folder
        self._pid = node.process.pid
        os.kill(self._pid, signal.SIGSTOP)

    def go_on(self, stack: ExitStack) -> None:
        """Let it go on."""
        del stack
        os.kill(self._pid, signal.SIGCONT)


class Killed:
    """A node that ends at once, and begins again with what it has on the disk."""

    def __init__(self, node: RedisProcess, folder: Path) -> None:
        self._port, self._folder = node.port, folder
        node.process.kill()
        node.process.wait()

    def go_on(self, stack: ExitStack) -> None:
        """Start it again."""
        command = ["redis-server", str(self._folder / "redis.conf")]
        broker = RunningBroker("redis-server", command, self._folder)
        stack.callback(broker.stop)
        broker.wait_until_listening(self._port)


SETTINGS = (
    "cluster-node-timeout 600000",  # nobody declares a node dead
    "cluster-require-full-coverage no",
    "appendonly yes",
    "appendfsync always",
)


@pytest.mark.parametrize("fault", [Frozen, Killed])
async def test_a_node_that_is_away_holds_up_no_later_message(
    fault: type[Frozen | Killed], tmp_path: Path
) -> None:
    """Its physical queues are left out; what is under way to it is stored at last, and once."""
    with ExitStack() as stack:
        nodes = stack.enter_context(running_cluster(tmp_path, *SETTINGS))
        redis: dict[str, Any] = {
            "cluster": [f"127.0.0.1:{node.port}" for node in nodes],
            "timeout_seconds": 300,
            "retry_seconds": 600,
            "slowdown_detection_time": 0.1,
        }
        # Of so many physical queues, some are on each node.
        keys = {"physical_queues": N_QUEUES}
        async with running_plugin(engine="redis", redis=redis, queues={"q": keys}) as plugin:
            service, sent, tasks = (
                plugin.service,
                list[str](),
                list[asyncio.Task[Sequence[Stored]]](),
            )

            def send() -> asyncio.Task[Sequence[Stored]]:
                texts = [str(len(sent) + number) for number in range(N_QUEUES)]
                sent.extend(texts)
                tasks.append(asyncio.create_task(store(service, texts)))
                return tasks[-1]

            await send()
            away = fault(nodes[1], tmp_path / "node1")
            try:
                held_up = send()
                # A request has a message for each of them, as long as none is left out.
                while not (await asyncio.wait([send()], timeout=0.2))[0]:
                    assert not held_up.done()
                assert service.figures("q")["enqueued"]["excluded"]
                # Nor does it hold up who receives.
                received = await service.queue("q").receive("default", ReceiveRequest(100, 600.0))
                assert received
                handles = [one.receipt_handle for one in received]
                assert await service.settle("q", "default", "ack", handles) == {}
            finally:
                await asyncio.to_thread(away.go_on, stack)
            await asyncio.wait(tasks)
            while service.figures("q")["enqueued"]["excluded"]:
                await send()
            figures = sys_topics(plugin)
            assert figures["q/excluded"] == "0"
            assert figures["q/exclusions"] == figures["q/inclusions"] != "0"
            outcomes = [each for task in tasks for each in await task]
            assert {each.reason for each in outcomes} == {""}
            assert {each.physical_queue for each in outcomes} == set(range(N_QUEUES))
            settled = Counter(one.payload.decode() for one in received)
            left = await receive_all(service, len(sent) - settled.total())
            assert left + settled == Counter(sent)
