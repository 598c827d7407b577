"""What one call into the core has touched, and when the driver is woken for it."""

from __future__ import annotations

from tests.helpers.virtual import VirtualBroker


def test_a_connection_is_on_the_list_once_and_wakes_the_driver_outside_its_turn() -> None:
    """The driver is called when nobody would look otherwise, and only then."""
    woken: list[int] = []
    broker = VirtualBroker()
    broker.core.turn._wake = lambda: woken.append(1)
    client = broker.connect()
    woken.clear()
    client.send_bytes(b"\xc0\x00")
    assert woken == []
    client.connection.outgoing.want_pump()
    broker.core.turn.touch(client.connection.outgoing)
    assert woken == [1]
    assert broker.core.turn.take_touched() == [client.connection.outgoing]
    assert broker.core.turn.take_touched() == []


def test_what_only_has_to_be_written_is_not_looked_at_any_further() -> None:
    """An answer needs no more than its write; whoever may want more says so, before or after."""
    broker = VirtualBroker()
    client = broker.connect()
    assert not client.connection.outgoing.needs_look
    client.connection.receive_data(b"\xc0\x00", broker.now)
    assert broker.core.turn.touched == [client.connection.outgoing]
    assert not client.connection.outgoing.needs_look
    client.connection.outgoing.want_pump()
    assert broker.core.turn.touched == [client.connection.outgoing]
    assert client.connection.outgoing.needs_look
    broker.settle()
    assert not client.connection.outgoing.needs_look
    assert bytes(client.received).endswith(b"\xd0\x00")
