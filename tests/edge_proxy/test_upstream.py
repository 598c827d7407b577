from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.mqtt.packets import ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.tcp_options import Retransmissions, set_give_up
from penstock.edge_proxy import upstream as upstream_module
from penstock.edge_proxy.upstream import Upstream, UpstreamError, Upstreams
from penstock.edge_proxy.upstream_config import UpstreamKeys
from tests.helpers.certificates import Authority, break_file
from tests.helpers.process import SECONDS
from tests.helpers.scripted import ScriptedBroker, until

LOGGER = logging.getLogger("penstock.proxy")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return the authority of the brokers' certificates."""
    return Authority(tmp_path_factory.mktemp("certificates"))


def make_upstreams(*addresses: str, header: bytes = b"", **keys: Any) -> Upstreams:
    """Return upstreams of some addresses."""
    mapping = {"addresses": list(addresses), "connack_timeout_seconds": 30.0, **keys}
    checked = validate_config(UpstreamKeys, mapping, "proxy.yaml", "upstream")
    return Upstreams(checked, LOGGER, check_header=header)


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Taker(asyncio.Protocol):
    """Takes what comes.

    Attributes:
        received: future of the first bytes.
        lost: future of the end.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.received: asyncio.Future[bytes] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        """Keep the first bytes."""
        if not self.received.done():
            self.received.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        """Note the end."""
        self.lost.set_result(None)


@asynccontextmanager
async def echoing(
    context: ssl.SSLContext | None = None, path: str | None = None
) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Yield the address of a server that sends each first bytes back, and its connections."""
    taken: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        writer.write(await reader.read(100))

    if path is None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(echo, path)
        address = f"unix:{path}"
    try:
        yield address, taken
    finally:
        server.close()
        for writer in taken:
            writer.close()


def server_context(authority: Authority, *names: str, asks: bool = False) -> ssl.SSLContext:
    """Return the context of a broker, which may ask for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(*names, file="-".join(names) or "server"))
    if asks:
        context.load_verify_locations(authority.cafile)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def exchange(upstreams: Upstreams, header: bytes = b"") -> tuple[Upstream, bytes]:
    """Send a few bytes, and return the address that they went to and the answer."""
    dialled = await upstreams.dial(Taker, header=header)
    dialled.transport.write(b"hello")
    answer = await dialled.protocol.received
    dialled.transport.abort()
    await dialled.protocol.lost
    return dialled.upstream, answer


# -- connections ------------------------------------------------------------------------------


async def test_over_tcp() -> None:
    """With the options that a connection to a broker needs."""
    async with echoing() as (address, _):
        upstreams = make_upstreams(address)
        dialled = await upstreams.dial(Taker)
        sock = dialled.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # Keepalive rests while data is unacknowledged: that has a limit of its own.
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
        dialled.transport.abort()
        assert await exchange(upstreams) == (upstreams.each[0], b"hello")


@pytest.mark.parametrize(
    ("keys", "give_up_ms"),
    [
        ({}, 120_000),
        ({"tcp_user_timeout_seconds": 3.5}, 3_500),
        ({"tcp_user_timeout_seconds": None}, 0),
        ({"rto_max_seconds": 5.0}, 120_000),
        ({"rto_max_seconds": 5.0, "tcp_user_timeout_seconds": None}, 924_600),
    ],
)
async def test_retransmissions_are_as_configured(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], give_up_ms: int
) -> None:
    """A lower maximum of the timeout changes nothing about when a connection is given up."""
    plan = Retransmissions(max_ms=5_000, give_up_ms=924_600, orphan_ms=102_200)
    asked: list[float] = []
    set_to: list[int] = []

    def planned(seconds: float) -> Retransmissions:
        asked.append(seconds)
        return plan

    def set_both(sock: socket.socket, plan: Retransmissions) -> None:
        set_to.append(plan.max_ms)  # the kernel of the test may be older than the option
        set_give_up(sock, plan.give_up_ms)

    monkeypatch.setattr(upstream_module, "plan_retransmissions", planned)
    monkeypatch.setattr(upstream_module, "set_retransmissions", set_both)
    async with echoing() as (address, _):
        dialled = await make_upstreams(address, **keys).dial(Taker)
        sock = dialled.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == give_up_ms
        dialled.transport.abort()
    has_maximum = "rto_max_seconds" in keys
    assert (asked, set_to) == (([5.0], [5_000]) if has_maximum else ([], []))


def test_an_old_kernel_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no maximum for one connection."""
    monkeypatch.setattr(upstream_module, "plan_retransmissions", lambda _seconds: None)
    make_upstreams("127.0.0.1:1", rto_max_seconds=5.0)
    assert "upstream.rto_max_seconds has no effect: it needs Linux 6.15" in caplog.text


async def test_an_ip_address_that_drops_packets_does_not_hide_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an IPv6 address without a route does, before the IPv4 address of the same name."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # A full queue of connections drops further ones silently.
        filling = [socket.socket() for _ in range(3)]
        for sock in filling:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        async with echoing() as (address, _):
            ports = [full.getsockname()[1], int(address.rpartition(":")[2])]
            found = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", port)) for port in ports]
            look_up = loop.getaddrinfo

            async def look_up_name(host: str, *rest: Any, **options: Any) -> Any:
                return found if host == "broker.example" else await look_up(host, *rest, **options)

            monkeypatch.setattr(loop, "getaddrinfo", look_up_name)
            upstreams = make_upstreams("broker.example", connect_timeout_seconds=1.0)
            async with asyncio.timeout(SECONDS):
                while True:
                    # On a busy machine the second one may be late, too.
                    with contextlib.suppress(UpstreamError):
                        assert (await exchange(upstreams))[1] == b"hello"
                        break
        for sock in filling:
            sock.close()


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    """A file name in place of host and port."""
    async with echoing(path=str(tmp_path / "broker.sock")) as (address, _):
        upstreams = make_upstreams(address)
        assert await exchange(upstreams) == (upstreams.each[0], b"hello")


async def test_over_tls(authority: Authority) -> None:
    """With the authority of the broker's certificate, and the name that stands in it."""
    async with echoing(server_context(authority)) as (address, _):
        assert (await exchange(make_upstreams(address, tls={"cafile": authority.cafile})))[1]
    async with echoing(server_context(authority, "broker.test")) as (address, _):
        tls = {"cafile": authority.cafile, "server_name": "broker.test"}
        assert (await exchange(make_upstreams(address, tls=tls)))[1]
        assert (await exchange(make_upstreams(address, tls={"verify": False})))[1]


async def test_a_certificate_of_its_own(authority: Authority) -> None:
    """It is shown to a broker that asks for one."""
    certfile, keyfile = authority.issue_client("proxy")
    async with echoing(server_context(authority, asks=True)) as (address, taken):
        tls = {"cafile": authority.cafile, "certfile": certfile, "keyfile": keyfile}
        await exchange(make_upstreams(address, tls=tls))
        subject = taken[0].get_extra_info("peercert")["subject"]
        assert (("commonName", "proxy"),) in subject


async def test_a_header_comes_before_tls(authority: Authority) -> None:
    """A header of the PROXY protocol is not encrypted."""
    async with echoing() as (address, _):
        assert (await exchange(make_upstreams(address), header=b"first "))[1].startswith(b"first ")

    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        upstreams = make_upstreams(
            f"127.0.0.1:{listening.getsockname()[1]}", tls={"cafile": authority.cafile}
        )
        dialling = asyncio.create_task(exchange(upstreams, header=b"first "))
        sock, _ = await loop.sock_accept(listening)
        assert await loop.sock_recv(sock, 6) == b"first "
        taker = Taker()
        await loop.connect_accepted_socket(lambda: taker, sock, ssl=server_context(authority))
        assert await taker.received == b"hello"
        dialling.cancel()
        await asyncio.wait([dialling])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (lambda _: {}, "its certificate is refused: "),
        (
            lambda authority: {"cafile": authority.cafile, "server_name": "other.test"},
            (
                "its certificate is refused: Hostname mismatch, certificate is not valid for "
                "'other.test' (upstream.tls: cafile"
            ),
        ),
    ],
)
async def test_a_certificate_that_is_refused(
    authority: Authority, keys: Callable[[Authority], dict[str, Any]], why: str
) -> None:
    """The error says which address, why, and which keys are concerned."""
    async with echoing(server_context(authority)) as (address, _):
        with pytest.raises(UpstreamError) as caught:
            await make_upstreams(address, tls=keys(authority)).dial(Taker)
    assert str(caught.value).startswith(f"{address}: {why}")


async def test_a_broker_without_tls() -> None:
    """It is named as such."""
    async with ScriptedBroker() as broker:
        address = f"127.0.0.1:{broker.port}"
        dialling = asyncio.create_task(make_upstreams(address, tls={}).dial(Taker))
        peer = await broker.connected()
        peer.send(ConnAck(reason_code=ReasonCode.MALFORMED_PACKET))
        with pytest.raises(UpstreamError, match=f"{address}: it does not speak TLS"):
            await dialling


async def test_a_broker_that_is_not_there() -> None:
    """The error names every address and why."""
    upstreams = make_upstreams(f"127.0.0.1:{free_port()}", "unix:/nowhere/broker.sock")
    with pytest.raises(UpstreamError) as caught:
        await upstreams.dial(Taker)
    first, second = upstreams.each
    assert str(caught.value) == (
        f"{first}: connection refused; {second}: no such file or directory"
    )


async def test_a_broker_that_says_nothing(authority: Authority) -> None:
    """TLS is part of the time for the connection."""
    silent = socket.create_server(("127.0.0.1", 0))
    upstreams = make_upstreams(
        f"127.0.0.1:{silent.getsockname()[1]}",
        tls={"cafile": authority.cafile},
        connect_timeout_seconds=0.05,
    )
    with pytest.raises(UpstreamError, match=r"no answer in 0\.05 s"):
        await upstreams.dial(Taker)
    silent.close()


def test_files_that_cannot_be_used(authority: Authority, tmp_path: Path) -> None:
    """The error names key and file; at a reload the old ones stay."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(authority.cafile).read_bytes())
    upstreams = make_upstreams("a", tls={"cafile": str(file)})
    assert upstreams.reload().read == [f"cafile {file}"]
    break_file(str(file))
    problem = f"upstream.tls: cafile {file}: no certificates in PEM form"
    with pytest.raises(UpstreamError, match=problem):
        upstreams.reload()
    with pytest.raises(UpstreamError, match=problem):
        make_upstreams("a", tls={"cafile": str(file)})


# -- failover ---------------------------------------------------------------------------------


async def test_the_first_address_that_is_up(caplog: pytest.LogCaptureFixture) -> None:
    """The next one while it is down, and it again once a check has succeeded."""
    port = free_port()
    async with echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{port}", other)
        first, second = upstreams.each
        assert (await exchange(upstreams))[0] is second
        assert (first.is_up, first.why) == (False, "connection refused")
        assert upstreams.choose() == [second]
        await upstreams.check(first)
        assert not first.is_up
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        await upstreams.check(first)
        assert upstreams.choose() == [first, second]
        server.close()
    assert f"upstream: {first} is down: connection refused" in caplog.text
    assert f"upstream: {first} is up again" in caplog.text


async def test_a_broker_that_speaks_first() -> None:
    """What it sends before it is asked is not lost."""
    async with ScriptedBroker() as broker:
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}")
        dialling = asyncio.create_task(upstreams.dial(Taker))
        (await broker.connected()).writer.write(b"first")
        dialled = await dialling
        assert await dialled.protocol.received == b"first"
        dialled.transport.abort()


async def test_every_address_is_tried_where_none_is_up() -> None:
    """A check may be older than a broker's start."""
    async with echoing() as (address, _):
        upstreams = make_upstreams(f"127.0.0.1:{free_port()}", address)
        for one in upstreams.each:
            upstreams.failed(one, "test")
        assert (await exchange(upstreams))[0] is upstreams.each[1]
        assert [one.is_up for one in upstreams.each] == [False, True]


async def test_checks_can_be_off() -> None:
    """Then each connection tries the addresses from the first."""
    async with echoing() as (address, _):
        dead = f"127.0.0.1:{free_port()}"
        upstreams = make_upstreams(dead, address, health_check_seconds=None)
        upstreams.start()
        for _ in range(2):
            assert (await exchange(upstreams))[0] is upstreams.each[1]
            assert upstreams.choose() == list(upstreams.each)
        await upstreams.close()


async def test_checks_run_by_themselves() -> None:
    """They begin with the header that the broker expects."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        address = f"127.0.0.1:{broker.port}"
        upstreams = make_upstreams(address, other, header=b"LOCAL", health_check_seconds=0.01)
        upstreams.start()
        checked = await broker.connected()
        assert await checked.receive_end() == b"LOCAL"
        await upstreams.close()


async def test_a_check_without_an_answer_holds_up_no_other() -> None:
    """Each address is checked by itself: one that is back is used meanwhile."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}", other, health_check_seconds=0.01)
        silent, back = upstreams.each
        upstreams.failed(silent, "no CONNACK", is_silent=True)
        upstreams.start()
        assert await (await broker.connected()).receive()
        upstreams.failed(back, "test")
        await until(lambda: back.is_up)
        assert not silent.is_up
        await upstreams.close()


async def test_a_broker_that_answers_no_connect() -> None:
    """It accepts connections all the while, and is up again when it answers a CONNECT."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}", other)
        first, second = upstreams.each
        upstreams.failed(first, "no CONNACK", is_silent=True)
        upstreams.failed(second, "test")
        dialled = await upstreams.dial(Taker)
        assert (dialled.upstream, first.is_up) == (first, False)
        dialled.transport.abort()
        await (await broker.connected()).receive_end()
        checks = asyncio.create_task(upstreams.check(first))
        peer = await broker.connected()
        peer.version = 4
        assert isinstance(await peer.receive(), Connect)
        peer.send(ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED))
        assert await peer.receive_end() == b"\xe0\x00"
        await checks
        assert first.is_up


async def test_the_state_of_a_single_address_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """For reports: each connection tries it in any case, and the log of each client has it."""
    port = free_port()
    upstreams = make_upstreams(f"127.0.0.1:{port}")
    (only,) = upstreams.each
    with pytest.raises(UpstreamError):
        await upstreams.dial(Taker)
    assert (only.is_up, only.why) == (False, "connection refused")
    assert upstreams.choose() == [only]
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    (await upstreams.dial(Taker)).transport.abort()
    assert (only.is_up, only.why) == (True, "")
    server.close()
    assert not caplog.text


async def test_a_broker_that_serves_no_clients_stays_down() -> None:
    """A check reads its CONNACK, in pieces if need be."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}", other)
        first = upstreams.each[0]
        upstreams.failed(first, "test", is_silent=True)
        checks = asyncio.create_task(upstreams.check(first))
        peer = await broker.connected()
        for piece in (b"\x20", b"\x02\0\x03"):
            peer.writer.write(piece)
            await peer.writer.drain()
        await checks
        assert (first.is_up, first.why) == (False, "CONNACK: server unavailable")


async def test_a_broker_that_speaks_nonsense() -> None:
    """A check that gets no CONNACK fails."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}", other)
        first = upstreams.each[0]
        upstreams.failed(first, "no CONNACK", is_silent=True)
        for nonsense, why in ((b"HTTP", "read 0x48"), (b"", "it closed the connection")):
            checks = asyncio.create_task(upstreams.check(first))
            peer = await broker.connected()
            peer.writer.write(nonsense)
            peer.writer.write_eof()
            await checks
            assert not first.is_up
            assert first.why.startswith(why)


@pytest.mark.parametrize("is_answering", [True, False])
async def test_a_broker_that_ends_a_connection_without_a_connack(*, is_answering: bool) -> None:
    """The next check asks it: a broker that answers stays up, a forwarder without one is down."""
    async with ScriptedBroker() as broker, echoing() as (other, _):
        upstreams = make_upstreams(f"127.0.0.1:{broker.port}", other)
        first = upstreams.each[0]
        dialled = await upstreams.dial(Taker)
        await (await broker.connected()).close()
        await dialled.protocol.lost
        upstreams.doubt(first)
        checks = asyncio.create_task(upstreams.check(first, 3600.0))
        peer = await broker.connected()
        peer.version = 4
        if is_answering:
            assert isinstance(await peer.receive(), Connect)
            peer.send(ConnAck())
        else:
            await peer.close()
        await checks
        assert first.is_up == is_answering
        assert first.is_silent != is_answering
