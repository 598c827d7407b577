"""A broker of runs that may end at any moment: several durable sessions have their messages."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock.broker.config.limits import Limits
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.mqtt.packets import Packet, Subscribe, SubscriptionRequest
from tests.broker.durable.test_journal_crashes import TOPICS, Crashing, Peer
from tests.helpers.durable import DurableBroker
from tests.helpers.effort import examples


class Bundling(Peer):
    """A client whose answers go in one chunk, in order or not."""

    bundle: list[Packet] | None = None

    def send(self, *packets: Packet) -> None:
        """Send, or keep for the chunk."""
        if self.bundle is None:
            super().send(*packets)
        else:
            self.bundle += packets

    def take_together(self, n_packets: int, *, is_reversed: bool) -> None:
        """Handle some packets, and answer them in one chunk."""
        self.bundle = []
        try:
            for _ in range(n_packets):
                if self.client is not None and self.client.inbox:
                    self.take()
        finally:
            bundle, self.bundle = self.bundle, None
        if is_reversed:
            bundle.reverse()
        self.send(*bundle)


class CrashingRuns(Crashing):
    """One publisher, two subscribers of everything."""

    @initialize(window=st.sampled_from([1, 2, 1000]), receive_maximum=st.sampled_from([1, 2, 100]))
    def start(self, window: int, receive_maximum: int) -> None:
        """Connect all three and subscribe."""
        limits = Limits(inflight_messages=window)
        self.broker = DurableBroker(limits=limits, core_class=FastCore)
        self.publisher = Bundling("p")
        self.subscriber = Bundling("s", receive_maximum)
        self.other = Bundling("o")
        self.peers: tuple[Peer, ...] = (self.publisher, self.subscriber, self.other)
        self.n_sent = 0
        for peer in self.peers:
            peer.connect(self.broker)
            peer.take()
        for peer in self.peers[1:]:
            peer.send(Subscribe(1, (SubscriptionRequest("t/#", 2),)))
            peer.asked[1] = ("t/#", True)
            peer.take()
        self.broker.commits_at_once = False

    @rule(number=st.integers(0, 2), n_packets=st.integers(1, 6), is_reversed=st.booleans())
    def handle_together(self, number: int, n_packets: int, *, is_reversed: bool) -> None:
        """Let a client handle what has come, and answer it in one chunk."""
        peer = self.peers[number]
        assert isinstance(peer, Bundling)
        peer.take_together(n_packets, is_reversed=is_reversed)

    @rule()
    def lose_other(self) -> None:
        """End the second subscriber's connection."""
        self.lose(number=2)

    @rule()
    def reconnect_other(self) -> None:
        """Connect the second subscriber again."""
        self.reconnect(number=2)

    def _check_messages(self) -> None:
        super()._check_messages()
        subscriber, self.subscriber = self.subscriber, self.other
        try:
            super()._check_messages()
        finally:
            self.subscriber = subscriber


class CrashingLone(Crashing):
    """One subscriber, whose lone messages are noted when they are late, or something follows."""

    @initialize(window=st.sampled_from([1, 2, 1000]), receive_maximum=st.sampled_from([1, 2, 100]))
    def start(self, window: int, receive_maximum: int) -> None:
        """Connect both and subscribe."""
        limits = Limits(inflight_messages=window)
        self.broker = DurableBroker(limits=limits, core_class=FastCore, notes_lone=False)
        self.publisher = Bundling("p")
        self.subscriber = Bundling("s", receive_maximum)
        self.peers: tuple[Peer, ...] = (self.publisher, self.subscriber)
        self.n_sent = 0
        for peer in self.peers:
            peer.connect(self.broker)
            peer.take()
        self.subscriber.send(Subscribe(1, (SubscriptionRequest("t/#", 2),)))
        self.subscriber.asked[1] = ("t/#", True)
        self.subscriber.take()
        self.broker.commits_at_once = False

    @rule(topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3))
    def publish_alone(self, topics: list[str]) -> None:
        """Come to rest, as nothing goes alone behind what waits; then publish one by one."""
        if not self.broker.is_disk_full:
            for _ in range(3):
                self.broker.commit()
                for number, peer in enumerate(self.peers):
                    self.reconnect(number)
                    while peer.client is not None and peer.client.inbox:
                        peer.take()
        for topic in topics:
            self.publish(topic=topic, qos=1, n_messages=1, retain=False)

    @rule()
    def look(self) -> None:
        """Let the journal look for late messages."""
        if self.broker.is_look_due:
            self.broker.look()

    def teardown(self) -> None:
        """Let everything come to rest."""
        if hasattr(self, "broker"):
            self.broker.notes_lone = True
        super().teardown()


TestCrashingRuns: Any = CrashingRuns.TestCase
TestCrashingRuns.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)
TestCrashingLone: Any = CrashingLone.TestCase
TestCrashingLone.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None
)
