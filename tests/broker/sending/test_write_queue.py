from __future__ import annotations

import random

import pytest

from penstock.broker.message import Message
from penstock.broker.mqtt.writer import publish_header
from penstock.broker.payload import PIECE_BYTES
from penstock.broker.receiving.connection import Connection
from penstock.broker.sending.sender import WRITE_BYTES
from tests.helpers.shelf import Shelf
from tests.helpers.virtual import VirtualBroker


def large_message_in_out(payload: bytes) -> Connection:
    """Return a connection that was just given a message to send."""
    broker = VirtualBroker()
    client = broker.connect("s")
    message = Message("t", payload)
    client.session.deliver(message, 0, retain=False, subscription_ids=(), now=broker.now)
    return client.connection


def test_very_much_is_written_in_rounds() -> None:
    """Each takes as much as another connection may get meanwhile; nothing is copied."""
    payload = bytes(range(256)) * 8192
    connection = large_message_in_out(payload)
    total = connection.outgoing.out_bytes
    before = connection.client.core.counters.bytes_sent
    rounds = []
    while connection.outgoing.out:
        rounds.append(connection.outgoing.data_to_send())
        assert connection.outgoing.out_bytes == sum(map(len, connection.outgoing.out))
    sizes = [sum(map(len, buffers)) for buffers in rounds]
    assert sizes == [WRITE_BYTES] * (total // WRITE_BYTES) + [total % WRITE_BYTES]
    assert connection.client.core.counters.bytes_sent - before == total
    written = [buffer for buffers in rounds for buffer in buffers]
    assert b"".join(written).endswith(payload)
    assert all(part.obj is payload for part in written if isinstance(part, memoryview))


def test_what_has_no_room_is_handed_over_whole() -> None:
    """It waits in the transport for the kernel: there is no next round for it."""
    connection = large_message_in_out(bytes(4 * WRITE_BYTES))
    connection.pause_sending(0.0)
    assert sum(map(len, connection.outgoing.data_to_send())) > 4 * WRITE_BYTES
    assert not connection.outgoing.out


def stored(n_bytes: int, fails_from: int | None = None) -> Shelf:
    """Return a stored payload of which no two pieces are alike."""
    return Shelf(random.Random(n_bytes).randbytes(n_bytes), fails_from)  # noqa: S311 (no secrets)


def deliver(connection: Connection, payload: Shelf | bytes, topic: str = "t") -> bytes:
    """Give a connection a message to send, and return the packet that it is to become."""
    message = Message(topic, payload)
    connection.client.session.deliver(message, 0, retain=False, subscription_ids=(), now=0.0)
    data = payload if isinstance(payload, bytes) else payload.data
    return publish_header(topic.encode(), len(data), version=connection.client.version) + data


@pytest.mark.parametrize("n_pieces", [2, 3.5, 16])
def test_a_stored_payload_is_read_piece_by_piece(n_pieces: float) -> None:
    """Each round takes one piece, and nothing of it is read before."""
    connection = VirtualBroker().connect("s").connection
    payload = stored(int(n_pieces * PIECE_BYTES))
    before = connection.client.core.counters.bytes_sent
    packet = deliver(connection, payload)
    written = []
    for n_read in range(1, -int(-n_pieces // 1) + 1):
        assert connection.outgoing.has_unread
        written += connection.outgoing.data_to_send()
        assert len(payload.starts) == n_read
        assert connection.outgoing.out_bytes == sum(map(len, connection.outgoing.out))
    assert not connection.outgoing.has_unread
    assert not connection.outgoing.out
    assert b"".join(written) == packet
    assert connection.client.core.counters.bytes_sent - before == len(packet)


def test_a_short_stored_payload_is_read_at_once() -> None:
    """One that is a single piece needs no rounds."""
    connection = VirtualBroker().connect("s").connection
    packet = deliver(connection, stored(PIECE_BYTES))
    assert not connection.outgoing.has_unread
    assert b"".join(connection.outgoing.data_to_send()) == packet


def test_stored_payloads_and_others_leave_in_their_order() -> None:
    """What stands before, between and behind stored payloads keeps its place."""
    connection = VirtualBroker().connect("s").connection
    packets = [
        deliver(connection, payload)
        for payload in (b"a", stored(200_000), b"b" * 100, stored(PIECE_BYTES + 1), b"c" * 9000)
    ]
    written = []
    while connection.outgoing.out:
        written += connection.outgoing.data_to_send()
        assert connection.outgoing.out_bytes == sum(map(len, connection.outgoing.out))
    assert b"".join(written) == b"".join(packets)
    assert not connection.outgoing.out_bytes


def test_a_stored_payload_waits_for_room() -> None:
    """While the transport has none, nothing is read or handed over, and the order stays."""
    connection = VirtualBroker().connect("s").connection
    payload = stored(200_000)
    packets = [deliver(connection, payload)]
    written = connection.outgoing.data_to_send()
    connection.pause_sending(0.0)
    assert connection.outgoing.is_stuck
    connection.client.sender.send_short(0x62, 7)
    packets.append(b"\x62\x02\x00\x07")
    for _ in range(3):
        assert connection.outgoing.data_to_send() == []
        assert connection.outgoing.out_bytes == sum(map(len, connection.outgoing.out))
    assert payload.starts == [0]
    connection.resume_sending(0.0)
    assert not connection.outgoing.is_stuck
    while connection.outgoing.out:
        written += connection.outgoing.data_to_send()
    assert b"".join(written) == b"".join(packets)


def test_a_packet_that_cannot_go_on_ends_the_connection() -> None:
    """What would follow could only be read as a part of its payload."""
    client = VirtualBroker().connect("s")
    deliver(client.connection, stored(200_000, fails_from=PIECE_BYTES))
    deliver(client.connection, b"behind")
    client.broker.settle()
    assert client.is_lost
    assert not client.inbox
    assert b"behind" not in client.received
    assert client.broker.core.counters.extension_errors == {"PayloadStore": 1}


def test_what_nobody_can_be_written_to_is_forgotten() -> None:
    """Nothing of it is read, and the next packets go as always."""
    connection = VirtualBroker().connect("s").connection
    payload = stored(200_000)
    deliver(connection, payload)
    connection.outgoing.drop_out()
    assert payload.starts == [0]
    assert (
        connection.outgoing.out,
        connection.outgoing.out_bytes,
        connection.outgoing.has_unread,
    ) == ([], 0, False)
    packet = deliver(connection, b"next")
    assert connection.outgoing.data_to_send() == [packet]
