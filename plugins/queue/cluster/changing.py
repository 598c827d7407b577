"""Bringing a running cluster to rings with a machine more or less, or back to where it was.

Theory of operation. What is to be done is read from the cluster, not remembered: a change that was
broken off is repeated, and goes on. The steps keep as many copies as there were:

1. Slots that an earlier change has left on their way are settled.
2. Masters go to where the rings want them, by a failover that their replicas ask for: the master
   holds writes until the replica has all, so nothing is lost.
3. Replicas: a server of the machine that lacks a copy gets it when nobody needs the one it has, as
   all machines that are to have that one do.
4. Slots are shared out among the masters that are to have them, see `slots`.
5. Replicas again, with those servers whose masters have no slots any more.
6. The servers of a machine that leaves are forgotten by the others, and emptied.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.plugins.queue.cluster.creating import (
    check_is_new,
    meet,
    replicate,
    until_agreed,
    until_known,
    until_synchronous,
)
from penstock.plugins.queue.cluster.members import Member, Shard
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, Server
from penstock.plugins.queue.cluster.servers import FabricError, Servers, until
from penstock.plugins.queue.cluster.slots import Master, SlotMove, SlotMover, share_out
from penstock.plugins.queue.cluster.view import View, look
from penstock.plugins.queue.engines.redis.login import Address
from penstock.plugins.queue.fabric.rings import RingQueue, Rings


class Change:
    """A change of a cluster.

    Args:
        servers: connections.
        config: of the fabric, with the machine that comes or goes.
        rings: that are to hold.
        tell: gets a line for each step.
    """

    def __init__(
        self, servers: Servers, config: FabricConfig, rings: Rings, tell: Callable[[str], None]
    ) -> None:
        self._servers = servers
        self._config = config
        self._rings = rings
        self._tell = tell
        self._slots = SlotMover(servers, config.login(), tell)

    async def add(self, name: str) -> None:
        """Bring a machine into its place, whether it is new or was away.

        Raises:
            FabricError: a server does not answer or refuses. What is done stays; the change can be
                repeated.
        """
        await self._join(name)
        await self._settle()
        await self._bring_masters_home()
        await self._place_replicas()
        await self._share_slots()
        await self._place_replicas(is_last=True)

    async def drain(self, name: str) -> None:
        """Take everything off a machine and leave it out; it may be dead.

        Raises:
            FabricError: as `add`.
        """
        await self._settle()
        await self._bring_masters_home()
        await self._place_replicas()
        await self._share_slots()
        await self._place_replicas(is_last=True)
        await self._forget(name)

    async def _look(self) -> View:
        return await look(self._servers, self._config)

    def _alive(self, view: View) -> list[Address]:
        return [
            address
            for address, member in view.members.items()
            if address in view.servers and view.is_alive(member)
        ]

    async def _join(self, name: str) -> None:
        view = await self._look()
        new = [
            server.address
            for server in self._config.servers_of(name)
            if server.address not in view.members
        ]
        for address in new:
            await check_is_new(self._servers, address)
        if new:
            others = self._alive(view)
            await meet(self._servers, others[0], new)
            everybody = [*others, *new]
            await until_known(self._servers, everybody, everybody)
            self._tell(f"{name}: {len(new)} servers have joined")

    async def _settle(self) -> None:
        """Wait for takeovers that are under way; end what an earlier change has left."""
        view = await self._look()
        alive = self._alive(view)
        await until_agreed(self._servers, alive)
        for address, slots in view.moving.items():
            commands = [("CLUSTER", "SETSLOT", slot, "STABLE") for slot in slots]
            await self._servers.ask_all(address, commands)

    async def _bring_masters_home(self) -> None:
        view = await self._look()
        for queue in self._rings.queues:
            shard = view.shards.get(queue)
            if shard is None or view.node_of(shard.master) == queue.home:
                continue
            there = view.nodes_with(queue)
            wanted = [name for name in self._rings.holders(queue) if name in there]
            # Where its home is dead, it goes to the first that is to have a copy.
            is_away = view.node_of(shard.master) not in self._rings.nodes
            if wanted and (wanted[0] == queue.home or is_away):
                await self._fail_over(queue, there[wanted[0]], wanted[0])

    async def _fail_over(self, queue: RingQueue, replica: Member, name: str) -> None:
        await until_synchronous(self._servers, replica.address)

        async def is_master() -> bool:
            info = await self._servers.info(replica.address, "replication")
            if info.get("role") == "master":
                return True
            await self._servers.ask(replica.address, "CLUSTER", "FAILOVER")
            return False

        await until(is_master, f"{queue}: its master is on {name}")
        await until_agreed(self._servers, self._alive(await self._look()))
        self._tell(f"{queue}: its master is on {name}")

    # -- replicas ----------------------------------------------------------------------------------

    async def _place_replicas(self, *, is_last: bool = False) -> None:
        """Give machines the copies that they lack, as far as there are servers for them."""
        while True:
            view = await self._look()
            lacking = [
                (queue, name)
                for queue in self._rings.queues
                for name in self._rings.holders(queue)[1:]
                if name not in view.nodes_with(queue)
            ]
            found = next(
                (
                    (queue, name, server)
                    for queue, name in lacking
                    if queue in view.shards and (server := self._free(view, queue, name))
                ),
                None,
            )
            if found is None:
                break
            queue, name, server = found
            await replicate(self._servers, server.address, view.shards[queue].master.id)
            await until_synchronous(self._servers, server.address)
            await self._until_told(queue, server.address)
            self._tell(f"{queue}: a copy on {name}")
        if lacking and is_last:
            words = ", ".join(f"{queue} on {name}" for queue, name in lacking)
            raise FabricError(
                f"copies that are lacking: {words}; no server there is free: one may be dead"
            )

    async def _until_told(self, queue: RingQueue, address: Address) -> None:
        """Wait until the picture of the cluster has a new replica."""

        async def has_it() -> bool:
            shard = (await self._look()).shards.get(queue)
            return shard is not None and any(one.address == address for one in shard.replicas)

        await until(has_it, f"{queue}: its new replica is known")

    def _free(self, view: View, queue: RingQueue, name: str) -> Server | None:
        """Return a server of a machine whose copy nobody needs; replicas before masters."""
        free = [
            server
            for server in self._config.servers_of(name)
            if server.ring == queue.ring
            and not server.is_home
            and (member := view.members.get(server.address)) is not None
            and view.is_alive(member)
            and self._is_free(view, member, name)
        ]
        return min(
            free, key=lambda server: view.members[server.address].master is None, default=None
        )

    def _is_free(self, view: View, member: Member, name: str) -> bool:
        found = _queue_of(view, member)
        if found is None:
            return not member.slots
        queue, shard = found
        if queue not in self._rings.queues:
            return not shard.master.slots
        if member.master is None or name in self._rings.holders(queue):
            return False
        there = view.nodes_with(queue)
        return all(
            one in there and _has_copy(view, there[one]) for one in self._rings.holders(queue)
        )

    # -- slots -------------------------------------------------------------------------------------

    async def _share_slots(self) -> None:
        view = await self._look()
        masters = {
            member.address: member
            for member in view.members.values()
            if member.master is None and (member.slots or self._is_wanted(view, member))
        }
        owned = {
            str(address): [slot for first, last in member.slots for slot in range(first, last + 1)]
            for address, member in masters.items()
        }
        wanted = [str(address) for address, one in masters.items() if self._is_wanted(view, one)]
        if len(wanted) != len(self._rings.queues):
            raise FabricError(
                f"masters: read {len(wanted)} that are there; allowed: {len(self._rings.queues)}, "
                "those of all rings. Start the others first"
            )
        by_name = {str(address): self._master(view, one) for address, one in masters.items()}
        # Those with keys are the work that masters have: of these, too, each gets as many.
        full = {
            name: await self._slots.with_keys(by_name[name].address, slots)
            for name, slots in owned.items()
        }
        empty = {name: sorted({*slots} - {*full[name]}) for name, slots in owned.items()}
        moves = [
            SlotMove(tuple(slots), by_name[giver], by_name[taker])
            for some in (full, empty)
            for (giver, taker), slots in share_out(some, wanted).items()
        ]
        await self._slots.check(moves)
        for move in moves:
            await self._slots.move(move)
        if moves:
            await until_agreed(self._servers, self._alive(view))
            n_slots = sum(len(move.slots) for move in moves)
            self._tell(f"{n_slots:,} slots have moved")

    def _is_wanted(self, view: View, member: Member) -> bool:
        found = _queue_of(view, member)
        return found is not None and found[0] in self._rings.queues and view.is_alive(member)

    def _master(self, view: View, member: Member) -> Master:
        found = _queue_of(view, member)
        replicas = () if found is None else found[1].replicas
        return Master(member.address, member.id, sum(_has_copy(view, one) for one in replicas))

    # -- the end -----------------------------------------------------------------------------------

    async def _forget(self, name: str) -> None:
        view = await self._look()
        own = {server.address for server in self._config.servers_of(name)}
        leaving = [member for member in view.members.values() if member.address in own]
        if any(member.slots for member in leaving):
            raise FabricError(f"{name}: it has slots still")
        others = [address for address in self._alive(view) if address not in own]
        for address in others:
            told = (await self._servers.ask(address, "CLUSTER", "NODES")).decode()
            forget = [("CLUSTER", "FORGET", member.id) for member in leaving if member.id in told]
            await self._servers.ask_all(address, forget)
        for member in leaving:
            if view.is_alive(member):
                await self._servers.ask(member.address, "CLUSTER", "RESET", "HARD")
        self._tell(f"{name}: its {len(leaving)} servers have left the cluster")


def _queue_of(view: View, member: Member) -> tuple[RingQueue, Shard] | None:
    for queue, shard in view.shards.items():
        if any(one.address == member.address for one in shard.members):
            return queue, shard
    return None


def _has_copy(view: View, member: Member) -> bool:
    if member.master is None:
        return view.is_alive(member)
    told = view.replicas.get(member.address)
    return view.is_alive(member) and told is not None and told.is_synchronous
