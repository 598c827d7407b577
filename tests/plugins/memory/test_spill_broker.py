"""A broker whose payloads spill, whatever its clients do."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.mqtt.packets import PubAck, Publish
from penstock.broker.payload import PIECE_BYTES
from penstock.plugins.memory.spill import SHARED_BYTES, SpillStore
from penstock.plugins.memory.spill_file import SpillFile
from tests.helpers.virtual import VirtualBroker, VirtualClient

ROOM_BYTES = 300_000
NAMES = ("a", "b", "c")
TOPICS = ("t/0", "t/1")
KEPT: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


class Spilling(RuleBasedStateMachine):
    """Subscribers that stall, go on, leave and come back, and a publisher."""

    def __init__(self) -> None:
        super().__init__()
        file = SpillFile("/tmp")  # noqa: S108 (its files have no name)
        self.store = SpillStore(ROOM_BYTES + SHARED_BYTES, file, logging.getLogger("test"))
        self.broker = VirtualBroker(payload_store=self.store)
        self.publisher = self.broker.connect("p")
        self.sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.received: dict[str, dict[str, list[bytes]]] = {
            name: {topic: [] for topic in TOPICS} for name in NAMES
        }
        self.clients: dict[str, VirtualClient | None] = {}
        for name in NAMES:
            client = self.clients[name] = self.broker.connect(name, **KEPT)
            client.subscribe("t/#", 1)

    @rule(
        topic=st.sampled_from(TOPICS),
        size=st.sampled_from([3, 4096, 5000, PIECE_BYTES, PIECE_BYTES + 1, 200_000]),
        retain=st.booleans(),
    )
    def publish(self, topic: str, size: int, *, retain: bool) -> None:
        """Publish a message that tells which it is."""
        payload = (b"%03d" % len(self.sent[topic])) * (size // 3)
        self.publisher.publish(topic, payload, qos=1, packet_id=7, retain=retain)
        self.publisher.finish_sending()
        assert self.publisher.take(PubAck).reason_code < 0x80
        self.sent[topic].append(payload)
        self._read_all()

    @rule(name=st.sampled_from(NAMES))
    def stall(self, name: str) -> None:
        """The client reads nothing more."""
        client = self.clients[name]
        if client is not None and not client.connection.outgoing.is_paused:
            client.connection.pause_sending(self.broker.now)

    @rule(name=st.sampled_from(NAMES))
    def read_a_little(self, name: str) -> None:
        """A client that has stalled takes one write."""
        client = self.clients[name]
        if client is not None and client.connection.outgoing.is_paused:
            client.room_bytes = 1
            client.connection.resume_sending(self.broker.now)
            self.broker.settle()
            client.room_bytes = None
            if not client.connection.outgoing.is_paused:
                client.connection.pause_sending(self.broker.now)
            self._read_all()

    @rule(name=st.sampled_from(NAMES))
    def go_on(self, name: str) -> None:
        """A client that has stalled reads on."""
        client = self.clients[name]
        if client is not None and client.connection.outgoing.is_paused:
            client.connection.resume_sending(self.broker.now)
            self.broker.settle()
            self._read_all()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        """The client's connection is lost, amid whatever was sent."""
        client = self.clients[name]
        if client is not None:
            client.lose()
            self.clients[name] = None

    @rule(name=st.sampled_from(NAMES))
    def come_back(self, name: str) -> None:
        """The client connects again, or takes its session over from a connection that stalls."""
        self.clients[name] = self.broker.connect(name, **KEPT)
        self._read_all()

    def _read_all(self) -> None:
        """Read and acknowledge what has come; repeats are told by their place."""
        is_new = True
        while is_new:
            is_new = False
            for name, client in self.clients.items():
                for packet in [] if client is None else client.take_all(Publish):
                    is_new = True
                    received = self.received[name][packet.topic]
                    index = int(packet.payload[:3])
                    assert packet.payload == self.sent[packet.topic][index]
                    if index == len(received):
                        received.append(packet.payload)
                    assert index < len(received), "overtaken"
                    if packet.qos and client is not None and not client.is_lost:
                        client.send(PubAck(packet.packet_id))

    @invariant()
    def balances(self) -> None:
        """Memory stays within its room, and every session's account agrees."""
        assert self.store.memory_bytes <= ROOM_BYTES
        for name in NAMES:
            self.broker.session(name).check_invariants()

    def teardown(self) -> None:
        """Everything arrives; and when nobody wants any of it, nothing is left of it."""
        for name in NAMES:
            self.come_back(name)
        assert self.received == dict.fromkeys(NAMES, self.sent)
        assert not self.store.n_lost
        for topic in TOPICS:
            self.publisher.publish(topic, retain=True)
            self.publisher.finish_sending()
        for name in NAMES:
            self.broker.connect(name).lose()
        self.clients.clear()
        del self.publisher
        gc.collect()  # a client here and its connection refer to each other
        assert self.store.memory_bytes == self.store.disk_bytes == 0


Spilling.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSpilling = Spilling.TestCase


def test_the_file_is_used_in_these_tests(tmp_path: Path) -> None:
    """The sizes above are such that payloads spill."""
    store = SpillStore(ROOM_BYTES + SHARED_BYTES, SpillFile(str(tmp_path)), logging.getLogger("t"))
    kept = [store.keep(bytes(200_000)), store.keep(bytes(5000))]
    assert store.n_spilled == 1
    assert len(kept) == 2
