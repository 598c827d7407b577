"""Subscriptions that a source feeds, such as those of a pull queue's consumers.

Theory of operation. Such a subscription is not in the topic tree: nothing is published to it. While
its client is connected, the source asks how many messages the client has room for, leases so many,
and gives them. Each is a `Leased` delivery in the outbox and the inflight window of the session, in
the ledger like any other, and withheld like any other if it is large. The source learns of its
PUBACK. When the connection ends, all that is left of them leaves the session, and the source gives
it to others: nothing of them is stored or sent again. The subscription stays with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from penstock.broker.mqtt.topics import parse_share
from penstock.broker.outbox.delivery import Delivery
from penstock.broker.routing.subscriber import Subscriber

if TYPE_CHECKING:
    from penstock.broker.extensions import Feed, MessageSource, Outcome
    from penstock.broker.message import Message
    from penstock.broker.outbox.message_counts import Ledger
    from penstock.broker.routing.topic_tree import Subscription
    from penstock.broker.sending.core_context import CoreContext
    from penstock.broker.sending.sender import Sender


class Reader(Subscriber, Protocol):
    """A session, as its subscriptions to sources see it.

    Attributes:
        ledger: the account of this subscriber.
    """

    ledger: Ledger

    @property
    def sender(self) -> Sender | None:
        """Of the connected client, or None."""


class Leased(Delivery):
    """A message on its way to a consumer.

    Attributes:
        consumption: by which it came.
        done: tells the source what became of it.
    """

    __slots__ = ("consumption", "done")

    is_stored: ClassVar[bool] = False
    is_leased: ClassVar[bool] = True

    def __init__(
        self, message: Message, consumption: Consumption, done: Callable[[Outcome], None]
    ) -> None:
        super().__init__(message, 1, subscription_ids=consumption.subscription_ids)
        self.consumption = consumption
        self.done = done


def acknowledged_by_consumer(delivery: Delivery, reason_code: int) -> None:
    """Tell the source of a leased message of its PUBACK."""
    leased = cast("Leased", delivery)
    leased.consumption.finish(leased, "acknowledged" if reason_code < 0x80 else "refused")


def asked_filter(consuming: Consuming | None, topic_filter: str) -> str:
    """Return what access control is asked for a topic filter of a client."""
    # A share opens no topic that its filter alone would not.
    asked = parse_share(topic_filter).topic_filter
    return asked if consuming is None else consuming.asked_topic(asked)


class Consumption:
    """One subscription of a connected client to a source; the `Consumer` that the source sees.

    Attributes:
        subscription: as the client has it.
        feed: the source's side of it.
        held: messages that were given and are not done.
    """

    __slots__ = ("_core", "_is_ended", "_session", "feed", "held", "subscription")

    def __init__(self, core: CoreContext, session: Reader, subscription: Subscription) -> None:
        self._core = core
        self._session = session
        self._is_ended = False
        self.subscription = subscription
        self.feed: Feed | None = None
        self.held: dict[Leased, None] = {}

    @property
    def client_id(self) -> str:
        """Client Identifier."""
        return self._session.client_id

    @property
    def subscription_ids(self) -> tuple[int, ...]:
        """Subscription Identifiers that messages are delivered with."""
        identifier = self.subscription.subscription_id
        return (identifier,) if identifier else ()

    def room(self) -> int:
        """Return how many messages the client can be given at this moment."""
        session = self._session
        sender = session.sender
        if self._is_ended or sender is None or session.outgoing.is_paused:
            return 0
        inflight, outbox = session.inflight, session.outbox
        if inflight.n_bytes + outbox.n_bytes >= sender.send_quota_bytes:
            return 0
        most = min(sender.send_quota - inflight.n_messages, self._core.limits.queued_messages)
        return max(most - outbox.n_messages, 0)

    def give(self, message: Message, done: Callable[[Outcome], None], now: float) -> None:
        """Send the client a message, or let it wait behind others; see `Consumer`."""
        session = self._session
        if self._is_ended or session.sender is None:
            done("unsent")
            return
        threshold_s = self._core.threshold_s(message.topic)
        message.is_large = threshold_s is not None and message.payload_bytes > threshold_s
        if not self.subscription.qos:
            session.deliver(
                message, 0, retain=False, subscription_ids=self.subscription_ids, now=now
            )
            self._core.turn.congested.clear()  # there is no publisher to slow down
            done("acknowledged")
            return
        leased = Leased(message, self, done)
        session.ledger.matched += 1
        if not session.outbox.add(leased):
            done("unsent")
            return
        self.held[leased] = None
        session.is_direct = False
        session.outgoing.want_pump()

    def find_lost(self) -> None:
        """Call `done` for messages that were dropped; the ledger has counted them."""
        inflight = self._session.inflight
        for leased in list(self.held):
            if not leased.is_waiting and not inflight.holds(leased):
                self.finish(leased, "refused")

    def finish(self, leased: Leased, outcome: Outcome) -> None:
        """Tell the source what became of a message."""
        if leased in self.held:
            del self.held[leased]
            self._core.guard.tell((leased.done,), outcome)
            if self.feed is not None:
                self.feed.wake()

    def end(self) -> None:
        """End the subscription: what was not sent is given back, the rest is completed."""
        self._is_ended = True
        feed = self.feed
        if feed is not None:
            self._core.guard.call(feed, feed.stop, otherwise=None)
        self._give_back(self._session.outbox.take_where(self._is_own), "unsent")

    def _is_own(self, delivery: Delivery) -> bool:
        return delivery.is_leased and cast("Leased", delivery).consumption is self

    def _give_back(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        self._session.ledger.moved += len(deliveries)
        for delivery in deliveries:
            self.finish(cast("Leased", delivery), outcome)

    def part(self) -> None:
        """End with the connection: what is unacknowledged is given back as well."""
        self.end()
        inflight = self._session.inflight
        sent = [leased for leased in self.held if inflight.holds(leased)]
        for leased in sent:
            inflight.take_back(leased)
        self._give_back(sent, "returned")
        self.find_lost()


class Consuming:
    """All subscriptions that sources feed."""

    def __init__(self, core: CoreContext, sources: Sequence[MessageSource]) -> None:
        """Begin without subscriptions; each source has a prefix of its own."""
        self._core = core
        self._sources = {source.prefix: source for source in sources}
        self._subscriptions: dict[Reader, dict[str, Subscription]] = {}
        self._open: dict[Reader, dict[str, Consumption]] = {}
        self._ending: dict[Reader, list[Consumption]] = {}

    def source_of(self, topic_filter: str) -> MessageSource | None:
        """Return the source that feeds a topic filter, also one that is shared; None for none."""
        if topic_filter[0] != "$":
            return None
        return self._sources.get(parse_share(topic_filter).topic_filter.partition("/")[0])

    def asked_topic(self, topic_filter: str) -> str:
        """Return what access control is asked for a topic filter, of a source or not."""
        source = self.source_of(topic_filter)
        if source is None:
            return topic_filter
        ask = source.asked_topic
        return self._core.guard.call(source, ask, topic_filter, otherwise=topic_filter)

    def add(self, session: Reader, subscription: Subscription) -> bool:
        """Add or replace a subscription; return True where the session had none to this filter."""
        own = self._subscriptions.setdefault(session, {})
        topic_filter = subscription.topic_filter
        is_new = topic_filter not in own
        own[topic_filter] = subscription
        consumption = self._open.get(session, {}).get(topic_filter)
        if consumption is not None:
            consumption.subscription = subscription
        elif session.sender is not None:
            self._begin(session, subscription)
        return is_new

    def _begin(self, session: Reader, subscription: Subscription) -> None:
        topic_filter = subscription.topic_filter
        source = self.source_of(topic_filter)
        if source is None:
            return
        consumption = Consumption(self._core, session, subscription)
        self._open.setdefault(session, {})[topic_filter] = consumption
        consumption.feed = self._core.guard.call(
            source, source.open, topic_filter, consumption, otherwise=None
        )

    def remove(self, session: Reader, topic_filter: str) -> None:
        """End a subscription, if it is one that a source feeds."""
        own = self._subscriptions.get(session)
        if own is None or own.pop(topic_filter, None) is None:
            return
        if not own:
            del self._subscriptions[session]
        consumption = self._open.get(session, {}).pop(topic_filter, None)
        if consumption is not None:
            consumption.end()
            if consumption.held:
                self._ending.setdefault(session, []).append(consumption)

    def connected(self, session: Reader) -> None:
        """Feed the subscriptions of a session that has a connection again."""
        own = self._subscriptions.get(session)
        if own:
            for subscription in list(own.values()):
                self._begin(session, subscription)

    def connection_lost(self, session: Reader) -> None:
        """Take what a session has of sources: its connection has ended."""
        if session in self._open:
            for consumption in self._open.pop(session).values():
                consumption.part()
        if session in self._ending:
            for consumption in self._ending.pop(session):
                consumption.part()

    def forget(self, session: Reader) -> None:
        """Drop the subscriptions of a session that has ended."""
        self.connection_lost(session)
        self._subscriptions.pop(session, None)
