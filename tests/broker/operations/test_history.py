from __future__ import annotations

from penstock.broker.events import ClientDisconnected
from penstock.broker.mqtt.packets import Disconnect
from penstock.broker.operations.history import KEPT_EVENTS, MOST_CLIENTS, History
from tests.broker.operations.test_operations import STAYS
from tests.broker.serving import make_server, operations_of, port_of, until
from tests.helpers.virtual import VirtualBroker
from tests.helpers.wire import connected


def started() -> tuple[VirtualBroker, History]:
    """Return a broker on a virtual clock whose history is kept."""
    now = [1000.0]
    history = History(lambda: now[0])
    broker = VirtualBroker(callbacks=history.callbacks)
    history._clock = lambda: broker.now
    return broker, history


def test_connects_takeovers_and_disconnects_are_told_newest_first() -> None:
    """With their time, and why a connection has ended."""
    broker, history = started()
    broker.connect("c", clean_start=False, properties=STAYS)
    broker.advance(1)
    second = broker.connect("c", clean_start=False, properties=STAYS)
    broker.advance(1)
    second.send(Disconnect())
    broker.advance(1)
    assert [(one.seconds_ago, one.kind, one.reason) for one in history.of("c")] == [
        (1.0, "disconnected", "the client has disconnected"),
        (2.0, "connected", ""),
        (2.0, "taken_over", "session taken over (0x8E)"),
        (3.0, "connected", ""),
    ]
    assert history.of("unknown") == []


def test_the_end_of_a_session_and_of_a_connection_that_breaks_are_told() -> None:
    """A client that vanishes gives no reason; one that says nothing is told of its Keep Alive."""
    broker, history = started()
    broker.connect("c").lose()
    assert [(one.kind, one.reason) for one in history.of("c")] == [
        ("session_ended", ""),
        ("disconnected", "the connection was lost"),
        ("connected", ""),
    ]
    broker.connect("d", keep_alive=10)
    broker.advance(16)
    assert history.of("d")[1].reason == "keep alive timeout (0x8D)"


def test_a_client_with_a_very_long_name_is_not_remembered() -> None:
    """A client makes its name up: ten thousand of 64 KiB would take 650 MB."""
    broker, history = started()
    broker.connect("x" * 65_535).lose()
    assert not history._events


def test_only_the_last_events_of_the_last_clients_are_kept() -> None:
    """A client that reconnects all day, or a thousand new ones a second, fill no memory."""
    broker, history = started()
    broker.connect("c")
    session = broker.session("c")
    for number in range(2 * KEPT_EVENTS):
        history.callbacks.client_disconnected[0](ClientDisconnected(session, str(number), 0))
    assert len(history.of("c")) == KEPT_EVENTS
    assert history.of("c")[0].address == str(2 * KEPT_EVENTS - 1)
    for number in range(MOST_CLIENTS):
        session.client_id = f"d{number}"
        history.callbacks.client_disconnected[0](ClientDisconnected(session, "", 0))
    assert history.of("c") == []
    assert len(history.of("d0")) == 1


async def test_a_history_is_kept_where_a_plugin_asks_for_it() -> None:
    """With the address of each connection; without that, a client that comes costs no call more."""
    server = make_server(plugins={"console": {"http": "127.0.0.1:0"}})
    await server.start()
    try:
        operations = operations_of(server)
        client = await connected(port_of(server), "c")
        port = client.sock.getsockname()[1]
        client.close()
        await until(lambda: not server.core.sessions.get("c"))
        lately = operations.lately("c")
        assert [one.kind for one in lately] == ["session_ended", "disconnected", "connected"]
        assert lately[1].address == lately[2].address == f"127.0.0.1:{port}"
    finally:
        await server.stop()
