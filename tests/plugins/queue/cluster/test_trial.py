"""A fabric of real servers on one machine: made, left, taken up again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.errors import ConfigError
from penstock.plugins.queue.cluster.creating import create
from penstock.plugins.queue.cluster.members import read_members, shards_of
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, read_nodes_file
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.cluster.trial import Trial, trial_config
from tests.helpers.fabric import machines, write_nodes_file


async def placed(config: FabricConfig, servers: Servers) -> dict[str, list[str]]:
    """Return the machines of each queue's shard, the master's first."""
    told = (await servers.ask(config.servers()[0].address, "CLUSTER", "NODES")).decode()
    node_of = {server.address: server.node for server in config.servers()}
    shards = shards_of(read_members(told), config.servers(), config.rings)
    return {
        str(queue): [
            node_of[shard.master.address],
            *sorted(node_of[one.address] for one in shard.replicas),
        ]
        for queue, shard in shards.items()
    }


async def test_replicas_are_where_the_rings_want_them_and_a_second_start_goes_on(
    tmp_path: Path,
) -> None:
    """With a password; what was stored in the first trial is there in the second."""
    with machines("abc") as nodes:
        (tmp_path / "admin").write_text("secret")
        keys = {"admin_password_file": str(tmp_path / "admin"), "replicas": 1}
        file = write_nodes_file(tmp_path, nodes, **keys)
        config = read_nodes_file(file)
        told: list[str] = []
        servers = Servers(config.login())
        first = config.servers()[0].address
        trial = Trial(config, file, tmp_path / "trial", told.append)
        await trial.start()
        assert await placed(config, servers) == {
            "Q1-a": ["a", "b"],
            "Q2-a": ["a", "c"],
            "Q1-b": ["b", "c"],
            "Q2-b": ["b", "a"],
            "Q1-c": ["c", "a"],
            "Q2-c": ["c", "b"],
        }
        assert await servers.ask(first, "SET", "{06S}", "kept") == b"OK"  # slot 0
        with pytest.raises(FabricError, match="is in a cluster; allowed: one that is new"):
            await create(servers, config.servers(), told.append)
        await servers.close()
        await trial.stop()
        trial = Trial(config, file, tmp_path / "trial", told.append)
        await trial.start()
        assert await servers.ask(first, "GET", "{06S}") == b"kept"
        assert [line for line in told if "the cluster of before" in line]
        await servers.close()
        await trial.stop()


async def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    """Such as one whose port another program has; the others are ended."""
    with machines("abc") as nodes:
        file = write_nodes_file(tmp_path, nodes, replicas=1)
        config = read_nodes_file(file)
        host, port = config.servers()[0].address
        other = await asyncio.start_server(lambda _, writer: writer.close(), host, port)
        trial = Trial(config, file, tmp_path / "trial", lambda _: None)
        with pytest.raises(FabricError, match=r"(?s)server a .* has ended with status 1:.*bind"):
            await trial.start()
        other.close()
        again = await asyncio.start_server(lambda _, writer: writer.close(), host, port + 1)
        again.close()


def test_a_trial_without_a_file_has_ports_one_after_the_other() -> None:
    """Machines are called a, b, c; too few are refused as in a file."""
    config = trial_config(3, 1, 7000)
    addresses = [server.address for server in config.servers()]
    assert addresses == [("127.0.0.1", 7000 + at) for at in range(12)]
    with pytest.raises(ConfigError, match="nodes: read 2; allowed: 3 or more"):
        trial_config(2, 2, 7000)
