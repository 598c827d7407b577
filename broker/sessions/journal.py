"""The journal as the core sees it; `penstock.broker.durable` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.broker.message import Message
from penstock.broker.outbox.delivery import Delivery, DeliveryWatcher
from penstock.broker.routing.topic_tree import Plan, Subscription, TopicTree
from penstock.broker.sending.core_context import Commits


class SessionWatcher(DeliveryWatcher, Protocol):
    """The side of the journal that one durable session sees.

    Attributes:
        lost_at: monotonic seconds at which its connection ended; None while it has one.
        row: the number of its row.
        is_short: what waits for it elsewhere needs room in the inflight window: the next
            acknowledgement asks for a pump.
    """

    lost_at: float | None
    row: int
    is_short: bool

    def subscription_changed(self, topic_filter: str) -> None:
        """Note that a subscription was made, replaced or removed, or got what was due."""

    def incoming_changed(self, packet_id: int) -> None:
        """Note that a QoS 2 message was received, or released, under this packet identifier."""

    def opened(self) -> None:
        """Note that a client has connected to the session."""

    def connection_lost(self, now: float) -> None:
        """Note that the session has no connection from now on."""

    def unloaded(self) -> None:
        """Note that the session is gone from memory, and that nothing of it is to be written."""


class KeptSessions(Protocol):
    """The sessions that a `SessionOwner` keeps, as far as they are here.

    Attributes:
        tree: their subscriptions that the owner routes messages to, but for shared ones.
    """

    tree: TopicTree

    def has(self, session: Any) -> bool:
        """Say whether a session is one of them."""

    def routes(self, session: Any, topic_filter: str) -> bool:
        """Say whether the owner routes messages to a subscription of a session."""

    def add(self, subscription: Subscription) -> None:
        """Add or replace a subscription that the owner routes messages to."""

    def subscribed(self, session: Any, topic_filters: Sequence[str]) -> None:
        """Tell the owner of filters that a session did not have; they may be none."""

    def unsubscribed(self, session: Any, topic_filter: str) -> None:
        """Remove a subscription that the owner routes messages to."""

    def pumped(self, session: Any) -> None:
        """Tell the owner of a connected session whether it can be given more."""

    def left(self, session: Any) -> None:
        """Unload a session without a connection once what has changed of it is safe."""

    def unloaded(self, session: Any) -> None:
        """Tell the owner that a session is gone."""


class Journal(Commits, Protocol):
    """Is told of all that must outlive the process.

    Attributes:
        n_changes: changes noted so far; equal before and after a call that changed nothing.
        is_full: the disk had no room for a message, and has had none since.
    """

    n_changes: int
    is_full: bool

    def opened(self, session: Any) -> None:
        """Note that a client has connected, and its session is as its CONNECT says."""

    def keep(self, session: Any) -> None:
        """Make a session durable from now on."""

    def connection_lost(self, session: Any, now: float) -> None:
        """Note that a session has lost its connection."""

    def will_changed(self, session: Any) -> None:
        """Note that a will may have come, been sent or become void."""

    def keep_for_share(self, session: Any) -> None:
        """Store what a session that is not durable holds for shares with durable members."""

    def departed(self, delivery: Delivery) -> None:
        """Note that a delivery of a share was taken from a session and given to none yet."""

    def arrived(self, delivery: Delivery) -> None:
        """Note that what `departed` was given to a member anew, or dropped."""

    def settle_after(
        self,
        receipt: Any,
        n_bytes: int,
        publisher: Any,
        published: object = None,
        n_deliveries: int = 0,
    ) -> None:
        """Settle a receipt once all that has changed until now is safe, or acknowledged."""

    def takes_run(self, n_messages: int, n_bytes: int, n_sessions: int) -> bool:
        """Say whether messages for durable sessions can surely be made safe in time."""

    def limited(self, session: Any) -> None:
        """Note that a session has limits of its own."""

    def lacks_room(self, message: Message) -> bool:
        """Say whether the disk does not take a message: it refuses, or has no room for it."""

    def make_room(self, session: Any, delivery: Delivery) -> None:
        """Have a session that loses a message lose older ones, too: the next ones find room."""

    def drops_for(self, session: Any) -> bool:
        """Say whether a session loses what the disk does not take, if it comes by no share."""

    def must_refuse(self, publisher: Any, plan: Plan, message: Message) -> bool:
        """Say whether a QoS 1 or 2 publish cannot be made safe in time."""
