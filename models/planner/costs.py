"""What a message, a connection and a payload cost the broker, as measured.

Each cost is that of lone packets from many clients, which is what a fleet sends; packets that come
in floods cost a fraction of it. `SOURCE` names where each was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time and memory of the broker.

    Times are processor seconds on the machine of docs/performance.md.

    Attributes:
        receive: of a message of QoS 0.
        deliver: of a message of QoS 0 to one subscriber.
        receive_acknowledged: of a message of QoS 1, its PUBACK included.
        deliver_acknowledged: of a message of QoS 1 to one subscriber, its PUBACK included.
        keep: of storing a message for a session that outlives the process, for each session.
        enqueue: of storing a message in a queue.
        dequeue: of receiving and deleting a message of a queue, in batches of a hundred.
        request: of a request over HTTP that finds nothing.
        byte: of a payload byte, in and out alike.
        look: of looking at one connection's RTT.
        connect: of a connection that comes and goes.
        base_bytes: memory of a broker without clients.
        connection_bytes: of an idle connection.
        subscription_bytes: of a subscription.
        queued_bytes: of a message that waits, without its payload.
    """

    receive: float = 4.7e-6
    deliver: float = 4.7e-6
    receive_acknowledged: float = 15.9e-6
    deliver_acknowledged: float = 15.9e-6
    keep: float = 13.7e-6
    enqueue: float = 12.7e-6
    dequeue: float = 25.6e-6
    request: float = 254e-6
    byte: float = 0.21e-9
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
"""Costs that are processor seconds."""

SOURCE: Final[Mapping[str, str]] = {
    "receive": "half of QoS 0, 500 clients to 1: 106,192/s on one core, a call each way",
    "deliver": "the other half",
    "receive_acknowledged": "half of QoS 1, 500 pairs: 31,412/s on one core, two calls each way",
    "deliver_acknowledged": "the other half",
    "keep": "what leaves the fast path: 14.6 µs with a durable session, 0.88 without",
    "enqueue": "queue_throughput, row enqueue: 78,765/s",
    "dequeue": "queue_throughput, received and deleted over HTTP: 39,043/s",
    "request": "queue_strategies, lambda 400 conventional: 3,939 requests/s, 4 of 100 hit",
    "byte": "1 MiB to 50 readers: 4,843 MB/s",
    "look": "two system calls of 5 µs, and 3 µs for the socket: an estimate, not measured alone",
    "connect": "connect and disconnect: 6,411/s",
    "base_bytes": "on a small machine: memory",
    "connection_bytes": "an idle connection: 5.16 KB",
    "subscription_bytes": "on a small machine: memory",
    "queued_bytes": "a 1 KB message that waits: 1.35 KB",
}
"""Cost to the row of docs/performance.md, or docs/queue-strategies.md, that it is from."""
