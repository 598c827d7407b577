from __future__ import annotations

import gc
import tracemalloc

import pytest

from penstock.edge_proxy.sidecar.content_index import MIN_INDEXED_BYTES, ContentIndex
from tests.helpers.gates import SwitchGate
from tests.helpers.pairs import VirtualPair, publish

MIB = 1024 * 1024


def test_equal_payloads_are_one_object() -> None:
    """Equal bytes are kept once, different ones apart."""
    index = ContentIndex()
    first = index.keep(b"a" * MIN_INDEXED_BYTES)
    again = index.keep(bytes(bytearray(b"a" * MIN_INDEXED_BYTES)))
    other = index.keep(b"b" * MIN_INDEXED_BYTES)
    assert first is again
    assert not isinstance(first, bytes)
    assert not isinstance(other, bytes)
    assert (first.read(), other.read()) == (b"a" * MIN_INDEXED_BYTES, b"b" * MIN_INDEXED_BYTES)
    assert (len(first), len(index)) == (MIN_INDEXED_BYTES, 2)


def test_a_payload_goes_with_its_last_reference() -> None:
    """The index itself keeps nothing alive."""
    index = ContentIndex()
    first = index.keep(b"a" * MIN_INDEXED_BYTES)
    second = index.keep(b"a" * MIN_INDEXED_BYTES)
    del first
    assert len(index) == 1
    del second
    gc.collect()
    assert len(index) == 0


def test_short_payloads_are_kept_as_they_are() -> None:
    """Below the limit there is nothing to save."""
    index = ContentIndex()
    data = b"a" * (MIN_INDEXED_BYTES - 1)
    assert index.keep(data) is data
    assert len(index) == 0


@pytest.mark.memory
def test_a_message_withheld_for_many_clients_takes_the_memory_of_one() -> None:
    """Forty clients wait for the same MiB: memory grows by hardly more than one MiB."""
    gate = SwitchGate()
    first = VirtualPair.connected(gate=gate)
    pairs = [first, *(VirtualPair.connected(shared=first.shared) for _ in range(39))]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, pair in enumerate(pairs):
            pair.broker_sends(publish("t", MIB, packet_id=1 + number))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(pair.pair.client.outbox.n_bytes == MIB for pair in pairs)
    assert len(first.shared.payloads) == 1
    assert MIB <= grown < 1.2 * MIB
    gate.is_open = True
    for pair in pairs:
        pair.advance(1.0)
        assert len(pair.topics()) == 1
    assert len(first.shared.payloads) == 0
