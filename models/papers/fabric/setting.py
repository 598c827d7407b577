"""The parameters of the simulated fabric, and our readings of what paper 001 leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.models.papers.fabric.rings import COUNTER_ROTATING, Direction
from penstock.plugins.queue.strategies.slowdown_exclusion import DEFAULT_SLOWDOWN_DETECTION_TIME

Distribution: TypeAlias = Literal["hashing", "exclusion", "repeat"]
"""How messages are spread over physical queues. `hashing`: by consistent hashing. `exclusion`:
round robin with slowdown exclusion, where a message that is not stored in time is an error to its
client, as in the paper. `repeat`: likewise, but such a message is sent elsewhere."""

NODES = "ABCDE"
"""The names of the paper's servers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a node, with all that runs on it.

    Attributes:
        begins: the begin of the fault, seconds.
        ends: the end of the fault, seconds; infinite for a node that is killed, whose unanswered
            messages are lost.
        slowness: the factor by which services take longer; infinite for a node that has stopped.
    """

    node: str
    begins: float
    ends: float = math.inf
    slowness: float = math.inf

    def is_standing(self, now: float) -> bool:
        """Say whether the node does nothing at a time."""
        return self.slowness == math.inf and self.begins <= now < self.ends


@dataclass(frozen=True, slots=True)
class FabricSetting:
    """A run; the defaults are paper 001's section 3.4.2 and the readings here.

    Attributes:
        distribution: the distribution of messages over physical queues.
        faults: the faults of the run, at most one for each node.
        directions: the directions of the rings.
        needs_all_copies: whether a message counts as stored only when all present copies have it;
            otherwise more than half of them suffice, as with Paxos.
        rate: the messages a second of all clients, Poisson.
        capacity: the messages a second of which a node can be master. "A single server can stably
            process 300 msg./s", and four are stable with 1200. Where the fifth has failed, one that
            has taken a physical queue over has three of ten: 360 messages a second, read as nine
            tenths of its capacity.
        slowdown_detection_time: the time after which an unanswered message makes a node count as
            slow, seconds.
        failure_detection_time: the seconds after which a node that has stopped is isolated, and
            others take its physical queues over. "Typically, more than 10 seconds".
        balancer_seconds: the time between two looks of the load balancer at the ports of the
            enqueue controllers, one on each node; what comes to a dead one until then is an error.
        pauses: the least and the greatest length of a pause, seconds. A node has two stores, each
            of which pauses once a second for a length drawn evenly (the garbage collection of
            section 3.4.3).
        patience: the seconds after which a client counts a missing answer as an error.
        seconds: the time in which messages come, seconds.
    """

    distribution: Distribution = "repeat"
    faults: tuple[Fault, ...] = ()
    directions: tuple[Direction, ...] = COUNTER_ROTATING
    needs_all_copies: bool = False
    rate: float = 1200.0
    capacity: float = 400.0
    slowdown_detection_time: float = DEFAULT_SLOWDOWN_DETECTION_TIME
    failure_detection_time: float = 10.0
    balancer_seconds: float = 1.0
    pauses: tuple[float, float] = (0.0, 0.0)
    patience: float = 10.0
    copy_seconds: float = 0.002
    seconds: float = 40.0
