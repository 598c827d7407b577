"""The state of a fabric as text: the rings, what is not as they want it, and what a policy adds."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from penstock.broker.config.key_types import show_size
from penstock.broker.errors import PenstockError
from penstock.plugins.queue.cluster.nodes_file import FabricConfig
from penstock.plugins.queue.cluster.servers import FabricError
from penstock.plugins.queue.cluster.view import View, faults_of
from penstock.plugins.queue.config import RedisConfig
from penstock.plugins.queue.engines.redis.functions import Functions
from penstock.plugins.queue.engines.redis.login import Address, named
from penstock.plugins.queue.engines.redis.routes import Routes
from penstock.plugins.queue.engines.redis.settings import redis_server
from penstock.plugins.queue.fabric.rings import RingQueue
from penstock.plugins.queue.report import table


async def read_parts(config: RedisConfig) -> dict[str, dict[int, int]]:
    """Return the slot of each physical queue of each logical one.

    Raises:
        FabricError: the cluster cannot be asked.
    """
    logger = logging.getLogger("penstock.queue")
    server = redis_server(config)
    routes = Routes(
        server.finder(),
        lambda address: server.connect(logger, address),
        server.patience,
        logger,
    )
    functions = Functions(routes, server.prefix)
    try:
        await routes.open()
        entries = await functions.entries()
    except PenstockError as error:
        raise FabricError(f"queues of the policy file: {error}") from error
    finally:
        await routes.close()
    found = {}
    for name, raw in sorted(entries.items()):
        entry = json.loads(raw)
        found[name] = {
            number: routes.slot(functions.part_key(entry["incarnation"], number))
            for number in entry["parts"]
        }
    return found


def status_lines(
    view: View,
    config: FabricConfig,
    parts: Mapping[str, Mapping[int, int]],
    excluded: Mapping[str, Sequence[int]],
) -> list[str]:
    """Return a table of each ring, one of physical queues by master, and what is wrong.

    Args:
        view: of the cluster.
        config: of the fabric.
        parts: slot of each physical queue of each logical one; empty where no policy is given.
        excluded: physical queues of each logical one that a gateway leaves out.
    """
    n_masters = sum(1 for member in view.members.values() if member.slots)
    n_slots = sum(member.n_slots for member in view.members.values())
    n_alive = sum(view.is_alive(member) for member in view.members.values())
    heading = f"{n_slots:,} slots on {n_masters} masters"
    heading += f"; {n_alive} of {len(view.servers)} servers on {len(config.nodes)} machines answer"
    lines = [heading]
    own = {
        queue: {name: _numbers(view, queue, slots) for name, slots in parts.items()}
        for queue in config.rings.queues
    }
    for ring in range(len(config.rings.directions)):
        queues = [queue for queue in config.rings.queues if queue.ring == ring]
        names = ["", "master", ">slots", "replicas, and bytes they are behind"]
        rows = [list(_row(view, queue)) for queue in queues]
        if parts:
            names.insert(3, ">physical queues")
            for queue, row in zip(queues, rows, strict=True):
                row.insert(3, f"{sum(map(len, own[queue].values())):,}")
        lines += ["", *table(names, rows)]
    if parts:
        rows = [
            [str(queue), name, ", ".join(map(str, numbers))]
            for queue, by_name in own.items()
            for name, numbers in by_name.items()
            if numbers
        ]
        lines += ["", *table(["", "queue", "physical queues"], rows)]
    left_out = [
        [name, str(number), _holder(view, parts.get(name, {}).get(number))]
        for name, numbers in excluded.items()
        for number in numbers
    ]
    if left_out:
        lines += ["", *table(["queue", ">left out as slow", "master on"], left_out)]
    faults = faults_of(view, config)
    lines += ["", *(faults or ["All is where the rings want it."])]
    return lines


def _row(view: View, queue: RingQueue) -> Sequence[str]:
    shard = view.shards.get(queue)
    if shard is None:
        return str(queue), "-", "-", "-"
    master = _place(view, shard.master.address)
    if not view.is_alive(shard.master):
        master += " dead"
    elif view.node_of(shard.master) != queue.home:
        master += " away"
    replicas = []
    for one in shard.replicas:
        told = view.replicas.get(one.address)
        state = "dead"
        if view.is_alive(one):
            has_copy = told is not None and told.is_synchronous
            state = show_size(told.behind_bytes) if told and has_copy else "no copy yet"
        replicas.append(f"{_place(view, one.address)} {state}")
    return str(queue), master, f"{shard.master.n_slots:,}", ", ".join(sorted(replicas)) or "-"


def _place(view: View, address: Address) -> str:
    server = view.servers.get(address)
    return named(address) if server is None else f"{server.node}:{address[1]}"


def _numbers(view: View, queue: RingQueue, slots: Mapping[int, int]) -> list[int]:
    """Return the physical queues of a logical one that are on a master."""
    shard = view.shards.get(queue)
    ranges = () if shard is None else shard.master.slots
    return [
        number
        for number, slot in slots.items()
        if any(first <= slot <= last for first, last in ranges)
    ]


def _holder(view: View, slot: int | None) -> str:
    for address, member in view.members.items():
        if slot is not None and any(first <= slot <= last for first, last in member.slots):
            return _place(view, address)
    return "-"
