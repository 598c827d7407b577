"""Figures of a node before and after its start."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import cast
from unittest.mock import Mock

from penstock.broker.extensions import LocalClients, PluginContext, SinkRoutes
from penstock.plugins.cluster.config import ClusterConfig
from penstock.plugins.cluster.figures import figures
from penstock.plugins.cluster.node import Node
from penstock.plugins.redis.config import RedisConfig
from tests.helpers.redis_server import running_redis


async def test_figures_are_there_before_the_node_has_started_and_after(tmp_path: Path) -> None:
    """Whoever asks need not know whether the servers are reached."""
    context = PluginContext(logging.getLogger("test"), "policy.yaml", time.monotonic)
    with running_redis(tmp_path / "redis") as redis:
        config = ClusterConfig("emea", "a", RedisConfig(server=f"127.0.0.1:{redis.port}"))
        routes, clients = cast("SinkRoutes", None), cast("LocalClients", Mock())
        node = Node(config, "a", "a", context, routes, clients)
        before = [metric.name for metric in figures(node)]
        await node.start()
        after = {metric.name: metric for metric in figures(node)}
        assert before == list(after)
        assert after["inbox_held_bytes"].type == "gauge"
        assert after["inbox_messages_total"].type == "counter"
        assert after["nodes"].samples[0].value == 1
        assert after["engine_stores"].samples[0].value == 1
        node.announcer.failure = "the server's memory is full"
        (stores,) = (one for one in figures(node) if one.name == "engine_stores")
        assert stores.samples[0].value == 0
        await node.close()
