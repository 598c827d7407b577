"""The outcome of each message at each subscriber, and MQTT's promises that were kept or broken."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.netem.figures.table_rows import MessageRow, Tables


class MessageOutcome(NamedTuple):
    """A message that a subscriber should have received.

    Attributes:
        qos: the QoS at which it is delivered; at 0 nothing is promised.
        delivered_s: the time of its first delivery, seconds since the beginning; infinite for
            never.
    """

    message: MessageRow
    subscriber: str
    is_focus: bool
    qos: int
    delivered_s: float
    copies: int

    @property
    def latency(self) -> float:
        """Seconds from when it was due at its publisher; infinite where it never came."""
        return self.delivered_s - self.message.due_s


@dataclass(frozen=True, slots=True)
class Promises:
    """The messages for which MQTT's promises were broken, and repeated deliveries.

    Attributes:
        lost: the messages that never reached a subscriber at QoS 1 or 2.
        not_delivered: the messages that never reached a subscriber at QoS 0, where none is
            promised.
        reordered: the first deliveries after that of a later message of the same client on the same
            topic ([MQTT-4.6.0-6] of 3.1.1, [MQTT-4.6.0-5] of 5).
        duplicated: the deliveries at QoS 2 of a message that had been delivered.
        repeated: the repeated deliveries at QoS 1, which are allowed, and those at QoS 0 of a
            message that was published at QoS 1.
    """

    lost: int
    not_delivered: int
    reordered: int
    duplicated: int
    repeated: int


def join(tables: Tables) -> dict[tuple[str, int], list[MessageOutcome]]:
    """Return for each broker and seed what became of each message at each subscriber."""
    came: dict[tuple[str, int, str, str, str, int], list[float]] = defaultdict(list)
    for row in tables.deliveries:
        key = (row.broker, row.seed, row.subscriber, row.publisher, row.stream, row.number)
        came[key].append(row.delivered_s)
    streams: dict[tuple[str, int, str, str], list[MessageRow]] = defaultdict(list)
    for message in tables.messages:
        streams[message.broker, message.seed, message.publisher, message.stream].append(message)
    outcomes: dict[tuple[str, int], list[MessageOutcome]] = defaultdict(list)
    for row_ in tables.expected:
        broker, seed, subscriber = row_.broker, row_.seed, row_.subscriber
        for message in streams[broker, seed, row_.publisher, row_.stream]:
            times = came.get(
                (broker, seed, subscriber, row_.publisher, row_.stream, message.number), []
            )
            first = min(times, default=math.inf)
            outcomes[broker, seed].append(
                MessageOutcome(message, subscriber, row_.is_focus, row_.qos, first, len(times))
            )
    return dict(outcomes)


def keep_account(outcomes: Iterable[MessageOutcome]) -> Promises:
    """Return how promises were kept to subscribers of one broker in one run.

    A redelivery is no reordering: only when each message came first counts. Streams are separate
    clients, so one's messages may pass another's on the same topic.
    """
    lost = not_delivered = duplicated = repeated = 0
    orders: dict[tuple[str, str, str], list[tuple[float, int]]] = defaultdict(list)
    for outcome in outcomes:
        message = outcome.message
        if outcome.copies:
            order = orders[outcome.subscriber, message.publisher, message.stream]
            order.append((outcome.delivered_s, message.number))
            if outcome.qos == 2:
                duplicated += outcome.copies - 1
            else:
                repeated += outcome.copies - 1
        elif outcome.qos:
            lost += 1
        else:
            not_delivered += 1
    reordered = sum(map(_count_late, orders.values()))
    return Promises(lost, not_delivered, reordered, duplicated, repeated)


def _count_late(order: list[tuple[float, int]]) -> int:
    """Count those that came after a later one; those of the same moment stand in order."""
    late, newest = 0, -1
    for _, number in sorted(order):
        late += number < newest
        newest = max(newest, number)
    return late
