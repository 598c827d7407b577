"""Making the cluster of servers that are empty: slots to masters, replicas where the rings say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.plugins.queue.cluster.nodes_file import BUS_PORTS, Server
from penstock.plugins.queue.cluster.servers import SYNC_SECONDS, FabricError, Servers, until
from penstock.plugins.queue.engines.redis.login import Address, named
from penstock.plugins.queue.engines.redis.routes import N_SLOTS


async def create(servers: Servers, fabric: Sequence[Server], tell: Callable[[str], None]) -> None:
    """Make a cluster.

    Args:
        servers: connections.
        fabric: its servers, which must be empty and in no cluster.
        tell: gets a line for each step.

    Raises:
        FabricError: a server cannot be used. What was done stays: the servers must be emptied
            before the next attempt.
    """
    await asyncio.gather(*(check_is_new(servers, server.address) for server in fabric))
    masters = [server for server in fabric if server.is_home]
    tell(f"{N_SLOTS:,} slots to {len(masters)} masters")
    for at, server in enumerate(masters):
        first, last = N_SLOTS * at // len(masters), N_SLOTS * (at + 1) // len(masters) - 1
        await servers.ask_all(
            server.address,
            [
                ("CLUSTER", "ADDSLOTSRANGE", first, last),
                ("CLUSTER", "SET-CONFIG-EPOCH", at + 1),
            ],
        )
    await meet(servers, fabric[0].address, [server.address for server in fabric[1:]])
    addresses = [server.address for server in fabric]
    await until_known(servers, addresses, addresses)
    tell(f"{len(fabric)} servers have met")
    homes = {server.queue: server.address for server in masters}
    ids = {queue: await id_of(servers, address) for queue, address in homes.items()}
    replicas = [server for server in fabric if not server.is_home]
    for server in replicas:
        await replicate(servers, server.address, ids[server.queue])
    for server in replicas:
        await until_synchronous(servers, server.address)
    tell(f"{len(replicas)} replicas have what their masters have")
    await until_agreed(servers, addresses)


async def check_is_new(servers: Servers, address: Address) -> None:
    """See that a server is empty and in no cluster.

    Raises:
        FabricError: it is not, or does not answer.
    """
    info = await servers.cluster_info(address)
    if info.get("cluster_known_nodes") != "1" or info.get("cluster_slots_assigned") != "0":
        raise FabricError(
            f"server {named(address)}: read one that is in a cluster; allowed: one that is new"
        )
    if await servers.info(address, "keyspace"):
        raise FabricError(f"server {named(address)}: read one with keys; allowed: one without")


async def meet(servers: Servers, first: Address, others: Sequence[Address]) -> None:
    """Have a server meet others, whom it tells of each other.

    Raises:
        FabricError: it refuses.
    """
    commands = [("CLUSTER", "MEET", host, port, port + BUS_PORTS) for host, port in others]
    await servers.ask_all(first, commands)


async def until_known(
    servers: Servers, tellers: Sequence[Address], known: Sequence[Address]
) -> None:
    """Wait until each of some servers knows all of others.

    Raises:
        FabricError: not in time.
    """
    for address in tellers:

        async def knows_all(address: Address = address) -> bool:
            members = (await servers.ask(address, "CLUSTER", "NODES")).decode()
            lines = [line.split() for line in members.splitlines()]
            met = {line[1].partition("@")[0] for line in lines if "handshake" not in line[2]}
            return met >= {f"{host}:{port}" for host, port in known}

        await until(knows_all, f"server {named(address)} knows the others")


async def until_agreed(servers: Servers, addresses: Sequence[Address]) -> None:
    """Wait until servers say that all slots have a master that is there, and which.

    Raises:
        FabricError: not in time.
    """

    async def agree() -> bool:
        infos = [await servers.cluster_info(address) for address in addresses]
        slots = [await servers.ask(address, "CLUSTER", "SLOTS") for address in addresses]
        pictures = {str(sorted((one[0], one[1], one[2][2]) for one in each)) for each in slots}
        return len(pictures) == 1 and all(
            info.get("cluster_state") == "ok" and info.get("cluster_slots_ok") == str(N_SLOTS)
            for info in infos
        )

    await until(agree, "all servers agree on a master of each slot")


async def id_of(servers: Servers, address: Address) -> str:
    """Return the id of a server.

    Raises:
        FabricError: it does not answer.
    """
    told: bytes = await servers.ask(address, "CLUSTER", "MYID")
    return told.decode()


async def replicate(servers: Servers, address: Address, master_id: str) -> None:
    """Make a server a replica of a master, which it may not have heard of yet.

    Raises:
        FabricError: it refuses.
    """

    async def is_taken() -> bool:
        await servers.ask(address, "CLUSTER", "REPLICATE", master_id)
        return True

    await until(is_taken, f"server {named(address)} becomes a replica")


async def until_synchronous(servers: Servers, address: Address) -> None:
    """Wait until a replica has what its master has.

    Raises:
        FabricError: not in time.
    """

    async def is_synchronous() -> bool:
        info = await servers.info(address, "replication")
        return info.get("role") == "slave" and info.get("master_link_status") == "up"

    await until(is_synchronous, f"replica {named(address)} has a copy", SYNC_SECONDS)
