"""The figures of all queues for `$SYS` and for monitoring."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.broker.counters import Metric, Sample, metrics_of

if TYPE_CHECKING:
    from penstock.plugins.queue.engines.contract import QueueSnapshot
    from penstock.plugins.queue.publishing.batches import Batches
    from penstock.plugins.queue.service import QueueService


def queue_metrics(
    service: QueueService, batches: Batches | None, *, is_shared: bool = False
) -> Iterator[Metric]:
    """Yield what the queues hold, what their groups lag behind, and what requests did.

    Args:
        service: has the queues.
        batches: of rows that are published; None where there are none.
        is_shared: whether other processes have the same queues.
    """
    names = service.names()
    held = [(name, service.engine.snapshot(name)) for name in names]
    for metric in chain(_held(held), _groups(held)):
        is_same = is_shared and metric.type == "gauge"
        yield metric._replace(across="max") if is_same else metric
    receivers = [
        ({"queue": name, "group": group}, receiver)
        for name in names
        for group, receiver in service.queue(name).receivers.items()
    ]
    yield _gauge(
        "waiting_requests",
        "Receive requests that wait for an answer.",
        [Sample(labels, receiver.waiting) for labels, receiver in receivers],
    )
    by_strategy = [
        ({**labels, "strategy": strategy}, counts)
        for labels, receiver in receivers
        for strategy, counts in receiver.counts.items()
    ]
    yield from metrics_of(by_strategy, states={"held"})
    slow = [
        ({"queue": name}, found)
        for name in names
        if (found := service.queue(name).buffer.slow_appends) is not None
    ]
    yield _gauge(
        "excluded",
        "Physical queues that are left out, as they store slowly.",
        [Sample(labels, len(found.excluded)) for labels, found in slow],
    )
    yield from metrics_of([(labels, found.counts) for labels, found in slow])
    if batches is not None:
        for name, n in batches.held().items():
            help_ = f"Staged publishing: {name} that are held."
            yield _gauge(f"publishing_{name}", help_, [Sample({}, n)])
        for metric in metrics_of([({}, batches.counts)]):
            yield metric._replace(name=f"publishing_{metric.name}")


def _gauge(name: str, help_: str, samples: list[Sample]) -> Metric:
    return Metric(name, "gauge", help_, samples)


def _held(held: list[tuple[str, QueueSnapshot]]) -> Iterator[Metric]:
    """Yield what each queue holds."""

    def each(name: str, help_: str, value: Any) -> Metric:
        samples = [Sample({"queue": queue}, value(snapshot)) for queue, snapshot in held]
        return _gauge(name, help_, samples)

    yield each("depth_messages", "Messages in the queue.", lambda one: one.messages)
    yield each("depth_bytes", "Payload bytes of these.", lambda one: one.payload_bytes)
    yield each("stored_bytes", "Bytes that they take in the storage.", lambda one: one.stored_bytes)
    yield each(
        "oldest_message_age_seconds",
        "Age of the oldest message; 0 for an empty queue.",
        lambda one: one.oldest_seconds or 0.0,
    )
    yield each("set_aside_messages", "Messages that cannot be read.", lambda one: one.set_aside)
    yield Metric(
        "removed_total",
        "counter",
        "Messages that left unread by a group or more, by reason.",
        [
            Sample({"queue": queue, "reason": reason}, n)
            for queue, snapshot in held
            for reason, n in sorted(snapshot.removed.items())
        ],
    )
    targets = {
        group.spec.dead_letter_queue for _, snapshot in held for group in snapshot.groups.values()
    }
    yield _gauge(
        "dead_letter_messages",
        "Messages in queues that take the dead letters of others.",
        [Sample({"queue": name}, snapshot.messages) for name, snapshot in held if name in targets],
    )


def _groups(held: list[tuple[str, QueueSnapshot]]) -> Iterator[Metric]:
    """Yield how far each group is behind."""
    groups = [
        ({"queue": queue, "group": name}, group)
        for queue, snapshot in held
        for name, group in snapshot.groups.items()
    ]
    for name, help_, attribute in (
        ("lag_messages", "Messages that the group has not settled, leased ones too.", "waiting"),
        ("leased_messages", "Those of them that are leased.", "leased"),
        ("delayed_messages", "Those of them whose delay is not over.", "delayed"),
        ("idle_seconds", "Time since the newest request of the group.", "idle_seconds"),
    ):
        samples = [Sample(labels, getattr(group, attribute)) for labels, group in groups]
        yield _gauge(name, help_, samples)
    yield Metric(
        "given_total",
        "counter",
        "Messages given to receivers, repeated ones included.",
        [Sample(labels, group.received) for labels, group in groups],
    )
    yield Metric(
        "settled_total",
        "counter",
        "Messages that the group is done with, by action: `dead` are dead letters.",
        [
            Sample({**labels, "reason": action}, n)
            for labels, group in groups
            for action, n in sorted(group.settled.items())
        ],
    )
