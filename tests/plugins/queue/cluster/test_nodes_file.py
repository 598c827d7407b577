from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.errors import ConfigError
from penstock.plugins.queue.cluster.nodes_file import read_nodes_file
from tests.helpers.fabric import write_nodes_file

FIVE: dict[str, Any] = {
    name: {"address": f"127.0.1.{at}"} for at, name in enumerate("abcde", start=1)
}


def test_each_machine_has_a_master_of_each_ring_and_the_replicas_that_they_want(
    tmp_path: Path,
) -> None:
    """Ports count from the machine's first one; each ring's replicas come from its own side."""
    config = read_nodes_file(write_nodes_file(tmp_path, FIVE))
    servers = config.servers_of("a")
    assert [str(server.queue) for server in servers] == [
        *("Q1-a", "Q2-a"),
        *("Q1-e", "Q2-b"),
        *("Q1-d", "Q2-c"),
    ]
    assert [server.address for server in servers] == [("127.0.1.1", 6379 + at) for at in range(6)]
    assert [server.is_home for server in servers] == [True, True, False, False, False, False]
    for queue in config.rings.queues:
        holders = [server.node for server in config.servers() if server.queue == queue]
        assert sorted(holders) == sorted(config.rings.holders(queue))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"nodes": {}}, "nodes: read 0; allowed: 3 or more, one a copy"),
        ({"replicas": 5}, "nodes: read 5; allowed: 6 or more, one a copy"),
        ({"replicas": 0}, "replicas: read 0; allowed: greater than or equal to 1"),
        ({"min_replicas": 3}, "min_replicas: read 3; allowed: 0 to 2, as many as replicas"),
        ({"port": 55_533}, "nodes: read port 55536 of a; allowed: 1 to 55535"),
        ({"user": "x"}, "user and password_file, or neither"),
        ({"user": "default", "password_file": "p"}, "user: read default; allowed: another one"),
        ({"maxmemory": "much"}, "maxmemory: read 'much'; allowed: a whole number of bytes"),
        ({"config_folder": "data"}, "config_folder: read 'data'; allowed: "),
        ({"maxmem": 1}, "maxmem: read an unknown key; allowed: one of "),
        (
            {"nodes": FIVE | {"f": {"address": "127.0.1.1", "port": 6384}}},
            "nodes: read 127.0.1.1:6384 for a and for f; allowed: each port of an address once",
        ),
        (
            {"nodes": FIVE | {"f": {"address": "f.example"}}},
            "nodes.f.address: read 'f.example'; allowed: an IP address",
        ),
        (
            {"nodes": FIVE | {"f": {"address": "127.0.1.6", "bind": ["0.0.0.0"]}}},
            "nodes: read 0.0.0.0 of f, which others reach; allowed: a loopback address, or admin",
        ),
    ],
)
def test_what_cannot_be_a_fabric_is_named(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    """The place, what was read, and what is allowed."""
    file = write_nodes_file(tmp_path, keys.pop("nodes", FIVE), **keys)
    with pytest.raises(ConfigError) as refused:
        read_nodes_file(file)
    assert told in str(refused.value)


def test_a_policy_waits_for_a_takeover(tmp_path: Path) -> None:
    """A call is given up after the detection and the takeover, not before."""
    slow = read_nodes_file(write_nodes_file(tmp_path, FIVE, cluster_node_timeout=20.0))
    assert slow.redis_keys()["retry_seconds"] == 45
    quick = read_nodes_file(write_nodes_file(tmp_path, FIVE))
    assert quick.redis_keys() == {
        "cluster": [f"127.0.1.{at}:6379" for at in range(1, 6)],
        "min_replicas": 1,
    }
