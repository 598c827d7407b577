"""Who is who in a running cluster: its nodes, and which of the rings' queues each has.

Theory of operation. A master with its replicas is a *shard*, and each queue of the rings is one.
The two home servers of a machine stay in the shard of their ring for as long as they live, as
masters or, after a takeover, as replicas: they tell which shard is which. Where a home server has
left the cluster, or is dead since before the takeover, its shard is the one that has the most
copies on the machines that are to have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.plugins.queue.cluster.nodes_file import Server
from penstock.plugins.queue.engines.redis.login import Address
from penstock.plugins.queue.fabric.rings import RingQueue, Rings


class Member(NamedTuple):
    """A node of a cluster, as another one tells of it.

    Attributes:
        id: that the cluster knows it by.
        address: of it.
        is_failed: whether it is, or may be, dead.
        master: id of its master; None for a master.
        slots: first and last one of each range.
        moving: slots that leave it or come to it, as far as the node that tells is this one.
    """

    id: str
    address: Address
    is_failed: bool
    master: str | None
    slots: tuple[tuple[int, int], ...]
    moving: tuple[int, ...]

    @property
    def n_slots(self) -> int:
        """How many slots it has."""
        return sum(last + 1 - first for first, last in self.slots)


def read_members(told: str) -> list[Member]:
    """Return the nodes of an answer to ``CLUSTER NODES``.

    Raises:
        ValueError: it is none.
    """
    return [_member(line.split()) for line in told.splitlines() if line]


def _member(words: Sequence[str]) -> Member:
    identifier, where, flags, master, _, _, _, _, *slots = words
    host, _, port = where.partition("@")[0].rpartition(":")
    ranges, moving = [], []
    for one in slots:
        if one.startswith("["):  # such as [93-<-ID] or [93->-ID]
            moving.append(int(one[1:].partition("-")[0]))
        else:
            first, _, last = one.partition("-")
            ranges.append((int(first), int(last or first)))
    names = set(flags.split(","))
    return Member(
        identifier,
        (host, int(port)),
        bool(names & {"fail", "fail?", "noaddr", "handshake"}),
        None if master == "-" else master,
        tuple(ranges),
        tuple(moving),
    )


class Shard(NamedTuple):
    """A master with its replicas.

    Attributes:
        master: the node that has its slots, or is to get some.
        replicas: of it, failed ones among them.
    """

    master: Member
    replicas: tuple[Member, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, the master first."""
        return (self.master, *self.replicas)


def shards_of(
    members: Iterable[Member], servers: Sequence[Server], rings: Rings
) -> dict[RingQueue, Shard]:
    """Return the shard of each queue of the rings; those that no node is left of are left out.

    Args:
        members: of the cluster.
        servers: of the fabric.
        rings: whose machines the servers are on.
    """
    known = {server.address: server for server in servers}
    shards = {
        one.id: Shard(one, ()) for one in members if one.master is None and one.address in known
    }
    by_address = {one.address: one for one in members}
    for one in members:
        if one.master in shards:
            shard = shards[one.master]
            shards[one.master] = shard._replace(replicas=(*shard.replicas, one))
    found: dict[RingQueue, Shard] = {}
    homes = [server for server in servers if server.is_home and server.address in by_address]
    # Masters first: Redis may make one that has lost its last slot a replica in another's shard.
    for server in sorted(homes, key=lambda one: by_address[one.address].master is not None):
        home = by_address[server.address]
        shard_id = home.master or home.id
        # One that died as a master has no slots after the takeover, and is no shard any more.
        if shard_id in shards and not (home.is_failed and not shards[shard_id].master.slots):
            found[server.queue] = shards.pop(shard_id)
    rest = [one for one in shards.values() if one.master.slots]
    missing = [queue for queue in rings.queues if queue not in found]
    fits = sorted(
        (
            (-_n_in_place(shard, rings.holders(queue), known), number, at)
            for number, queue in enumerate(missing)
            for at, shard in enumerate(rest)
        ),
    )
    taken: set[int] = set()
    for _, number, at in fits:
        if missing[number] not in found and at not in taken:
            found[missing[number]] = rest[at]
            taken.add(at)
    return {queue: found[queue] for queue in rings.queues if queue in found}


def _n_in_place(shard: Shard, holders: Sequence[str], known: Mapping[Address, Server]) -> int:
    return sum(known[one.address].node in holders for one in shard.members if one.address in known)
