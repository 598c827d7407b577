"""What queues and groups hold, for operators and dequeue strategies."""

from __future__ import annotations

from penstock.plugins.queue.engines.contract import (
    GroupOutline,
    GroupSnapshot,
    QueueOutline,
    QueueSnapshot,
    Usage,
)
from penstock.plugins.queue.engines.leases import Group
from penstock.plugins.queue.engines.queues import (
    LogicalQueue,
)


def queue_outline(queue: LogicalQueue, now: float) -> QueueOutline:
    """Return what requests need to know of a queue."""
    for group in queue.groups.values():
        group.expire(now)
    return QueueOutline(
        queue.incarnation,
        queue.spec,
        queue.messages,
        list(queue.physical),
        {name: GroupOutline(group.spec, group.n_leased) for name, group in queue.groups.items()},
    )


def queue_snapshot(queue: LogicalQueue, now: float) -> QueueSnapshot:
    """Return a queue as it is."""
    for group in queue.groups.values():
        group.expire(now)
    oldest = min(
        (
            segment.newest_clock
            for part in queue.physical.values()
            if part.messages and (segment := part.index.following(part.earliest)) is not None
        ),
        default=None,
    )
    return QueueSnapshot(
        incarnation=queue.incarnation,
        spec=queue.spec,
        usage={
            number: Usage(part.earliest, part.next, part.messages, part.stored_bytes)
            for number, part in queue.physical.items()
        },
        messages=queue.messages,
        payload_bytes=queue.payload_bytes,
        stored_bytes=queue.stored_bytes,
        reserved=queue.reserved_messages,
        removed=dict(queue.removed),
        set_aside=sum(part.aside for part in queue.physical.values()),
        oldest_seconds=None if oldest is None else max(0.0, now - oldest),
        groups={name: group_snapshot(one, now) for name, one in queue.groups.items()},
    )


def group_snapshot(group: Group, now: float) -> GroupSnapshot:
    """Return a group as it is."""
    places = group.places
    delayed = sum(place.n_delayed(now) for place in places.values())
    return GroupSnapshot(
        spec=group.spec,
        position={number: place.floor for number, place in places.items()},
        waiting=sum(place.waiting for place in places.values()),
        leased=group.n_leased,
        delayed=delayed,
        received=group.received,
        settled=dict(group.settled),
        idle_seconds=max(0.0, now - group.used_at),
        reader=group.reader,
    )
