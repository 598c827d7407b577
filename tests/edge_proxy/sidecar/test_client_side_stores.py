"""Payloads that wait for a client in a store that can be full or unreadable."""

from __future__ import annotations

import errno

import pytest

from penstock.broker.extensions import PayloadStore
from penstock.broker.mqtt.packets import Disconnect, PingReq, PingResp
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.payload import PIECE_BYTES, Payload
from tests.helpers.gates import SwitchGate
from tests.helpers.proxied_clients import DOWN, VirtualClient, publish, withholding


class Shelf(PayloadStore):
    """A store in the test's hands.

    Attributes:
        is_full: it takes nothing more.
        is_broken: it can read nothing back.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.is_broken = False

    def keep(self, data: bytes) -> Payload:
        """Keep a payload, or refuse it."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "no room")
        return Shelved(self, data)


class Shelved:
    """One payload of a `Shelf`."""

    def __init__(self, shelf: Shelf, data: bytes) -> None:
        self._shelf = shelf
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def read(self) -> bytes:
        """Return it."""
        return self.read_piece(0)

    def read_piece(self, start: int) -> bytes:
        """Return a part of it."""
        if self._shelf.is_broken:
            raise OSError(errno.EIO, "gone")
        return self._data[start : start + PIECE_BYTES]


def test_a_payload_of_a_store_leaves_in_pieces_and_nothing_splits_it() -> None:
    """A client that stalls has no more of it in memory than a piece; PINGRESP comes after it."""
    proxied, gate = withholding(payload_store=Shelf())
    large = publish("large", 3 * PIECE_BYTES, packet_id=2)
    proxied.broker_sends(large)
    gate.is_open = True
    proxied.proxied.client.link_changed()
    client = proxied.proxied.client
    proxied.settle()
    proxied.client_got = b""
    gate.is_open = False
    proxied.broker_sends(publish("other", 3 * PIECE_BYTES, packet_id=3))
    gate.is_open = True
    client.link_changed()
    proxied.proxied.pump(0, proxied.now)
    first = b"".join(proxied.proxied.data_to_send(DOWN))
    assert PIECE_BYTES < len(first) < PIECE_BYTES + 100
    proxied.proxied.pause_sending(DOWN)
    proxied.broker_sends(PingResp())
    assert proxied.client_got == b""
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    proxied.client_got = first + proxied.client_got
    assert proxied.to_client() == [publish("other", 3 * PIECE_BYTES, packet_id=3), PingResp()]


def test_a_payload_that_has_begun_is_sent_to_its_end_when_the_broker_goes() -> None:
    """The client gets whole packets."""
    proxied = VirtualClient.connected(payload_store=Shelf(), gate=SwitchGate(is_open=True))
    data = write_packet(publish("large", 3 * PIECE_BYTES, packet_id=2), 5)
    proxied.proxied.receive_data(DOWN, data, proxied.now)
    proxied.proxied.pump(0, proxied.now)
    proxied.client_got = b"".join(proxied.proxied.data_to_send(DOWN))
    proxied.proxied.pause_sending(DOWN)
    proxied.proxied.close(ReasonCode.SERVER_SHUTTING_DOWN, proxied.now)
    begun = proxied.client_got
    proxied.settle()
    assert proxied.client_got == begun, "a full connection is given no more of it"
    proxied.proxied.resume_sending(DOWN)
    assert len(b"".join(proxied.proxied.data_to_send(DOWN))) == PIECE_BYTES
    proxied.client_got += b"x" * PIECE_BYTES
    proxied.settle()
    assert proxied.to_client() == [
        publish("large", 3 * PIECE_BYTES, packet_id=2),
        Disconnect(ReasonCode.SERVER_SHUTTING_DOWN),
    ]


def test_while_the_store_has_no_room_reading_stops_and_nothing_of_qos_1_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store is asked again every second; PINGREQ is answered meanwhile."""
    shelf = Shelf()
    proxied, gate = withholding(payload_store=shelf)
    shelf.is_full = True
    proxied.broker_sends(publish("large", 5000, packet_id=2), publish("small", packet_id=3))
    assert not proxied.proxied.wants_reading(DOWN)
    proxied.client_sends(PingReq())
    assert proxied.to_client() == [PingResp()]
    proxied.advance(3.0)
    assert not proxied.proxied.wants_reading(DOWN)
    shelf.is_full = False
    proxied.advance(1.0)
    assert proxied.topics() == ["small"]
    assert proxied.proxied.wants_reading(DOWN)
    gate.is_open = True
    proxied.advance(1.0)
    assert proxied.topics() == ["big", "large"]
    assert "Shelf failed" in caplog.text
    proxied.proxied.client.check_invariants()


def test_nothing_is_due_for_a_stalled_client_while_the_store_has_no_room() -> None:
    """The store is asked again once the client's connection has room."""
    shelf = Shelf()
    proxied, _ = withholding(payload_store=shelf)
    shelf.is_full = True
    proxied.broker_sends(publish("large", 5000, packet_id=2))
    proxied.proxied.pause_sending(DOWN)
    proxied.now += 3600.0
    proxied.proxied.handle_timeout(proxied.now)
    proxied.settle()
    assert proxied.proxied.next_deadline() is None
    shelf.is_full = False
    proxied.proxied.resume_sending(DOWN)
    proxied.settle()
    assert proxied.proxied.wants_reading(DOWN)


def test_while_the_store_has_no_room_qos_0_is_dropped_if_something_is_withheld() -> None:
    """As at `queued_bytes`, so that acknowledgements get through."""
    shelf = Shelf()
    proxied, _ = withholding(payload_store=shelf)
    shelf.is_full = True
    proxied.broker_sends(publish("large", 5000), publish("small", packet_id=3))
    assert proxied.topics() == ["small"]
    assert proxied.proxied.client.ledger.dropped == {"broker_full": 1}


@pytest.mark.parametrize("packet_id", [0, 2])
def test_a_payload_that_cannot_be_read_back(
    packet_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """QoS 0 is lost and counted; for QoS 1 the connection ends, as the broker still has it."""
    shelf = Shelf()
    gate = SwitchGate()
    proxied = VirtualClient.connected(gate=gate, payload_store=shelf)
    proxied.broker_sends(publish("large", 5000, packet_id=packet_id), publish("last"))
    shelf.is_broken = gate.is_open = True
    proxied.advance(1.0)
    assert proxied.proxied.is_closing == bool(packet_id)
    assert proxied.topics()[:1] == ["last"]
    assert proxied.shared.ended.dropped == {}
    if packet_id:
        assert proxied.shared.ended.moved == 1
        assert "a payload cannot be read back" in caplog.text
    else:
        assert proxied.proxied.client.ledger.dropped == {"payload_lost": 1}


def test_a_payload_that_cannot_be_read_on_ends_the_connection() -> None:
    """The packet has begun: nothing may follow it, not even DISCONNECT."""
    shelf = Shelf()
    proxied = VirtualClient.connected(gate=SwitchGate(is_open=True), payload_store=shelf)
    data = write_packet(publish("large", 3 * PIECE_BYTES, packet_id=2), 5)
    proxied.proxied.receive_data(DOWN, data, proxied.now)
    proxied.proxied.pump(0, proxied.now)
    begun = b"".join(proxied.proxied.data_to_send(DOWN))
    shelf.is_broken = True
    proxied.settle()
    assert proxied.proxied.is_closing
    assert begun.startswith(data[:100])
    assert proxied.client_got == b""
