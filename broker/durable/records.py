"""The rows that a journal makes of what has changed, and those of messages that came together.

Times of rows are seconds of the database's own clock (`StorageClock`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.message import Message
from penstock.broker.mqtt.enums import PacketType
from penstock.broker.mqtt.properties import WILL, write_properties
from penstock.broker.outbox.delivery import Run
from penstock.broker.session_rows import Changes, DeliveryRow, MessageRow, SubscriptionRow, WillRow

if TYPE_CHECKING:
    from penstock.broker.mqtt.packets import Will
    from penstock.broker.routing.topic_tree import Subscription
    from penstock.broker.sessions.session import Session


def message_row(message: Message, payload: bytes | None, epoch: float) -> MessageRow:
    """Return the row of a message that has a number; `payload` is None where it is lost."""
    properties = None
    if message.properties:
        properties = write_properties(message.properties, PacketType.PUBLISH)
    expires_at = message.expires_at
    return MessageRow(
        message.row,
        message.topic,
        payload,
        message.qos,
        message.retain,
        message.arrived_at + epoch,
        None if expires_at is None else expires_at + epoch,
        properties,
        message.publisher,
    )


class RunRows(NamedTuple):
    """The rows of the messages of a run, which are made when they are written.

    Attributes:
        run: the messages.
        first: the place in the run of the first one that is stored.
        epoch: seconds of the database's clock at which the monotonic clock was 0.
    """

    run: Run
    first: int
    epoch: float


class RunDeliveryRows(NamedTuple):
    """The rows of deliveries of a run to one session; their numbers follow each other.

    Attributes:
        row: the number of the first row.
        session: row of the session.
        message: row of the first message.
        n_messages: how many.
        qos: of all.
        packet_id: Packet Identifier of the first.
        n_released: of so many from the first on, the PUBREC has come.
    """

    row: int
    session: int
    message: int
    n_messages: int
    qos: int
    packet_id: int
    n_released: int


def row_of_ids(subscription_ids: tuple[int, ...]) -> str | None:
    """Return Subscription Identifiers as a row has them."""
    return ",".join(map(str, subscription_ids)) or None


def subscription_row(
    session: int, topic_filter: str, subscription: Subscription, *, is_retained_due: bool
) -> SubscriptionRow:
    """Return the row of a subscription; the arguments are as in the row."""
    return SubscriptionRow(
        session,
        topic_filter,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.subscription_id,
        is_retained_due,
        subscription.sizes,
    )


def will_row(session: Session, will: Will) -> WillRow:
    """Return the row of a session's will."""
    return WillRow(
        session.client_id,
        session.username,
        session.listener,
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        write_properties(will.properties, WILL),
    )


@dataclass(slots=True)
class Batch(Changes):
    """The changes of one commit, as the database takes them.

    Attributes:
        runs: messages beside those in `messages`.
        run_deliveries: deliveries beside those in `deliveries`.
        released: (first row, last row) of deliveries that are already stored, and whose PUBREC has
            come.
    """

    runs: list[RunRows] = field(default_factory=list)
    run_deliveries: list[RunDeliveryRows] = field(default_factory=list)
    released: list[tuple[int, int]] = field(default_factory=list)

    def message_rows_of_runs(self) -> Iterator[MessageRow]:
        """Yield what `runs` stands for."""
        for run, first, epoch in self.runs:
            yield from map(MessageRow._make, run.rows(first, epoch))

    def delivery_rows_of_runs(self) -> Iterator[DeliveryRow]:
        """Yield what `run_deliveries` stands for."""
        for row, session, message, n_messages, qos, packet_id, n_released in self.run_deliveries:
            for i in range(n_messages):
                yield DeliveryRow(
                    row + i,
                    session,
                    message + i,
                    qos,
                    retain=False,
                    subscription_ids=None,
                    packet_id=packet_id + i,
                    is_released=i < n_released,
                    share="",
                )

    def is_empty(self) -> bool:
        """Say whether there is nothing to write."""
        return not any(getattr(self, f.name) for f in fields(self) if f.name != "number")
