from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plugins.queue.cluster.members import Member, shards_of
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, read_nodes_file
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.cluster.status import status_lines
from penstock.plugins.queue.cluster.view import Replica, View, faults_of, look
from tests.helpers.fabric import machines, write_nodes_file

NODES = {name: {"address": f"127.0.1.{at}"} for at, name in enumerate("abc", start=1)}


def view_of(config: FabricConfig, *, masters: dict[str, str] | None = None, dead: str = "") -> View:
    """Return a cluster whose masters are at home.

    Args:
        config: of the fabric.
        masters: machine of the master of some queues, by the queue's name.
        dead: machine that does not answer.
    """
    away = masters or {}
    servers = config.servers()
    at = {(str(server.queue), server.node): server for server in servers}
    members = {}
    for server in servers:
        queue = str(server.queue)
        master = at[queue, away.get(queue, server.queue.home)]
        is_master = master is server
        number = config.rings.queues.index(server.queue)
        slots = ((number * 2731, min(16_383, number * 2731 + 2730)),) if is_master else ()
        identifier = None if is_master else str(master.address)
        members[server.address] = Member(
            str(server.address), server.address, server.node == dead, identifier, slots, ()
        )
    silent = {server.address: "" for server in servers if server.node == dead}
    return View(
        {server.address: server for server in servers},
        members,
        shards_of(members.values(), servers, config.rings),
        silent,
        {address: Replica(True, 2048) for address, one in members.items() if one.master},
        {},
    )


def read(tmp_path: Path) -> FabricConfig:
    """Return a fabric of three machines with one replica of each master."""
    return read_nodes_file(write_nodes_file(tmp_path, NODES, replicas=1))


def test_a_healthy_fabric_shows_its_rings_and_physical_queues(tmp_path: Path) -> None:
    """Each master with its slots, replicas with their lag, physical queues where their slot is."""
    config = read(tmp_path)
    lines = status_lines(
        view_of(config), config, {"q": {0: 5, 1: 16_383, 2: 6}}, {"q": [1], "gone": []}
    )
    words = [line.split() for line in lines]
    assert lines[0] == "16,384 slots on 6 masters; 12 of 12 servers on 3 machines answer"
    assert ["Q1-a", "a:6379", "2,731", "2", "b:6381", "2.0", "KiB"] in words
    assert ["Q2-c", "c:6380", "2,729", "1", "b:6382", "2.0", "KiB"] in words
    assert ["Q1-a", "q", "0,", "2"] in words
    assert ["q", "1", "c:6380"] in words
    assert lines[-1] == "All is where the rings want it."


def test_what_is_not_in_its_place_is_told(tmp_path: Path) -> None:
    """A master that is away after a takeover, and a machine that is dead."""
    config = read(tmp_path)
    view = view_of(config, masters={"Q1-a": "b"})
    assert faults_of(view, config) == ["Q1-a: its master is on b, the ring wants it on a"]
    shown = "\n".join(status_lines(view, config, {}, {}))
    assert "b:6381 away" in shown
    dead = view_of(config, dead="c")
    faults = faults_of(dead, config)
    assert "Q1-c: its master on c is dead" in faults
    assert "Q1-b: no copy on c" in faults
    assert sum("no answer" in fault for fault in faults) == 4
    assert "c:6379 dead" in "\n".join(status_lines(dead, config, {}, {}))


def test_strangers_and_slots_without_a_master_are_told(tmp_path: Path) -> None:
    """A node that the file has not; slots that nobody serves, and some that are on their way."""
    config = read(tmp_path)
    view = view_of(config)
    stranger = Member("x", ("127.0.1.9", 1), False, None, (), ())
    members = {**view.members, stranger.address: stranger}
    first = config.servers()[0].address
    members[first] = members[first]._replace(slots=((0, 2729),))
    shards = shards_of(members.values(), config.servers(), config.rings)
    view = view._replace(members=members, shards=shards, moving={first: (7, 8)})
    assert faults_of(view, config) == [
        "127.0.1.9:1: it is in the cluster and not in the file",
        "1 slots have no master",
        "2 slots are on their way to another master",
    ]


async def test_a_fabric_without_servers_is_named(tmp_path: Path) -> None:
    """Nothing is shown of what cannot be asked."""
    with machines("abc") as nodes:
        config = read_nodes_file(write_nodes_file(tmp_path, nodes, replicas=1))
        servers = Servers(config.login())
        with pytest.raises(FabricError, match="no server answers; the first: server 127"):
            await look(servers, config)
        await servers.close()
