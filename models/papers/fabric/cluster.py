"""The nodes of the simulated fabric, which say when a message is stored.

A node is master of some physical queues and serves their messages one after the other, in
exponential times. A master then sends the message to the copies, and answers when enough copies
have it. Faults are known beforehand, so the time of each answer is known when a message is sent.
The work of the copies is part of a message's cost for its master, as in the paper's figure for the
capacity of a server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

from penstock.models.papers.fabric.rings import RingQueue, Rings
from penstock.models.papers.fabric.setting import NODES, FabricSetting, Fault


class Cluster:
    """Nodes with their physical queues.

    Attributes:
        served: the number of messages that each node has served as master, by second.
    """

    def __init__(self, setting: FabricSetting, rng: Random) -> None:
        self.rings = Rings(NODES, setting.directions)
        self._setting = setting
        self._rng = rng
        self._faults = {fault.node: fault for fault in setting.faults}
        self._free_at = dict.fromkeys(NODES, 0.0)
        self._pauses = {
            (ring, node): (rng.random(), rng.uniform(*setting.pauses))
            for ring in range(len(setting.directions))
            for node in NODES
        }
        self.served = {node: [0] * math.ceil(setting.seconds) for node in NODES}
        self._epochs = list(_epochs(self.rings, setting))
        self._epoch = 0

    def is_standing(self, node: str, now: float) -> bool:
        """Say whether a node does nothing at a time."""
        fault = self._faults.get(node)
        return fault is not None and fault.is_standing(now)

    def stored_at(self, queue: RingQueue, now: float) -> float:
        """Send a message; return when its sender hears that it is stored; infinite for never."""
        while self._epoch + 1 < len(self._epochs) and now >= self._epochs[self._epoch + 1].begins:
            self._epoch += 1
        group = self._epochs[self._epoch].groups[queue]
        if not group:
            return math.inf
        master = group[0]
        done = self._serve(master, now)
        if done == math.inf:
            return math.inf
        if done < self._setting.seconds:
            self.served[master][int(done)] += 1
        return self._copied(queue, master, self._paused(queue.ring, master, done))

    def _serve(self, node: str, now: float) -> float:
        begins = max(now, self._free_at[node])
        service = self._rng.expovariate(self._setting.capacity)
        fault = self._faults.get(node)
        if fault is None:
            ends = begins + service
        elif fault.slowness < math.inf:
            is_slow = fault.begins <= begins < fault.ends
            ends = begins + service * (fault.slowness if is_slow else 1.0)
        else:
            ends = begins + service
            if ends > fault.begins and begins < fault.ends:
                ends = fault.ends + service
        self._free_at[node] = ends
        return ends

    def _paused(self, ring: int, node: str, now: float) -> float:
        """Return when the store of a ring on a node can answer what it has done at a time."""
        begins, seconds = self._pauses[ring, node]
        return now + max(0.0, seconds - (now - begins) % 1.0)

    def _copied(self, queue: RingQueue, master: str, now: float) -> float:
        """Return when enough copies have what a master has at a time."""
        for epoch in self._epochs[self._epoch :]:
            group = epoch.groups[queue]
            if epoch.ends <= now:
                continue
            if not group or group[0] != master:
                return math.inf
            needed = len(group) if self._setting.needs_all_copies else len(group) // 2 + 1
            then = max(now, epoch.begins)
            answers = sorted(self._copy_answers(node, then) for node in group[1:])
            found = answers[needed - 2] if needed > 1 else then
            if found < epoch.ends:
                return found
        return math.inf

    def _copy_answers(self, node: str, now: float) -> float:
        fault = self._faults.get(node)
        seconds = self._setting.copy_seconds
        if fault is None:
            return now + seconds
        if fault.slowness < math.inf:
            return now + seconds * (fault.slowness if fault.begins <= now < fault.ends else 1.0)
        return (fault.ends if fault.is_standing(now) else now) + seconds


class Epoch:
    """A time in which no node is isolated and none returns."""

    __slots__ = ("begins", "ends", "groups")

    def __init__(
        self, begins: float, ends: float, groups: Mapping[RingQueue, Sequence[str]]
    ) -> None:
        self.begins = begins
        self.ends = ends
        self.groups = groups


def _epochs(rings: Rings, setting: FabricSetting) -> Iterator[Epoch]:
    """Yield the epochs of a run.

    With `needs_all_copies`, nodes that are isolated are replaced by the next ones of the ring; else
    those that are left of the first three go on alone.
    """
    isolated = [(fault, _isolation(fault, setting)) for fault in setting.faults]
    moments = {0.0, math.inf}
    for _, (begins, ends) in isolated:
        moments |= {begins, ends}
    ascending = sorted(moments)
    for begins, ends in pairwise(ascending):
        away = [fault.node for fault, (out, back) in isolated if out <= begins < back]
        if setting.needs_all_copies:
            groups = {queue: rings.holders(queue, away) for queue in rings.queues}
        else:
            groups = {
                queue: tuple(node for node in rings.holders(queue) if node not in away)
                for queue in rings.queues
            }
        yield Epoch(begins, ends, groups)


def _isolation(fault: Fault, setting: FabricSetting) -> tuple[float, float]:
    """Return from when to when a node is isolated; infinite where it is not."""
    out = fault.begins + setting.failure_detection_time
    if fault.slowness < math.inf or out >= fault.ends:
        return math.inf, math.inf
    return out, fault.ends
