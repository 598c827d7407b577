from __future__ import annotations

import errno
import gc
import logging
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from penstock.broker.config.limits import Limits
from penstock.broker.mqtt.packets import PubAck
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.payload import PIECE_BYTES
from penstock.plugins.memory.spill import SHARED_BYTES, KeptPayload, SpillStore
from penstock.plugins.memory.spill_file import SpillFile
from tests.helpers.effort import examples
from tests.helpers.virtual import VirtualBroker, VirtualClient, will

ROOM_BYTES = 1_500_000
"""For three payloads of 300,000 bytes, of which the newest is there three times as it comes in."""

KEEP: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


def made_store(
    folder: Path, room_bytes: int = ROOM_BYTES, disk_limit: int | None = None
) -> SpillStore:
    """Return a store that has room for so many payload bytes in memory."""
    file = SpillFile(str(folder), disk_limit)
    return SpillStore(room_bytes + SHARED_BYTES, file, logging.getLogger("test"))


def payload_of(number: int, n_bytes: int = 300_000) -> bytes:
    """Return a payload that tells which it is, in each of its pieces."""
    return random.Random(number).randbytes(n_bytes)  # noqa: S311 (payloads, not secrets)


def truncate(store: SpillStore, n_bytes: int = 0) -> None:
    """Cut the store's file off, as nobody should."""
    for segment in store._file._segments:
        os.ftruncate(segment.fileno, n_bytes)


def test_what_has_waited_longest_goes_to_the_file(tmp_path: Path) -> None:
    """Up to the limit payloads stay in memory; beyond it, the oldest are put into the file."""
    store = made_store(tmp_path)
    kept = [store.keep(payload_of(number)) for number in range(3)]
    assert (store.memory_bytes, store.disk_bytes) == (900_000, 0)
    kept += [store.keep(payload_of(number)) for number in range(3, 5)]
    assert (store.memory_bytes, store.disk_bytes, store.n_spilled) == (900_000, 600_000, 2)
    assert [payload._kept.data is None for payload in kept] == [True, True, False, False, False]
    assert store.figures() == {
        "memory_bytes": 900_000,
        "disk_bytes": 600_000,
        "spilled_total": 2,
        "lost_total": 0,
    }
    for number, payload in enumerate(kept):
        assert payload.read() == payload_of(number)


def test_a_payload_larger_than_the_limit_goes_to_the_file_at_once(tmp_path: Path) -> None:
    """It makes no room for itself at the cost of others, as it would have none."""
    store = made_store(tmp_path, 900_000)
    small = store.keep(payload_of(1))
    large = store.keep(payload_of(2, 500_000))
    assert (store.memory_bytes, store.disk_bytes) == (300_000, 500_000)
    assert large.read() == payload_of(2, 500_000)
    assert small.read() == payload_of(1)


def test_the_last_reference_frees_memory_and_disk(tmp_path: Path) -> None:
    """Nothing else does, and it does so at once."""
    store = made_store(tmp_path)
    kept = [store.keep(payload_of(number)) for number in range(6)]
    again = list(kept)
    del kept[:]
    assert store.memory_bytes + store.disk_bytes == 1_800_000
    while again:
        left = store.memory_bytes + store.disk_bytes - 300_000
        again.pop()
        assert store.memory_bytes + store.disk_bytes == left
    assert not store._pieces
    assert not store._in_memory


def test_what_waits_in_memory_makes_room_when_it_goes(tmp_path: Path) -> None:
    """What is only on its way through never goes to the file."""
    store = made_store(tmp_path)
    for number in range(50):
        assert store.keep(payload_of(number)).read() == payload_of(number)
    assert not store.n_spilled


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
def test_pieces_make_up_the_payload_and_are_shared(tmp_path: Path, room_bytes: int) -> None:
    """Whoever sends the same piece at about the same time is given the same object."""
    store = made_store(tmp_path, room_bytes)
    payload = store.keep(payload_of(7))
    starts = range(0, len(payload), PIECE_BYTES)
    assert b"".join(map(payload.read_piece, starts)) == payload_of(7)
    assert payload.read_piece(PIECE_BYTES) is payload.read_piece(PIECE_BYTES)


def test_a_piece_keeps_no_more_than_itself_in_memory(tmp_path: Path) -> None:
    """A payload that goes to the file while it is sent is not held by what was sent of it."""
    store = made_store(tmp_path)
    payload = store.keep(payload_of(1))
    data = payload._kept.data
    n_references = sys.getrefcount(data)
    pieces = [payload.read_piece(start) for start in range(0, len(payload), PIECE_BYTES)]
    assert sys.getrefcount(data) == n_references
    assert sum(map(len, pieces)) == len(payload)


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """What cannot be kept is refused; what was kept stays, and there is room again later."""
    store = made_store(tmp_path, disk_limit=500_000)
    kept = [store.keep(payload_of(number)) for number in range(4)]
    with pytest.raises(OSError, match="disk_limit"):
        store.keep(payload_of(9))
    assert (store.memory_bytes, store.disk_bytes) == (900_000, 300_000)
    for number, payload in enumerate(kept):
        assert payload.read() == payload_of(number)
    del kept[0], payload
    kept.append(store.keep(payload_of(9)))
    assert kept[-1].read() == payload_of(9)


def test_a_payload_that_cannot_be_read_once_is_lost_for_good(tmp_path: Path) -> None:
    """It is not sent again and again in vain, and it is counted once."""
    store = made_store(tmp_path, 0)
    payload = store.keep(payload_of(1))
    truncate(store, PIECE_BYTES)
    assert payload.read_piece(0) == payload_of(1)[:PIECE_BYTES]
    with pytest.raises(OSError, match="gone from the file"):
        payload.read_piece(PIECE_BYTES)
    with pytest.raises(OSError, match="before"):
        payload.read()
    assert store.n_lost == 1


def test_references_may_be_dropped_on_any_thread(tmp_path: Path) -> None:
    """A queue reads and frees on a thread of its own while messages come in."""
    store = made_store(tmp_path, 50_000)
    n_wrong = []

    def read_and_free(payloads: list[tuple[int, KeptPayload]]) -> None:
        while payloads:
            number, payload = payloads.pop()
            if payload.read() != payload_of(number, 10_000):
                n_wrong.append(number)

    threads = []
    for turn in range(20):
        payloads = [(n, store.keep(payload_of(n, 10_000))) for n in range(turn, turn + 10)]
        threads.append(threading.Thread(target=read_and_free, args=(payloads,)))
        threads[-1].start()
        del payloads
    for thread in threads:
        thread.join()
    assert not n_wrong
    assert store.memory_bytes == store.disk_bytes == 0


def test_the_collector_may_free_amid_a_step(tmp_path: Path) -> None:
    """A payload in a circle of references goes when the collector finds it, whenever that is."""
    store = made_store(tmp_path, 0)
    circle: list[object] = [store.keep(payload_of(1))]
    circle.append(circle)
    del circle
    with store._lock:
        gc.collect()
        assert store.disk_bytes == 300_000
    assert store.keep(payload_of(2)).read() == payload_of(2)
    assert store.disk_bytes == 0


class References(RuleBasedStateMachine):
    """Payloads with one or more references, against a model that has them all in a dict."""

    kept = Bundle("kept")

    def __init__(self) -> None:
        super().__init__()
        self.store = made_store(Path("/tmp"), 80_000)  # noqa: S108 (its files have no name)
        self.alive: dict[int, int] = {}
        self.sizes: dict[int, int] = {}

    @rule(target=kept, number=st.integers(0, 1000), n_bytes=st.integers(1, 200_000))
    def keep(self, number: int, n_bytes: int) -> tuple[int, list[KeptPayload]]:
        """Keep a payload."""
        seed = number * 1_000_000 + n_bytes
        return self._refer(seed, n_bytes, self.store.keep(payload_of(seed, n_bytes)))

    def _refer(
        self, seed: int, n_bytes: int, payload: KeptPayload
    ) -> tuple[int, list[KeptPayload]]:
        key = id(payload)
        self.alive[key] = self.alive.get(key, 0) + 1
        self.sizes[key] = n_bytes
        return seed, [payload]

    @rule(target=kept, reference=kept)
    def share(self, reference: tuple[int, list[KeptPayload]]) -> tuple[int, list[KeptPayload]]:
        """Give one more target a reference."""
        seed, (payload,) = reference
        return self._refer(seed, len(payload), payload)

    @rule(reference=kept)
    def read(self, reference: tuple[int, list[KeptPayload]]) -> None:
        """Read a payload whole."""
        seed, (payload,) = reference
        assert payload.read() == payload_of(seed, len(payload))

    @rule(reference=kept)
    def send(self, reference: tuple[int, list[KeptPayload]]) -> None:
        """Read a payload piece by piece."""
        seed, (payload,) = reference
        pieces = map(payload.read_piece, range(0, len(payload), PIECE_BYTES))
        assert b"".join(pieces) == payload_of(seed, len(payload))

    @rule(target=kept, reference=consumes(kept))
    def drop(self, reference: tuple[int, list[KeptPayload]]) -> object:
        """Drop one reference."""
        key = id(reference[1][0])
        self.alive[key] -= 1
        if not self.alive[key]:
            del self.alive[key], self.sizes[key]
        reference[1].clear()
        return multiple()

    @invariant()
    def balances(self) -> None:
        """What is in memory and in the file is what is referred to, within the limit."""
        total = sum(self.sizes.values())
        assert self.store.memory_bytes + self.store.disk_bytes == total
        assert self.store.memory_bytes <= 80_000
        assert self.store.memory_bytes == sum(kept.n_bytes for kept in self.store._in_memory)


References.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestReferences = References.TestCase


class Link:
    """A subscriber whose transport takes some bytes at a time, and nothing unless told to."""

    def __init__(self, client: VirtualClient) -> None:
        self.client = client
        self.connection = client.connection

    def stall(self) -> None:
        """The transport has no room."""
        self.connection.pause_sending(self.client.broker.now)

    def take_one(self) -> None:
        """The transport takes one write, and has no room after it."""
        self.client.room_bytes = 1
        self.go_on()
        self.client.room_bytes = None
        if not self.connection.outgoing.is_paused:
            self.stall()

    def go_on(self) -> None:
        """The transport has room from now on."""
        self.connection.resume_sending(self.client.broker.now)
        self.client.broker.settle()


def test_a_stalled_client_has_one_piece_in_memory(tmp_path: Path) -> None:
    """A payload is read only as far as the transport has room for it."""
    broker = VirtualBroker(payload_store=made_store(tmp_path, 0))
    client = broker.connect("slow")
    client.subscribe("#", 1)
    link = Link(client)
    link.stall()
    broker.connect("p").publish("t", payload_of(1, 1_000_000), qos=1)
    broker.connect("q").publish("small", b"behind", qos=1)
    before = len(client.received)
    for turn in range(1, 4):
        link.take_one()
        assert len(client.received) - before <= turn * PIECE_BYTES + 20
    assert not client.payloads()
    link.go_on()
    assert client.acknowledge() == [payload_of(1, 1_000_000), b"behind"]
    broker.session("slow").check_invariants()
    assert broker.core.ledger().delivered == 2


def test_packets_behind_a_payload_keep_their_place(tmp_path: Path) -> None:
    """What is written while a payload waits for room comes behind all of it."""
    broker = VirtualBroker(payload_store=made_store(tmp_path, 0))
    client = broker.connect("slow")
    client.subscribe("t", 1)
    link = Link(client)
    link.stall()
    broker.connect("p").publish("t", payload_of(1, 200_000), qos=1)
    link.take_one()
    client.publish("nobody", b"x", qos=1, packet_id=9)  # its PUBACK stands behind the payload
    assert client.connection.outgoing.is_stuck
    link.go_on()
    assert [type(packet).__name__ for packet in client.inbox] == ["Publish", "PubAck"]
    assert client.payloads() == [payload_of(1, 200_000)]


def test_a_connection_that_ends_amid_a_payload_frees_it(tmp_path: Path) -> None:
    """What is half sent goes with the connection and, at QoS 0, with it for good."""
    store = made_store(tmp_path, 0)
    broker = VirtualBroker(payload_store=store)
    client = broker.connect("slow")
    client.subscribe("t", 0)
    link = Link(client)
    link.stall()
    broker.connect("p").publish("t", payload_of(1), qos=1)
    link.take_one()
    assert store.disk_bytes == 300_000
    client.lose()
    client.connection.outgoing.drop_out()
    assert store.disk_bytes == 0


def test_a_payload_lost_before_it_is_sent_is_booked(tmp_path: Path) -> None:
    """It is dropped as `payload_lost`; the client is sent what comes after it."""
    store = made_store(tmp_path, 0)
    broker = VirtualBroker(payload_store=store)
    client = broker.connect("slow")
    client.subscribe("t", 1)
    Link(client).stall()
    broker.connect("p").publish("t", payload_of(1), qos=1)
    truncate(store)
    broker.connect("q").publish("t", b"next", qos=1)
    Link(client).go_on()
    assert client.acknowledge() == [b"next"]
    assert broker.core.ledger().dropped == {"payload_lost": 1}
    assert broker.core.counters.extension_errors == {"SpillStore": 1}
    broker.session("slow").check_invariants()


def test_a_payload_lost_while_it_is_sent_ends_the_connection_once(tmp_path: Path) -> None:
    """The packet cannot be finished; the client comes again and is not sent it again."""
    store = made_store(tmp_path, 0)
    broker = VirtualBroker(payload_store=store)
    client = broker.connect("slow", **KEEP)
    client.subscribe("t", 1)
    link = Link(client)
    link.stall()
    broker.connect("p").publish("t", payload_of(1), qos=1)
    link.take_one()
    truncate(store)
    link.go_on()
    assert client.is_lost
    assert not client.payloads()
    again = broker.connect("slow", **KEEP)
    assert not again.inbox
    assert not again.is_lost
    assert broker.core.ledger().dropped == {"payload_lost": 1}
    broker.connect("q").publish("t", b"next", qos=1)
    assert again.acknowledge() == [b"next"]
    broker.session("slow").check_invariants()


@pytest.mark.parametrize("version", [4, 5])
def test_a_full_disk_refuses_the_publish_and_keeps_what_was_accepted(
    tmp_path: Path, version: int
) -> None:
    """MQTT 5 is told 0x97, MQTT 3.1.1 gets no PUBACK; it is counted, and goes on with room."""
    broker = VirtualBroker(
        Limits(receive_maximum=100), payload_store=made_store(tmp_path, 0, disk_limit=700_000)
    )
    away = broker.connect("away", **KEEP)
    away.subscribe("t", 1)
    away.lose()
    publisher = broker.connect("p", version)
    for number in range(2):
        publisher.publish("t", payload_of(number), qos=1, packet_id=1 + number)
    assert len(publisher.take_all(PubAck)) == 2
    publisher.publish("t", payload_of(2), qos=1, packet_id=3)
    if version == 5:
        assert publisher.take(PubAck).reason_code == ReasonCode.QUOTA_EXCEEDED
    else:
        assert publisher.is_lost
        assert not publisher.inbox
    assert broker.core.counters.publish_refused == {"quota exceeded (0x97)": 1}
    back = broker.connect("away", **KEEP)
    assert back.acknowledge() == [payload_of(0), payload_of(1)]
    broker.connect("p2", version).publish("t", payload_of(3), qos=1)
    assert back.acknowledge() == [payload_of(3)]


def test_an_error_of_the_disk_is_refused_like_any_other(tmp_path: Path) -> None:
    """Whatever the system says when it does not take a payload, the publish is refused."""
    store = made_store(tmp_path, 0)
    broker = VirtualBroker(payload_store=store)
    broker.connect("s").subscribe("t")

    def fail(_data: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store._file.write = fail  # type: ignore[assignment, method-assign]
    publisher = broker.connect("p")
    publisher.publish("t", payload_of(1), qos=1)
    assert publisher.take(PubAck).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert not store.memory_bytes


def test_a_will_that_cannot_be_kept_is_refused_and_counted(tmp_path: Path) -> None:
    """A will is a publish like others, whom nobody can be told of."""
    broker = VirtualBroker(payload_store=made_store(tmp_path, 0, disk_limit=1000))
    broker.connect("s").subscribe("will", 1)
    broker.connect("w", will=will(payload=bytes(5000))).lose()
    assert broker.core.counters.publish_refused == {"quota exceeded (0x97)": 1}
