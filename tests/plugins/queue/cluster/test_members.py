from __future__ import annotations

from pathlib import Path

from penstock.plugins.queue.cluster.members import Member, read_members, shards_of
from penstock.plugins.queue.cluster.nodes_file import FabricConfig, Server, read_nodes_file
from tests.helpers.fabric import write_nodes_file

FIVE = {name: {"address": f"127.0.1.{at}"} for at, name in enumerate("abcde", start=1)}


def test_nodes_are_read_as_redis_writes_them() -> None:
    """With names of hosts, failures, single slots and slots on their way."""
    told = (
        "07c3 127.0.0.1:30004@31004,host slave,fail? e7d1 0 1426238317239 4 connected\n"
        "e7d1 ::1:30001@31001 myself,master - 0 0 1 connected 0-9 12 [93-<-07c3] [94->-07c3]\n"
    )
    assert read_members(told) == [
        Member("07c3", ("127.0.0.1", 30004), True, "e7d1", (), ()),
        Member("e7d1", ("::1", 30001), False, None, ((0, 9), (12, 12)), (93, 94)),
    ]
    assert read_members(told)[1].n_slots == 11


def member(server: Server, master: Server | None = None, *, slots: bool = False) -> Member:
    """Return a node that is called as its address."""
    own = ((0, 1),) if slots else ()
    identifier = None if master is None else str(master.address)
    return Member(str(server.address), server.address, False, identifier, own, ())


def fabric(tmp_path: Path) -> tuple[FabricConfig, dict[tuple[str, int], list[Server]]]:
    """Return a fabric and the servers of each queue by home and ring, in the order of places."""
    config = read_nodes_file(write_nodes_file(tmp_path, FIVE))
    queues: dict[tuple[str, int], list[Server]] = {}
    for server in sorted(config.servers(), key=lambda one: one.address[1]):
        queues.setdefault((server.queue.home, server.ring), []).append(server)
    return config, queues


def test_a_shard_is_that_of_its_home_server_wherever_the_master_is(tmp_path: Path) -> None:
    """Also after a takeover, when the home server has come back as a replica."""
    config, queues = fabric(tmp_path)
    members = []
    for (home, ring), (first, *others) in queues.items():
        master = others[0] if (home, ring) == ("c", 0) else first
        members += [
            member(one, None if one is master else master, slots=one is master)
            for one in (first, *others)
        ]
    shards = shards_of(members, config.servers(), config.rings)
    assert list(shards) == list(config.rings.queues)
    for queue, shard in shards.items():
        away = (queue.home, queue.ring) == ("c", 0)
        copies = queues[queue.home, queue.ring]
        assert shard.master.address == copies[1 if away else 0].address
        assert len(shard.replicas) == 2


def test_a_shard_whose_home_server_is_gone_is_found_by_its_copies(tmp_path: Path) -> None:
    """Two neighbours are dead: what is left of each shard is where its ring wants it."""
    config, queues = fabric(tmp_path)
    members = []
    for (home, _), copies in queues.items():
        left = [one for one in copies if one.node not in "cd"]
        members += [
            member(one, None if one is left[0] else left[0], slots=one is left[0]) for one in left
        ]
        if home == "c":  # dead, and still known: a master without slots
            members.append(member(copies[0])._replace(is_failed=True))
    shards = shards_of(members, config.servers(), config.rings)
    assert len(shards) == 10
    for queue, shard in shards.items():
        expected = [one for one in queues[queue.home, queue.ring] if one.node not in "cd"]
        assert {one.address for one in shard.members} == {one.address for one in expected}
