"""What a running cluster is like now: its nodes, its shards, and how far replicas are behind."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.plugins.queue.cluster.members import Member, Shard, read_members, shards_of
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, Server
from penstock.plugins.queue.cluster.servers import FabricError, Servers
from penstock.plugins.queue.engines.redis.login import Address
from penstock.plugins.queue.engines.redis.routes import N_SLOTS
from penstock.plugins.queue.fabric.rings import RingQueue


class Replica(NamedTuple):
    """How a replica is doing.

    Attributes:
        is_synchronous: whether it has a copy, and gets what its master gets.
        behind_bytes: of the master's stream that it has not got.
    """

    is_synchronous: bool
    behind_bytes: int


class View(NamedTuple):
    """A cluster at a moment.

    Attributes:
        servers: of the fabric, by address.
        members: nodes of the cluster, by address.
        shards: of each queue of the rings.
        silent: servers of the fabric that do not answer, and why.
        replicas: that answer, by address.
        moving: slots on their way to another master, by the servers that know of it.
    """

    servers: Mapping[Address, Server]
    members: Mapping[Address, Member]
    shards: Mapping[RingQueue, Shard]
    silent: Mapping[Address, str]
    replicas: Mapping[Address, Replica]
    moving: Mapping[Address, tuple[int, ...]]

    def is_alive(self, member: Member) -> bool:
        """Return whether a node answers, and the cluster does not take it for dead."""
        return not member.is_failed and member.address not in self.silent

    def node_of(self, member: Member) -> str:
        """Return the machine of a node; its address where the file has none."""
        server = self.servers.get(member.address)
        return f"{member.address[0]}:{member.address[1]}" if server is None else server.node

    def nodes_with(self, queue: RingQueue) -> dict[str, Member]:
        """Return the living nodes of a shard by their machine; the master before a replica."""
        shard = self.shards.get(queue)
        found: dict[str, Member] = {}
        for member in () if shard is None else shard.members:
            if self.is_alive(member):
                found.setdefault(self.node_of(member), member)
        return found


async def look(servers: Servers, config: FabricConfig) -> View:
    """Return what a cluster is like.

    Raises:
        FabricError: no server answers, or none is in a cluster.
    """
    fabric = config.servers()
    told = await asyncio.gather(*(_ask(servers, server.address) for server in fabric))
    silent: dict[Address, str] = {}
    pictures: list[list[Member]] = []
    replication: dict[Address, Mapping[str, str]] = {}
    moving: dict[Address, tuple[int, ...]] = {}
    for server, answer in zip(fabric, told, strict=True):
        if isinstance(answer, FabricError):
            silent[server.address] = str(answer)
            continue
        members, replication[server.address] = answer
        pictures.append(members)
        if own := [slot for one in members for slot in one.moving]:
            moving[server.address] = tuple(own)
    if not pictures:
        raise FabricError(f"no server answers; the first: {next(iter(silent.values()))}")
    # One that was drained, or is new, knows itself alone.
    picture = max(pictures, key=lambda one: (sum(member.n_slots for member in one), len(one)))
    if len(picture) == 1 and len(fabric) > 1:
        raise FabricError("no server is in a cluster; penstock fabric create makes one")
    return View(
        {server.address: server for server in fabric},
        {member.address: member for member in picture},
        shards_of(picture, fabric, config.rings),
        silent,
        _replicas(replication),
        moving,
    )


async def _ask(
    servers: Servers, address: Address
) -> tuple[list[Member], dict[str, str]] | FabricError:
    try:
        told = await servers.ask(address, "CLUSTER", "NODES")
        return read_members(told.decode()), await servers.info(address, "replication")
    except FabricError as error:
        return error


def _replicas(told: Mapping[Address, Mapping[str, str]]) -> dict[Address, Replica]:
    """Return how far replicas are behind their masters, by what both said at about one moment."""
    found = {}
    for address, info in told.items():
        if info.get("role") == "slave":
            master = told.get((info["master_host"], int(info["master_port"])), {})
            end = int(master.get("master_repl_offset", 0))
            behind = max(0, end - int(info.get("slave_repl_offset", 0)))
            found[address] = Replica(info.get("master_link_status") == "up", behind)
    return found


def faults_of(view: View, config: FabricConfig) -> list[str]:
    """Return what is not as the rings want it, one sentence each."""
    rings = config.rings
    found = [f"{view.servers[address]}: no answer" for address in view.silent]
    found += [
        f"{view.servers[address]}: the cluster takes it for dead"
        for address, member in view.members.items()
        if member.is_failed and address in view.servers and address not in view.silent
    ]
    found += [
        f"{server}: it is not in the cluster"
        for address, server in view.servers.items()
        if address not in view.members and address not in view.silent
    ]
    found += [
        f"{view.node_of(member)}: it is in the cluster and not in the file"
        for address, member in view.members.items()
        if address not in view.servers
    ]
    for queue in rings.queues:
        found += _faults_of_queue(view, queue, rings.holders(queue))
    n_lacking = N_SLOTS - sum(member.n_slots for member in view.members.values())
    if n_lacking:
        found.append(f"{n_lacking:,} slots have no master")
    if view.moving:
        n_moving = len({slot for slots in view.moving.values() for slot in slots})
        found.append(f"{n_moving} slots are on their way to another master")
    return found


def _faults_of_queue(view: View, queue: RingQueue, holders: Sequence[str]) -> list[str]:
    shard = view.shards.get(queue)
    if shard is None:
        return [f"{queue}: no node of it is left"]
    found = []
    master = view.node_of(shard.master)
    if not view.is_alive(shard.master):
        found.append(f"{queue}: its master on {master} is dead")
    elif master != holders[0]:
        found.append(f"{queue}: its master is on {master}, the ring wants it on {holders[0]}")
    if not shard.master.n_slots:
        found.append(f"{queue}: its master has no slots")
    there = view.nodes_with(queue)
    lacking = [name for name in holders if name not in there]
    if lacking:
        found.append(f"{queue}: no copy on {', '.join(lacking)}")
    return found
