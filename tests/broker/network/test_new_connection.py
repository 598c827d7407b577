from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.counters import Counters
from penstock.broker.mqtt.packets import Connect, Disconnect, Subscribe, SubscriptionRequest
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import new_connection as arrival_module
from penstock.broker.network.admission import Admission, Places
from penstock.broker.network.new_connection import AcceptedConnection, Layer, Reception, Turns
from penstock.broker.network.open_files import FEWEST, RESERVE
from penstock.broker.server import Server
from tests.broker.serving import driver_of, port_of, serving, until
from tests.helpers.certificates import Authority
from tests.helpers.process import ROOT, SECONDS
from tests.helpers.streams import StreamClient
from tests.helpers.wire import WireClient, connected

MOST_CALLS = 180
"""Calls of functions of Python for a client that connects, is accepted and disconnects."""


class Below(asyncio.Transport):
    """A transport of no network.

    Attributes:
        is_aborted: it was.
        unsent_bytes: what it says.
    """

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 5)})
        self.is_closed = False
        self.is_aborted = False
        self.unsent_bytes = 0

    def get_write_buffer_size(self) -> int:
        """Return what the test says."""
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever unsent."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send it nowhere."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        """Note it."""
        self.is_closed = True

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True


class Above(asyncio.Protocol):
    """A protocol that notes what it is told.

    Attributes:
        told: names of calls, in order.
    """

    def __init__(self) -> None:
        self.told: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note it."""
        assert isinstance(transport, Layer)
        self.told.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        """Note it."""
        del exc
        self.told.append("lost")

    def pause_writing(self) -> None:
        """Note it."""
        self.told.append("pause")

    def resume_writing(self) -> None:
        """Note it."""
        self.told.append("resume")


def make(connections: int = 1, **options: Any) -> tuple[Reception, AcceptedConnection]:
    """Return a reception and a connection that comes in."""
    counters = Counters()
    admission = Admission(counters, connections=connections, connections_per_address=None)
    reception = Reception(
        admission, counters, logging.getLogger("test"), clock=lambda: 7.0, timeout=0.02
    )
    return reception, AcceptedConnection(reception, "default", Places(), **options)


async def test_layer_tells_the_protocol_above_only_what_it_has_begun() -> None:
    """A connection that ends before its layers are through was never there for MQTT."""
    _, arrival = make()
    above = Above()
    layer = Layer(above, arrival)
    layer.connection_made(Below())
    layer.pause_writing()
    layer.resume_writing()
    layer.connection_lost(None)
    assert above.told == []
    assert arrival.place is not None
    _, arrival = make()
    layer = Layer(above, arrival)
    layer.connection_made(Below())
    layer.open()
    layer.pause_writing()
    layer.resume_writing()
    layer.connection_lost(None)
    assert above.told == ["made", "pause", "resume", "lost"]


async def test_layers_have_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that does not come through is dropped, counted and logged."""
    caplog.set_level(logging.INFO)
    reception, arrival = make()
    below = Below()
    Layer(Above(), arrival).connection_made(below)
    await until(lambda: below.is_aborted)
    assert reception.counters.connections_refused == {"timeout": 1}
    assert caplog.messages == ["192.0.2.1:5 on listener default: no CONNECT in time"]


async def test_connection_that_came_through_is_left_alone() -> None:
    """The time for the layers ends with them."""
    reception, arrival = make()
    below = Below()
    Layer(Above(), arrival).connection_made(below)
    arrival.leave_layers()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * reception.timeout, later.set)
    await later.wait()
    assert not below.is_aborted


async def test_refused_peer_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is told may take a while, and no longer."""
    monkeypatch.setattr(arrival_module, "CLOSE_TIMEOUT_SECONDS", 0.02)
    _, arrival = make()
    below = Below()
    Layer(Above(), arrival).connection_made(below)
    arrival.fail("tls", "no TLS")
    assert below.is_closed
    assert not below.is_aborted
    await until(lambda: below.is_aborted)


async def test_end_gives_everything_back() -> None:
    """No timer and no place stays, and `end` may be called again."""
    reception, arrival = make()
    layer = Layer(Above(), arrival)
    layer.connection_made(Below())
    assert reception.in_layers == {arrival}
    layer.connection_lost(None)
    arrival.end()
    assert reception.in_layers == set()
    assert reception.admission.n_connections == 0


async def test_connection_without_a_place_is_cut_off_at_once() -> None:
    """Nothing is read from it."""
    reception, _ = make()
    places = Places()
    while reception.admission.enter(places) is not None:
        pass
    arrival = AcceptedConnection(reception, "default", places)
    below = Below()
    Layer(Above(), arrival).connection_made(below)
    assert below.is_aborted
    assert reception.in_layers == set()


async def test_stop_ends_connections_in_their_layers(tmp_path: Path) -> None:
    """A stop does not wait for a handshake."""
    authority = Authority(tmp_path)
    async with serving(listeners={"default": authority.listener_keys()}) as server:
        silent = await WireClient.dial(port_of(server))
        client = await StreamClient.dial_tls(port_of(server), authority.client_context())
        await client.connect("c")
        await until(lambda: server._reception.admission.n_connections == 2)
        await server.stop()
        assert await silent.rest_bytes() == b""
        assert await client.rest() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        silent.close()
        client.close()


async def test_time_for_a_connect_counts_from_the_beginning(tmp_path: Path) -> None:
    """Each byte of a slow handshake does not buy more time."""
    authority = Authority(tmp_path)
    async with serving(
        listeners={"default": authority.listener_keys()}, limits={"connect_timeout_seconds": 60.0}
    ) as server:
        client = await StreamClient.dial_tls(port_of(server), authority.client_context())
        await client.send_bytes(write_packet(Connect(client_id="c"), 5)[:-1])
        await until(lambda: server._driver.protocols)
        (protocol,) = server._driver.protocols
        connection = protocol.connection
        assert connection is not None
        assert connection.client.timer is not None
        assert connection.client.timer.at == protocol.arrival.accepted_at + 60.0
        client.close()


_SUBSCRIBER = write_packet(Connect(client_id="stalled", keep_alive=0), 5) + write_packet(
    Subscribe(1, (SubscriptionRequest("t", 1),)), 5
)

_WEBSOCKET_REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def dial_stalled(server: Server, kind: str, authority: Authority) -> socket.socket:
    """Return a subscriber that will read nothing more."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(SECONDS)
    sock.connect(("127.0.0.1", port_of(server, kind)))
    if kind == "tls":
        sock = authority.client_context().wrap_socket(sock, server_hostname="localhost")
    elif kind == "ws":
        sock.sendall(_WEBSOCKET_REQUEST)
        assert b" 101 " in sock.recv(4096)
        sock.sendall(bytes((0x82, 0x80 | len(_SUBSCRIBER), 0, 0, 0, 0)))
    sock.sendall(_SUBSCRIBER)
    return sock


def end_own_side(sock: socket.socket, kind: str) -> None:
    """Say that nothing more will be sent, in the words of the transport."""
    if isinstance(sock, ssl.SSLSocket):
        sock.setblocking(False)
        with contextlib.suppress(ssl.SSLError):  # the broker has not said goodbye, and will not
            sock.unwrap()
    elif kind == "ws":
        sock.sendall(bytes((0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8)))  # Close, 1000
    else:
        sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("kind", ["default", "tls", "ws"])
async def test_client_that_ends_its_side_and_reads_nothing_is_cut_off(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was sent before its end has only so long, or it would hold its place for ever."""
    monkeypatch.setattr(arrival_module, "CLOSE_TIMEOUT_SECONDS", 0.05)
    authority = Authority(tmp_path)
    listeners = {
        "default": {"bind": "127.0.0.1:0"},
        "tls": authority.listener_keys(),
        "ws": {"bind": "127.0.0.1:0", "type": "ws"},
    }
    async with serving(listeners=listeners) as server, await connected(port_of(server)) as sender:
        with await asyncio.to_thread(dial_stalled, server, kind, authority) as sock:
            await until(lambda: server.core.tree.plan("t", b"t").targets)
            await sender.publish("t", bytes(8_000_000))
            end_own_side(sock, kind)
            await until(lambda: len(server.core.sessions) == 1)
            await until(lambda: server._reception.admission.n_connections == 1)


def most_connections(soft: int, hard: int = 4096, options: str = "") -> tuple[int, int]:
    """Return what a process that begins with limits of files makes of them, and its new limit."""
    program = (
        "import resource; from penstock.broker.network.open_files import most_connections;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, min(hard, {hard})));"
        f"print(most_connections({options}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    most, limit = run.stdout.split()
    return int(most), int(limit)


def test_limit_of_files_is_raised_and_leaves_a_reserve() -> None:
    """A shell's low limit does not keep a fleet out, where the system allows more."""
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
    assert most_connections(256) == (hard - RESERVE, hard)


def test_connections_of_two_files_each_beside_files_for_others() -> None:
    """As in the proxy, and as beside an HTTP API."""
    options = "files_each=2, files_elsewhere=100"
    assert most_connections(64, 1000, options) == ((1000 - RESERVE - 100) // 2, 1000)


def test_a_low_limit_keeps_half_for_everything_else() -> None:
    """The reserve for a fleet would leave nothing; a few are tried in any case."""
    assert most_connections(100, 200)[0] == 100
    assert most_connections(20, 20)[0] == FEWEST


async def test_steps_that_come_together_have_a_round_of_the_loop_each() -> None:
    """A thousand handshakes keep nobody else waiting for more than one of them."""
    turns = Turns()
    done: list[int] = []
    others: list[int] = []
    for number in range(3):
        turns.take(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0]
    for number in range(1, 3):
        asyncio.get_running_loop().call_soon(others.append, number)
        await asyncio.sleep(0)
        assert (done[-1], others[-1]) == (number, number)
    await asyncio.sleep(0)
    turns.take(lambda: done.append(3))
    assert done == [0, 1, 2, 3]


async def test_a_client_that_comes_and_goes_costs_few_calls() -> None:
    """Very many clients do no more; what most of them never need is not made for them."""
    n_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    connect = write_packet(Connect("c"), 4)
    disconnect = write_packet(Disconnect(), 4)
    async with serving() as server:
        for _ in range(2):  # what the first one brings into being is there for the second
            n_calls = 0
            below = Below()
            sys.setprofile(count)
            try:
                protocol = next(iter(server._listeners))._new_protocol()
                protocol.connection_made(below)
                for packet in (connect, disconnect):
                    protocol.data_received(packet)
                    driver_of(server).take_received()
                protocol.connection_lost(None)
            finally:
                sys.setprofile(None)
        assert below.is_closed
        assert not len(server.core.sessions)
    assert n_calls <= MOST_CALLS
