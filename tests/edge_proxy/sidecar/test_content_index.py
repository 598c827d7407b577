from __future__ import annotations

import gc
import logging
import tracemalloc
from pathlib import Path

import pytest

from penstock.broker.extensions import PayloadStore
from penstock.broker.payload import PIECE_BYTES, STORED_ABOVE_BYTES
from penstock.edge_proxy.sidecar.content_index import ContentIndex
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.spill_file import SpillFile
from penstock.plugins.memory.store import CopyStore
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import VirtualClient, publish

MIB = 1024 * 1024
N_BYTES = STORED_ABOVE_BYTES + 1


def test_equal_payloads_are_one_object() -> None:
    """Equal bytes are kept once, different ones apart."""
    index = ContentIndex()
    first = index.keep(b"a" * N_BYTES)
    again = index.keep(bytes(bytearray(b"a" * N_BYTES)))
    other = index.keep(b"b" * N_BYTES)
    assert first is again
    assert not isinstance(first, bytes)
    assert not isinstance(other, bytes)
    assert (first.read(), other.read()) == (b"a" * N_BYTES, b"b" * N_BYTES)
    assert (len(first), len(index)) == (N_BYTES, 2)


def test_a_payload_goes_with_its_last_reference() -> None:
    """The index itself keeps nothing alive."""
    index = ContentIndex()
    first = index.keep(b"a" * N_BYTES)
    second = index.keep(b"a" * N_BYTES)
    del first
    assert len(index) == 1
    del second
    gc.collect()
    assert len(index) == 0


def test_short_payloads_are_kept_as_they_are() -> None:
    """Below the limit there is nothing to save."""
    index = ContentIndex()
    data = b"a" * STORED_ABOVE_BYTES
    assert index.keep(data) is data
    assert len(index) == 0


def spill_store(tmp_path: Path, disk_limit: int | None = None) -> SpillStore:
    """Return a store that keeps nothing in memory."""
    return SpillStore(0, SpillFile(str(tmp_path), disk_limit), logging.getLogger("test.spill"))


def test_equal_payloads_are_in_a_store_once(tmp_path: Path) -> None:
    """A store is asked for each payload once; its memory is free with the last reference."""
    store = spill_store(tmp_path)
    index = ContentIndex(store)
    payload = bytes(range(256)) * 1000
    kept = [index.keep(bytes(bytearray(payload))) for _ in range(3)]
    assert kept[0] is kept[2]
    assert (store.disk_bytes, store.memory_bytes) == (len(payload), 0)
    first = kept[0]
    assert not isinstance(first, bytes)
    assert first.read() == payload
    assert first.read_piece(PIECE_BYTES) == payload[PIECE_BYTES : 2 * PIECE_BYTES]
    del kept, first
    gc.collect()
    assert store.disk_bytes == 0


def test_a_store_of_copies_gets_each_payload() -> None:
    """`store: copy` is the comparison: a payload for each subscriber."""
    index = ContentIndex(CopyStore())
    data = bytes(N_BYTES)
    first, again = index.keep(data), index.keep(data)
    assert first is not again
    assert (first, again, len(index)) == (data, data, 0)


def test_a_store_without_room_says_so(tmp_path: Path) -> None:
    """What was kept before stays; another payload is refused, the same one is not."""
    index = ContentIndex(spill_store(tmp_path, disk_limit=N_BYTES))
    first = index.keep(b"a" * N_BYTES)
    with pytest.raises(OSError, match="disk_limit"):
        index.keep(b"b" * N_BYTES)
    assert index.keep(b"a" * N_BYTES) is first


def test_a_payload_in_memory_is_read_in_pieces() -> None:
    """As one in a file is."""
    data = bytes(range(256)) * 600
    kept = ContentIndex(PayloadStore()).keep(data)
    assert not isinstance(kept, bytes)
    assert kept.read_piece(PIECE_BYTES) == data[PIECE_BYTES : 2 * PIECE_BYTES]


def test_a_message_withheld_for_many_clients_takes_the_memory_of_one() -> None:
    """Forty clients wait for the same MiB: memory grows by hardly more than one MiB."""
    gate = SwitchGate()
    first = VirtualClient.connected(gate=gate)
    clients = [first, *(VirtualClient.connected(shared=first.shared) for _ in range(39))]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, proxied in enumerate(clients):
            proxied.broker_sends(publish("t", MIB, packet_id=1 + number))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(proxied.proxied.client.outbox.n_bytes == MIB for proxied in clients)
    assert len(first.shared.payloads) == 1
    assert MIB <= grown < 1.2 * MIB
    gate.is_open = True
    for proxied in clients:
        proxied.advance(1.0)
        assert len(proxied.topics()) == 1
    assert len(first.shared.payloads) == 0
