from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import ssl
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from trustme import KeyType

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import ConnAck, Connect, PingReq, PingResp
from penstock.broker.mqtt.reason_codes import ReasonCode, describe_reason_code
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network import tcp_options
from penstock.broker.network.admission import MAX_REFUSED
from penstock.broker.network.listeners import ListenError
from penstock.broker.network.tcp_options import RTO_MAX_SINCE, plan_retransmissions
from penstock.broker.server import Server
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.serving import make_server, port_of, protocol_of, serving, until
from tests.helpers.access import Access
from tests.helpers.certificates import Authority, break_file
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient, connected

HEADER_1 = b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n"
HEADER_2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x21\x00\x24"
    + bytes(15)
    + b"\x09"
    + bytes(15)
    + b"\x01"
    + b"\xc3\x50\x07\x5b"
)
SIOCOUTQNSD = 0x894B
"""Asks for what of a socket's queue was not sent, from linux/sockios.h."""
LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
CONNECT = write_packet(Connect(client_id="c", keep_alive=0), 5)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the clients trust."""
    return Authority(tmp_path_factory.mktemp("certificates"))


def n_connections(server: Server) -> int:
    """Return how many connections hold a place."""
    return server._reception.admission.n_connections


# -- addresses --------------------------------------------------------------------------------


def has_ipv6() -> bool:
    """Return whether this machine can listen on IPv6 at all."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


IPV6 = {"::1"} if has_ipv6() else set()

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that no other program listens on, of either family: both are bound here."""
    with contextlib.ExitStack() as held:
        while True:
            port = held.enter_context(reserved_port())
            if not IPV6:
                break
            keeper = held.enter_context(socket.socket(socket.AF_INET6))
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                keeper.bind(("::1", port))
                break
        yield port


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("", {"127.0.0.1"} | IPV6),
        ("0.0.0.0", {"127.0.0.1"}),
        ("127.0.0.1", {"127.0.0.1"}),
        *((host, IPV6) for host in ("[::]", "[::1]") if IPV6),
    ],
)
async def test_which_addresses_a_listener_has(host: str, reached: set[str], port: int) -> None:
    """No host means both families; an IPv6 address is IPv6 alone."""
    async with serving(listeners={"default": {"bind": f"{host}:{port}"}}):
        for address in ("127.0.0.1", "::1"):
            try:
                _, writer = await asyncio.open_connection(address, port)
            except OSError:
                assert address not in reached
            else:
                assert address in reached
                writer.close()


@pytest.mark.parametrize("host", sorted({"127.0.0.1"} | IPV6))
async def test_address_of_a_client_is_known(caplog: pytest.LogCaptureFixture, host: str) -> None:
    """Access control sees it, of either family; the log shows each address of a listener."""
    caplog.set_level(logging.INFO)
    async with serving(listeners={"default": {"bind": ":0"}}) as server:
        access = server.core.access = Access()
        client = StreamClient(*await asyncio.open_connection(host, port_of(server)))
        await client.connect("c")
        assert access.attempts[0].remote_address == host
        client.close()
    shown = {"127.0.0.1": "0.0.0.0", "::1": "[::]"}[host]
    assert f"listener default: listening on {shown}:{port_of(server)}" in caplog.text


async def test_port_that_the_kernel_chooses_is_one_for_all_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it is taken for the second address, another one is chosen for both."""
    asked: list[int] = []
    bind = socket.socket.bind

    def taken_once(sock: socket.socket, address: tuple[Any, ...]) -> None:
        asked.append(address[1])
        if len(asked) == 2:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        bind(sock, address)

    monkeypatch.setattr(socket.socket, "bind", taken_once)
    async with serving(listeners={"default": {"bind": ":0"}}) as server:
        (listening,) = server._listeners
        ports = {sock.getsockname()[1] for opened in listening._servers for sock in opened.sockets}
        assert ports == {port_of(server)}
        if IPV6:
            assert asked == [0, asked[1], 0, port_of(server)]


async def test_name_that_is_no_host() -> None:
    """The error names listener and address."""
    server = make_server(listeners={"default": {"bind": "no-such-host.invalid:1"}})
    with pytest.raises(ListenError, match=r"listener default: cannot bind no-such-host\.invalid:1"):
        await server.start()


# -- what the kernel holds ------------------------------------------------------------------


async def unsent_bytes_of_a_stalled_client(**listener: int | None) -> int:
    """Return what the kernel has taken, and not sent, of 4 MB for a client that does not read."""
    listeners = {"default": {"bind": "127.0.0.1:0", **listener}}
    async with serving(listeners=listeners) as server:
        stalled = await WireClient.dial(port_of(server), receive_bytes=4096)
        async with stalled, await connected(port_of(server)) as publisher:
            await stalled.connect("stalled")
            await stalled.subscribe("t", 0)
            for _ in range(4):
                await publisher.publish("t", bytes(1_000_000))
            protocol = protocol_of(server, "stalled")
            assert protocol.transport.get_write_buffer_size()
            count = array.array("i", [0])
            fcntl.ioctl(protocol.fileno, SIOCOUTQNSD, count)
            return count[0]


async def test_kernel_holds_little_that_is_unsent() -> None:
    """What it has taken, a small message cannot pass: the mark and one segment, no megabytes."""
    little = await unsent_bytes_of_a_stalled_client(unsent_bytes=4096)
    more = await unsent_bytes_of_a_stalled_client(unsent_bytes=262_144)
    assert little <= 4096 + 65_536
    assert 2 * little < more <= 262_144 + 65_536


async def test_send_buffer_may_be_bounded() -> None:
    """Whatever the mark says, a connection's buffer is no larger."""
    assert await unsent_bytes_of_a_stalled_client(unsent_bytes=None) > 131_072
    bounded = await unsent_bytes_of_a_stalled_client(unsent_bytes=None, send_buffer_bytes=8192)
    assert bounded <= 131_072


# -- how the kernel sends it ----------------------------------------------------------------


@contextlib.contextmanager
def socket_of(server: Server, client_id: str) -> Iterator[socket.socket]:
    """Give the broker's socket of a client, for longer than the broker itself has it."""
    with socket.socket(fileno=os.dup(protocol_of(server, client_id).fileno)) as sock:
        yield sock


def kernels(name: str) -> str:
    """Return one of the kernel's settings of TCP."""
    return Path(f"/proc/sys/net/ipv4/{name}").read_text().strip()


def option(sock: socket.socket, name: int) -> int:
    """Return one of TCP's."""
    return sock.getsockopt(socket.IPPROTO_TCP, name)


@needs_linux
async def test_connections_have_their_listeners_congestion_control() -> None:
    """The one that is named, and without a name the system's."""
    listeners = {
        "default": {"bind": "127.0.0.1:0"},
        "named": {"bind": "127.0.0.1:0", "congestion_control": "reno"},
    }
    systems = kernels("tcp_congestion_control")
    async with serving(listeners=listeners) as server:
        for listener, expected in (("default", systems), ("named", "reno")):
            async with await connected(port_of(server, listener), client_id=listener):
                with socket_of(server, listener) as sock:
                    read = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                    assert read.rstrip(b"\0").decode() == expected


@needs_linux
async def test_congestion_control_that_is_not_there_stops_the_start() -> None:
    """The error names the listener, the key, what was read and what there is."""
    listeners = {"default": {"bind": "127.0.0.1:0", "congestion_control": "none-such"}}
    available = kernels("tcp_available_congestion_control")
    told = f"^listener default: congestion_control: read 'none-such'; available: {available} "
    with pytest.raises(ListenError, match=told):
        await make_server(listeners=listeners).start()


@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_longest_time_between_retransmissions(authority: Authority, kind: str) -> None:
    """The kernel gives a connection up no sooner for it, nor keeps a closed one for longer."""
    plan = plan_retransmissions(2.0)
    if plan is None:
        pytest.skip(f"needs {RTO_MAX_SINCE}")
    keys = authority.listener_keys(type="ws") if kind == "ws" else {"bind": "127.0.0.1:0"}
    listeners = {"default": keys | {"rto_max_seconds": 2}}
    async with serving(listeners=listeners) as server:
        if kind == "ws":
            client: StreamClient | WebSocketClient = await WebSocketClient.dial_websocket(
                port_of(server), ssl=authority.client_context()
            )
        else:
            client = StreamClient(*await asyncio.open_connection("127.0.0.1", port_of(server)))
        await client.connect("c")
        with socket_of(server, "c") as sock:
            assert option(sock, tcp_options._TCP_RTO_MAX_MS) == 2000
            assert option(sock, socket.TCP_USER_TIMEOUT) == plan.give_up_ms
            client.close()
            await until(lambda: n_connections(server) == 0)
            assert option(sock, socket.TCP_USER_TIMEOUT) == plan.orphan_ms


@needs_linux
async def test_connection_closed_before_it_speaks_mqtt_is_not_kept_for_longer(
    authority: Authority,
) -> None:
    """Nobody has the kernel keep a handshake's rest for a quarter of an hour."""
    plan = plan_retransmissions(2.0)
    if plan is None:
        pytest.skip(f"needs {RTO_MAX_SINCE}")
    listeners = {"default": authority.listener_keys(rto_max_seconds=2)}
    async with serving(listeners=listeners) as server:
        client = await WireClient.dial(port_of(server))
        await until(lambda: server._reception.in_layers)
        (arrival,) = server._reception.in_layers
        fileno = arrival.transport.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(fileno)) as sock:
            client.close()
            await until(lambda: n_connections(server) == 0)
            assert option(sock, socket.TCP_USER_TIMEOUT) == plan.orphan_ms


@needs_linux
async def test_kernel_is_left_alone_where_nothing_is_said() -> None:
    """No time to give up but the system's, before the end of a connection and after it."""
    async with serving() as server, await connected(port_of(server), client_id="c") as client:
        with socket_of(server, "c") as sock:
            client.close()
            await until(lambda: n_connections(server) == 0)
            assert option(sock, socket.TCP_USER_TIMEOUT) == 0


@needs_linux
async def test_rto_max_seconds_on_an_older_kernel_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One policy file for many machines: the broker serves, and the kernel does as it does."""
    monkeypatch.setattr(tcp_options, "_TCP_RTO_MAX_MS", 10_000)  # which no kernel knows
    listeners = {"default": {"bind": ":0", "rto_max_seconds": 2}}
    async with (
        serving(listeners=listeners) as server,
        await connected(port_of(server), client_id="c") as client,
    ):
        with socket_of(server, "c") as sock:
            client.close()
            await until(lambda: n_connections(server) == 0)
            assert option(sock, socket.TCP_USER_TIMEOUT) == 0
    told = [line for line in caplog.messages if "rto_max_seconds" in line]
    assert told == ["listener default: rto_max_seconds has no effect: it needs Linux 6.15"]


# -- Unix sockets -----------------------------------------------------------------------------


async def test_unix_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who may connect is a matter of its file, which goes with the broker."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "mqtt.sock"
    listeners = {"default": {"bind": f"unix:{path}", "socket_mode": "600"}}
    async with serving(listeners=listeners, limits={"connections_per_address": 1}) as server:
        access = server.core.access = Access()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for name in ("a", "b"):
            client = await StreamClient.dial_unix(str(path))
            assert (await client.connect(name)).reason_code == 0
        assert access.attempts[0].remote_address == ""
        assert server.addresses == {"default": (str(path), 0)}
    assert not path.exists()
    assert f"listener default: listening on unix:{path}" in caplog.text


async def test_stale_unix_socket_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    """What a killed broker has left is no hindrance; another broker's socket is an error."""
    path = tmp_path / "mqtt.sock"
    listeners = {"default": {"bind": f"unix:{path}"}}
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with serving(listeners=listeners):
        with pytest.raises(ListenError, match=rf"cannot bind unix:{path}: address already in use"):
            await make_server(listeners=listeners).start()
        assert path.exists()
    path.write_text("precious")
    with pytest.raises(ListenError, match="a file that is no socket"):
        await make_server(listeners=listeners).start()
    assert path.read_text() == "precious"


async def test_stop_leaves_the_socket_of_a_broker_that_came_after(tmp_path: Path) -> None:
    """A file that was replaced meanwhile is not this broker's to remove."""
    path = tmp_path / "mqtt.sock"
    async with serving(listeners={"default": {"bind": f"unix:{path}"}}):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


# -- PROXY protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "address"),
    [(HEADER_1, ("203.0.113.9", 50_000)), (HEADER_2, ("::9", 50_000)), (LOCAL, None)],
)
@pytest.mark.parametrize("is_cut", [True, False])
async def test_proxy_header_tells_who_the_client_is(
    header: bytes, address: tuple[str, int] | None, *, is_cut: bool
) -> None:
    """Before the first packet, in the same segment or byte by byte."""
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with (
        serving(listeners=listeners) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        access = server.core.access = Access()
        if is_cut:
            for byte in header:
                await client.send_bytes(bytes([byte]))
            await client.send_bytes(CONNECT)
        else:
            await client.send_bytes(header + CONNECT)
        assert await client.receive() is not None
        attempt = access.attempts[0]
        expected = address or client.sock.getsockname()
        assert (attempt.remote_address, attempt.remote_port) == expected
        assert protocol_of(server, "c").fileno >= 0


async def test_proxy_header_before_tls_and_websocket(authority: Authority) -> None:
    """The load balancer passes TLS on as it is; the client's address comes before it."""
    keys = {"proxy_protocol": True, "type": "ws"}
    async with serving(listeners={"default": authority.listener_keys(**keys)}) as server:
        access = server.core.access = Access()
        sock = socket.create_connection(("127.0.0.1", port_of(server)))
        sock.sendall(HEADER_1)
        client = await WebSocketClient.dial_websocket(
            port_of(server), ssl=authority.client_context(), sock=sock
        )
        assert (await client.connect("c")).reason_code == 0
        assert access.attempts[0].remote_address == "203.0.113.9"
        assert access.attempts[0].ssl_object is not None
        client.close()


async def test_proxy_header_in_the_same_segment_as_the_handshake(authority: Authority) -> None:
    """What was read behind the header is not lost to TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    listeners = {"default": authority.listener_keys(proxy_protocol=True)}
    async with (
        serving(listeners=listeners) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        await client.send_bytes(HEADER_1 + outgoing.read())
        while True:
            incoming.write(await client.read())
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue


async def test_common_name_that_the_proxy_has_verified() -> None:
    """A load balancer that ends TLS tells whose certificate it was."""
    inner = b"\x22\x00\x06pump-7"
    tls = b"\x07" + bytes(4) + inner
    body = bytes([203, 0, 113, 9, 10, 0, 0, 1]) + b"\xc3\x50\x07\x5b"
    body += b"\x20" + len(tls).to_bytes(2, "big") + tls
    header = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11" + len(body).to_bytes(2, "big") + body
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with (
        serving(listeners=listeners) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        access = server.core.access = Access()
        await client.send_bytes(header + CONNECT)
        await client.receive()
        assert access.attempts[0].certificate_name == "pump-7"


async def test_client_behind_a_load_balancer_stays_when_the_time_for_its_connect_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its CONNECT came in time; one that never comes is still waited for no longer."""
    caplog.set_level(logging.INFO)
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with (
        serving(listeners=listeners, limits={"connect_timeout_seconds": 0.2}) as server,
        await WireClient.dial(port_of(server)) as client,
        await WireClient.dial(port_of(server)) as silent,
    ):
        await client.send_bytes(HEADER_1 + CONNECT)
        await client.take(ConnAck)
        assert not server._reception.in_layers & {protocol_of(server, "c").arrival}
        await silent.send_bytes(HEADER_1)
        assert await silent.rest_bytes() == b""
        await client.send(PingReq())
        await client.take(PingResp)
    assert len([line for line in caplog.messages if "no CONNECT in time" in line]) == 1


async def test_connection_without_proxy_header_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Who comes past the load balancer could claim any address."""
    caplog.set_level(logging.INFO)
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with (
        serving(listeners=listeners) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        await client.send_bytes(CONNECT)
        assert await client.rest_bytes() == b""
        await until(lambda: n_connections(server) == 0)
        assert server.core.counters.connections_refused == {"proxy_header": 1}
    assert len([line for line in caplog.messages if "no PROXY protocol: begins with" in line]) == 1


async def test_health_check_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A load balancer connects and leaves every few seconds."""
    caplog.set_level(logging.INFO)
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with serving(listeners=listeners) as server:
        caplog.clear()
        client = await WireClient.dial(port_of(server))
        await until(lambda: n_connections(server) == 1)
        client.close()
        await until(lambda: n_connections(server) == 0)
        assert server.core.counters.connections_refused == {"proxy_header": 1}
        assert not caplog.messages


# -- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "limits", "reason_code"),
    [
        ({}, {"connections": 1}, ReasonCode.SERVER_BUSY),
        ({}, {"connections_per_address": 1}, ReasonCode.QUOTA_EXCEEDED),
        ({"max_connections": 1, "when_full": "refuse"}, {}, ReasonCode.SERVER_BUSY),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
async def test_client_above_a_limit_learns_why(
    caplog: pytest.LogCaptureFixture,
    listener: dict[str, Any],
    limits: dict[str, Any],
    reason_code: ReasonCode,
    version: int,
) -> None:
    """CONNACK says it, in MQTT 3.1.1 as "server unavailable"; then the connection closes."""
    caplog.set_level(logging.INFO)
    listeners = {"default": {"bind": "127.0.0.1:0", **listener}}
    async with (
        serving(listeners=listeners, limits=limits) as server,
        await connected(port_of(server)) as first,
    ):
        async with await WireClient.dial(port_of(server), version) as second:
            answer = await second.connect("second")
            told = reason_code if version == 5 else ReasonCode.SERVER_UNAVAILABLE
            assert answer.reason_code == told
            assert await second.receive() is None
        assert server.core.sessions.get("second") is None
        assert (await first.publish("t", b"data")).reason_code < 0x80
        first.close()
        await until(lambda: n_connections(server) == 0)
        async with await connected(port_of(server), version=version):
            pass
    assert f"client second: refused, {describe_reason_code(reason_code)}, from " in caplog.text


async def test_flood_is_told_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Those who are cut off without a word are counted in $SYS and now and then in the log."""
    async with serving(limits={"connections": 1}) as server:
        clients = [await WireClient.dial(port_of(server)) for _ in range(MAX_REFUSED + 9)]
        refused = server.core.counters.connections_refused
        await until(lambda: refused.get("cut_off") == 8)
        for client in clients:
            client.close()
    told = [line for line in caplog.messages if "cut off" in line]
    assert told == [f"{n} connections above the limits cut off so far" for n in (1, 2, 4, 8)]


async def test_limit_that_the_system_does_not_allow_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Better than connections that are never accepted."""
    async with serving(limits={"connections": 2**31 - 1}):
        pass
    assert "limits.connections: 2147483647, but the process may open files for" in caplog.text


async def test_address_that_the_proxy_tells_is_the_one_that_counts() -> None:
    """All clients of a load balancer come from one address."""
    listeners = {"default": {"bind": "127.0.0.1:0", "proxy_protocol": True}}
    async with serving(listeners=listeners, limits={"connections_per_address": 1}) as server:
        answers = []
        clients = [await WireClient.dial(port_of(server)) for _ in range(3)]
        for client, header in zip(clients, (HEADER_1, HEADER_2, HEADER_1), strict=True):
            await client.send_bytes(header)
            answers.append((await client.connect()).reason_code)
        assert answers == [0, 0, ReasonCode.QUOTA_EXCEEDED]
        for client in clients:
            client.close()


# -- certificates -----------------------------------------------------------------------------


async def serial_number(server: Server, context: ssl.SSLContext) -> str:
    """Return that of the certificate that a new client is shown."""
    async with await StreamClient.dial_tls(port_of(server), context) as client:
        return str(client.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])


async def test_certificates_are_read_again_and_clients_stay(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections see the new one; of a broken file only the log speaks."""
    caplog.set_level(logging.INFO)
    context = authority.client_context()
    keys = authority.listener_keys()
    async with serving(listeners={"default": keys}) as server:
        before = await serial_number(server, context)
        async with await StreamClient.dial_tls(port_of(server), context) as client:
            await client.connect("c")
            authority.issue()
            assert await serial_number(server, context) == before
            await server.reload()
            after = await serial_number(server, context)
            assert after != before
            break_file(keys["keyfile"])
            await server.reload()
            assert await serial_number(server, context) == after
            assert (await client.publish("t", b"data")).reason_code < 0x80
    read = f"listeners.default.certfile {keys['certfile']}, listeners.default.keyfile"
    assert f"reloaded: {read} {keys['keyfile']}; changed: no keys" in caplog.messages
    why = f"listeners.default: keyfile {keys['keyfile']}: no private key"
    assert f"not reloaded: {why}" in caplog.text


class Visit(NamedTuple):
    """What a client has seen of one connection: a ticket for the next, and whether its own held."""

    session: ssl.SSLSession | None
    is_resumed: bool
    certificate: bytes | None


async def visit(
    server: Server, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> Visit:
    """Connect as a client that has a session of an earlier connection, or None, and leave."""

    def shake_hands() -> Visit:
        with (
            socket.create_connection(("127.0.0.1", port_of(server))) as sock,
            context.wrap_socket(sock, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(write_packet(Connect(client_id="visitor"), 5))
            assert tls.recv(1) == b"\x20"  # a ticket comes before it
            return Visit(tls.session, bool(tls.session_reused), tls.getpeercert(binary_form=True))

    return await asyncio.to_thread(shake_hands)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_session_tickets_hold_over_a_reload(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """A fleet that comes back after the certificate was renewed costs no signature for each."""
    context = authority.client_context()
    context.minimum_version = context.maximum_version = version
    async with serving(listeners={"default": authority.listener_keys()}) as server:
        first = await visit(server, context)
        assert (await visit(server, context, first.session)).is_resumed
        authority.issue()
        await server.reload()
        assert (await visit(server, context, first.session)).is_resumed
        newcomer = await visit(server, context)
        assert not newcomer.is_resumed
        assert newcomer.certificate != first.certificate


async def test_no_ticket_holds_where_clients_show_certificates(authority: Authority) -> None:
    """It would let in whose certificate a new revocation list names."""
    context = authority.client_context(authority.issue_client("visitor"))
    keys = authority.listener_keys(cafile=authority.cafile, require_certificate=True)
    async with serving(listeners={"default": keys}) as server:
        first = await visit(server, context)
        assert (await visit(server, context, first.session)).is_resumed
        await server.reload()
        assert not (await visit(server, context, first.session)).is_resumed


@pytest.mark.parametrize("label", ["CERTIFICATE", "X509 CERTIFICATE"])
async def test_certificate_of_another_kind_takes_the_place_of_the_old_one(
    authority: Authority, label: str
) -> None:
    """OpenSSL keeps one of each kind, and would go on to show the old one to some clients."""
    context = authority.client_context()

    def relabel(keys: dict[str, Any]) -> None:
        path = Path(keys["certfile"])
        path.write_text(path.read_text().replace(" CERTIFICATE-", f" {label}-"))

    keys = authority.listener_keys()
    relabel(keys)
    async with serving(listeners={"default": keys}) as server:
        first = await visit(server, context)
        authority.issue(key_type=KeyType.RSA)
        relabel(keys)
        await server.reload()
        second = await visit(server, context, first.session)
        assert not second.is_resumed
        assert second.certificate != first.certificate
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):  # no certificate for it is left
            await visit(server, context)


async def test_certificate_that_no_listener_shows_is_told(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Who names one and forgets ssl would take the listener for a safe one."""
    files = authority.issue()._asdict()
    local = {"bind": "127.0.0.1:0"}
    async with serving(listeners={"default": local | files}):
        pass
    assert f"listener default: certfile {files['certfile']} is not used" in caplog.text
    caplog.clear()
    async with serving(listeners={"default": local | files, "tls": local | {"ssl": True}}):
        pass
    assert "is not used" not in caplog.text


async def test_file_that_cannot_be_used_stops_the_start(authority: Authority) -> None:
    """The error names the listener, the key and the file."""
    keys = authority.listener_keys()
    keys["keyfile"] = authority.issue(file="other").keyfile
    with pytest.raises(PenstockError, match=r"^listener default: keyfile .*: not the key of"):
        await make_server(listeners={"default": keys}).start()


async def test_certificate_that_has_expired_is_told(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker starts: it is for the clients to refuse it."""
    files = authority.issue(file="old", is_expired=True)
    keys = authority.listener_keys() | files._asdict()
    async with serving(listeners={"default": keys}):
        pass
    assert f"certfile {files.certfile}: certificate has expired: clients will refuse" in caplog.text


def test_no_socket_file_is_left_where_it_cannot_be_bound(tmp_path: Path) -> None:
    """A folder that is not there is told; nothing is made."""
    server = make_server(listeners={"default": {"bind": f"unix:{tmp_path}/no/mqtt.sock"}})
    with pytest.raises(ListenError, match="No such file or directory"):
        asyncio.run(server.start())
    assert list(tmp_path.iterdir()) == []
