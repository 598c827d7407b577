"""When a subscription holds on every node."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from penstock.plugins.cluster.announcer import Announcer
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.cluster.routes import OwnRoutes
from tests.broker.serving import until


class Engine:
    """Stores changes at once.

    Attributes:
        epoch: of the node.
        failure: nothing is wrong.
        n_changes: that were stored.
    """

    epoch = 1
    failure = None
    n_changes = 0

    def change(self, _ops: object, _number: int) -> asyncio.Future[Any]:
        """Store one."""
        self.n_changes += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return future


async def test_a_subscription_waits_for_all_nodes_and_for_what_they_had_retained_by_then() -> None:
    """Else a message that is retained elsewhere at this moment would reach the client in no way."""
    engine = Engine()
    announcer = Announcer(cast("ClusterEngine", engine), OwnRoutes())
    caught_up = asyncio.Event()

    async def catch_up() -> None:
        await caught_up.wait()

    announcer.catch_up = catch_up
    announcer.start()
    announcer.joined("b", 0)
    announcer.joined("c", 0)
    assert announcer.routed() is None
    announcer.subscribed("t/#")
    routed = announcer.routed()
    assert routed is not None
    waiting = asyncio.ensure_future(routed)
    await until(lambda: engine.n_changes)
    announcer.confirm("b", 1)
    await asyncio.sleep(0)
    caught_up.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    caught_up.clear()
    announcer.confirm("c", 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    caught_up.set()
    await waiting
    assert announcer.routed() is None
    announcer.close()
