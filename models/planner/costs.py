"""The measured costs of a message, a connection and a payload for the broker.

A broker that is idle wakes up for each packet, which costs several times the packet's own work. A
busy broker finds the next packets in its buffers when it has handled the last ones. So there are
two costs: those of a busy broker decide when it overflows; with the costs whose names begin with
`alone` added, they give the share of a core that it takes while it is not full. `SOURCE` names
where each was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time and memory of the broker.

    Times are processor seconds on the machine of docs/evidence/performance.md.

    Attributes:
        receive: the cost of a message of QoS 0.
        deliver: the cost of a message of QoS 0 to one subscriber.
        receive_acknowledged: the cost of a message of QoS 1, its PUBACK included.
        deliver_acknowledged: the cost of a message of QoS 1 to one subscriber, its PUBACK included.
        keep: the cost of storing a message for a session that outlives the process, for each
            session.
        dequeue: the cost of receiving and deleting a message of a queue, in batches of a hundred.
        request: the cost of a request over HTTP that finds nothing.
        receive_byte: the cost of receiving a payload byte.
        deliver_byte: the cost of sending a payload byte to a subscriber.
        alone: the further cost of a message of QoS 1 or 2 that finds the broker idle.
        alone_qos_0: the further cost of a message of QoS 0 that finds the broker idle.
        alone_delivery: the further cost of each delivery of such a message.
        alone_commit: the cost of a commit of one message, or of one PUBACK.
        idle: the cost of each second, without any message.
        base_bytes: the memory of a broker without clients.
        queued_bytes: the memory of a message that waits, without its payload.
    """

    receive: float = 4.7e-6
    deliver: float = 4.7e-6
    receive_acknowledged: float = 15.9e-6
    deliver_acknowledged: float = 15.9e-6
    keep: float = 13.7e-6
    enqueue: float = 8.1e-6
    dequeue: float = 11.7e-6
    request: float = 254e-6
    receive_byte: float = 3.4e-9
    deliver_byte: float = 0.75e-9
    alone: float = 138e-6
    alone_qos_0: float = 83e-6
    alone_delivery: float = 30e-6
    alone_commit: float = 364e-6
    idle: float = 1.7e-3
    look: float = 13e-6
    connect: float = 156e-6
    base_bytes: float = 70e6
    connection_bytes: float = 5160.0
    subscription_bytes: float = 500.0
    queued_bytes: float = 350.0

    def faster(self, speed_ratio: float) -> Costs:
        """Return the costs on a machine that is so much faster."""
        changed = {name: getattr(self, name) / speed_ratio for name in TIMES}
        return replace(self, **changed)


TIMES: Final = tuple(name for name in asdict(Costs()) if not name.endswith("_bytes"))
"""The costs that are processor seconds."""

_BENCH: Final = "`penstock bench`, 2026-11-21:"
_RUN: Final = "a run as of `--validate`:"

SOURCE: Final[Mapping[str, str]] = {
    "receive": f"{_BENCH} half of QoS 0, 500 clients to 1: 106,192/s on one core, a call each way",
    "deliver": "the other half",
    "receive_acknowledged": f"{_BENCH} half of QoS 1, 500 pairs: 31,412/s on one core, two calls",
    "deliver_acknowledged": "the other half",
    "keep": "one to one at 07baa10: 14.6 µs with a durable session, 0.88 without; no runs yet",
    "enqueue": "queue_throughput, row enqueue: 123,386/s",
    "dequeue": "queue_throughput, received and deleted over HTTP: 85,222/s",
    "request": "queue_strategies, lambda 400 conventional: 3,939 requests/s, 4 of 100 hit",
    "receive_byte": f"{_RUN} 50 messages/s of 100 kB, over those of 200 B",
    "deliver_byte": f"{_RUN} the same, to 4 subscribers instead of 1",
    "alone": f"{_RUN} 50 messages/s of 200 B, QoS 1, less `receive` and `deliver`",
    "alone_qos_0": f"{_RUN} the same with QoS 0",
    "alone_delivery": f"{_RUN} the same, to 4 subscribers whose PUBACKs come apart",
    "alone_commit": f"{_RUN} the same, for a session that is kept: half, of message and PUBACK",
    "idle": f"{_RUN} a message a second",
    "look": "two system calls of 5 µs, and 3 µs for the socket: an estimate, not measured alone",
    "connect": f"{_BENCH} connect and disconnect: 6,411/s",
    "base_bytes": "a small machine needs some 70 MB",
    "connection_bytes": f"{_BENCH} 10,000 idle connections: 5.16 KB each",
    "subscription_bytes": "memory_filters: 0.44 KB, and its target 0.5 KB",
    "queued_bytes": f"{_BENCH} 100,000 messages of 1 KB that wait: 1.35 KB each",
}
"""The source of each cost: a full run of `penstock bench`, older than the one that
docs/evidence/performance.md shows; a row of that page or of paper-000-dequeue.md; or a run."""
