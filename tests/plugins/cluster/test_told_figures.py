"""What nodes tell of themselves, on a real server."""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace
from typing import Any, Final

from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.cluster.told_figures import ToldFigures
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import shared_redis

LOGGER: Final = logging.getLogger("penstock.cluster")

SYS: Final = {
    "version": "Penstock 1",
    "clients/connected": "2",
    "clients/maximum": "3",
    "messages/received": "10",
    "messages/stored": "7",
    "load/connections/1min": "1.50",
}


async def test_figures_of_all_members_are_added() -> None:
    """Those of each node alone are not, nor those of a node that has left."""
    prefix, members = f"test-{uuid.uuid4().hex}", ["a", "b", "c"]
    told: dict[str, ToldFigures] = {}
    for name in members:
        engine = ClusterEngine(RedisServer(port=shared_redis(), prefix=prefix), "c", name, LOGGER)
        await engine.open()
        await engine.join(name)
        own: dict[str, Any] = {"clients": 2}
        told[name] = ToldFigures(engine, members, lambda own=own: own, LOGGER)  # type: ignore[misc]
        told[name].sys_topics(SYS)
        await told[name].tell()
        if name != "c":
            await engine.close()
    assert told["c"].sys_topics(SYS) == SYS | {
        "clients/connected": "6",
        "clients/maximum": "6",
        "messages/received": "30",
        "load/connections/1min": "4.50",
    }
    members.remove("b")
    assert told["c"].sys_topics(SYS | {"clients/connected": "1"})["clients/connected"] == "3"
    assert told["c"].sys_topics(SYS)["clients/maximum"] == "6"
    await told["c"]._engine.close()


async def test_a_node_that_was_evicted_meanwhile_goes_on_telling() -> None:
    """Who evicts it removes its figures as well, maybe between its two commands."""
    engine: Any = SimpleNamespace(node="a", tell_figures=answered, eviction=no_eviction)
    figures = ToldFigures(engine, ["b"], dict, LOGGER)
    await figures.tell()
    assert figures.sys_topics(SYS)["messages/received"] == "15"


async def answered(_: str) -> dict[str, str]:
    """Return what only another node has told."""
    return {"b": '{"sys": {"messages/received": "5"}}'}


async def no_eviction() -> None:
    """Say that the server deletes nothing by itself."""
