"""Message sources whose messages a test gives."""

from __future__ import annotations

from penstock.broker.extensions import Consumer, MessageSource, Outcome
from penstock.broker.message import Message


class ListFeed:
    """A feed that gives the messages of its source as far as its consumer has room."""

    def __init__(self, source: ListSource, consumer: Consumer) -> None:
        self.source = source
        self.consumer = consumer
        self.is_stopped = False
        self.n_woken = 0

    def wake(self) -> None:
        """Give more."""
        self.n_woken += 1
        self.fill()

    def fill(self) -> None:
        """Give as many messages as there is room for."""
        while not self.is_stopped and self.source.waiting and self.consumer.room():
            message = self.source.waiting.pop(0)

            def done(outcome: Outcome, message: Message = message) -> None:
                self.source.outcomes.append((message.read_payload(), outcome))
                if outcome != "acknowledged":
                    self.source.waiting.insert(0, message)

            self.consumer.give(message, done, 1000.0)

    def stop(self) -> None:
        """Give no more."""
        self.is_stopped = True


class ListSource(MessageSource):
    """A source with a list of messages for all of its consumers.

    Attributes:
        waiting: the messages that no consumer has, the next one first.
        outcomes: the (payload, outcome) of the messages that were given, in their order.
        feeds: all feeds that were ever opened.
    """

    prefix = "$queue"

    def __init__(self, *payloads: bytes, topic: str = "t") -> None:
        self.waiting = [Message(topic, payload, qos=1) for payload in payloads]
        self.outcomes: list[tuple[bytes, str]] = []
        self.feeds: list[ListFeed] = []

    def refusal(self, topic_filter: str) -> str:
        """Know one queue."""
        return "" if topic_filter.startswith("$queue/q") else "queue: read x; allowed: q"

    def asked_topic(self, topic_filter: str) -> str:
        """Take the group away."""
        return "/".join(topic_filter.split("/")[:2])

    def open(self, topic_filter: str, consumer: Consumer) -> ListFeed:
        """Give the consumer what there is room for."""
        del topic_filter
        feed = ListFeed(self, consumer)
        self.feeds.append(feed)
        feed.fill()
        return feed

    def fill(self) -> None:
        """Let all feeds look at what there is."""
        for feed in self.feeds:
            feed.fill()
