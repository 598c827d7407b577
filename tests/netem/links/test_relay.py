from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.netem.links import relay as relay_module
from penstock.netem.links.profiles import LOSSY, OPEN, Direction, Profile
from penstock.netem.links.relay import Relay
from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.process import SECONDS

ROOT = Path(__file__).resolve().parents[3]

STUCK = Profile("stuck", Direction(0, 0.001), Direction(0, 0.001))
"""Carries its first bytes in days."""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A listening socket: the target."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@contextlib.asynccontextmanager
async def relayed(
    server: socket.socket, profile: Profile = OPEN
) -> AsyncIterator[tuple[Relay, socket.socket, socket.socket]]:
    """A relay with one connection: yields it, the client's socket and the server's."""
    loop = asyncio.get_running_loop()
    relay = Relay("127.0.0.1", server.getsockname()[1], profile)
    await relay.start()
    try:
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, relay.address)
        accepted, _ = await loop.sock_accept(server)
        with client, accepted:
            yield relay, client, accepted
    finally:
        await relay.close()


def arbitrary_bytes(n_bytes: int) -> bytes:
    """Return bytes of which no part repeats soon, the same each time."""
    return random.Random(1).randbytes(n_bytes)  # noqa: S311 (no secret)


async def receive_all(sock: socket.socket) -> bytes:
    """Return what comes until the end of the stream."""
    loop = asyncio.get_running_loop()
    chunks = []
    while chunk := await loop.sock_recv(sock, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


async def test_bytes_pass_both_ways_unchanged_and_each_end_by_itself(server: socket.socket) -> None:
    """What one side sends, the other gets in order; half a connection may end alone."""
    data = arbitrary_bytes(300_000)
    loop = asyncio.get_running_loop()
    async with relayed(server) as (_, client, accepted):
        sending = asyncio.create_task(loop.sock_sendall(client, data))
        got = await loop.sock_recv(accepted, 1 << 16)
        await sending
        client.shutdown(socket.SHUT_WR)
        assert got + await receive_all(accepted) == data
        await loop.sock_sendall(accepted, data[::-1])
        accepted.shutdown(socket.SHUT_WR)
        assert await receive_all(client) == data[::-1]


async def test_bytes_come_out_after_the_delay(server: socket.socket) -> None:
    """Nothing arrives before the direction's delay has passed."""
    loop = asyncio.get_running_loop()
    profile = Profile("late", Direction(delay=0.2), Direction())
    async with relayed(server, profile) as (_, client, accepted):
        sent_at = loop.time()
        await loop.sock_sendall(client, b"small")
        assert await loop.sock_recv(accepted, 16) == b"small"
        assert loop.time() - sent_at >= 0.2


async def test_a_large_transfer_takes_its_length_over_the_rate(server: socket.socket) -> None:
    """100 kB do not pass a link of 500 kB/s in less than 0.2 s."""
    loop = asyncio.get_running_loop()
    profile = Profile("narrow", Direction(rate=500_000), Direction())
    async with relayed(server, profile) as (_, client, accepted):
        began_at = loop.time()
        await loop.sock_sendall(client, bytes(100_000))
        client.shutdown(socket.SHUT_WR)
        assert len(await receive_all(accepted)) == 100_000
        # What sockets hold counts as sent; the rest went at the rate.
        assert loop.time() - began_at >= 0.19


async def test_a_link_that_carries_nothing_stops_the_sender(server: socket.socket) -> None:
    """A sender is stopped by little more than the sockets' buffers, long before a megabyte."""
    loop = asyncio.get_running_loop()
    async with relayed(server, STUCK) as (_, client, _accepted):
        sent = 0
        while sent < 8_000_000:
            try:
                async with asyncio.timeout(0.5):
                    await loop.sock_sendall(client, bytes(10_000))
            except TimeoutError:
                break
            sent += 10_000
        assert sent < 1_000_000


async def test_a_switch_frees_open_connections(server: socket.socket) -> None:
    """What waits on a bad link goes on once it is good; nothing is lost on the way."""
    loop = asyncio.get_running_loop()
    data = arbitrary_bytes(2_000_000)
    async with relayed(server, STUCK) as (relay, client, accepted):
        sending = asyncio.create_task(loop.sock_sendall(client, data))
        receiving = asyncio.create_task(receive_all(accepted))
        done, _ = await asyncio.wait({sending, receiving}, timeout=0.1)
        assert not done
        relay.switch(OPEN)
        await sending
        client.shutdown(socket.SHUT_WR)
        assert await receiving == data


async def test_connections_share_the_link(server: socket.socket) -> None:
    """Two connections carry together what one would."""
    loop = asyncio.get_running_loop()
    profile = Profile("narrow", Direction(rate=500_000), Direction())
    async with relayed(server, profile) as (relay, first, accepted):
        with socket.socket() as second:
            second.setblocking(False)
            await loop.sock_connect(second, relay.address)
            other, _ = await loop.sock_accept(server)
            with other:
                began_at = loop.time()
                receiving = asyncio.gather(receive_all(accepted), receive_all(other))
                for sock in (first, second):
                    await loop.sock_sendall(sock, bytes(100_000))
                    sock.shutdown(socket.SHUT_WR)
                assert [len(data) for data in await receiving] == [100_000, 100_000]
                # What sockets hold counts as sent; the rest went at the rate.
                assert loop.time() - began_at >= 0.38


async def test_a_small_message_waits_for_one_chunk_of_another_connection(
    server: socket.socket,
) -> None:
    """The link takes connections in turn: what is large on one does not hold up the other."""
    loop = asyncio.get_running_loop()
    async with relayed(server, Profile("slow", Direction(rate=50_000), Direction())) as found:
        relay, first, accepted = found
        with socket.socket() as second:
            second.setblocking(False)
            await loop.sock_connect(second, relay.address)
            other, _ = await loop.sock_accept(server)
            with other:
                large = asyncio.create_task(loop.sock_sendall(first, bytes(500_000)))
                taking = asyncio.create_task(receive_all(accepted))
                await loop.sock_sendall(second, b"small")
                assert await loop.sock_recv(other, 16) == b"small"
                assert not taking.done()
                for task in (large, taking):
                    task.cancel()


async def test_what_only_packets_can_show_is_refused(server: socket.socket) -> None:
    """A relay of bytes does not pretend to lose packets, and stays what it was."""
    with pytest.raises(ValueError, match="profile 'lossy'"):
        Relay("127.0.0.1", 9, LOSSY)
    async with relayed(server) as (relay, _client, _accepted):
        with pytest.raises(ValueError, match="profile 'lossy'"):
            relay.switch(LOSSY)
        assert relay.profile == OPEN


async def test_new_connections_have_the_new_profile(server: socket.socket) -> None:
    """A relay that was switched before a client came is what it was switched to."""
    loop = asyncio.get_running_loop()
    async with relayed(server, STUCK) as (relay, _client, _accepted):
        relay.switch(OPEN)
        with socket.socket() as second:
            second.setblocking(False)
            await loop.sock_connect(second, relay.address)
            await loop.sock_sendall(second, b"hello")
            accepted, _ = await loop.sock_accept(server)
            with accepted:
                assert await loop.sock_recv(accepted, 16) == b"hello"


async def test_a_target_that_refuses_ends_the_clients_connection() -> None:
    """A client of a relay to nowhere is cut, and the relay goes on."""
    with reserved_port() as port:
        relay = Relay("127.0.0.1", port, OPEN)
        await relay.start()
        try:
            for _ in range(2):
                reader, writer = await asyncio.open_connection(*relay.address)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
        finally:
            await relay.close()


async def test_a_break_on_one_side_is_a_break_on_the_other(server: socket.socket) -> None:
    """When the server resets the connection, the client's ends too."""
    async with relayed(server) as (_, client, accepted):
        accepted.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4)
        )
        accepted.close()
        with contextlib.suppress(ConnectionError):
            assert await receive_all(client) == b""


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a program."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def test_a_port_that_is_taken_is_told(
    server: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with status 1."""
    port = str(server.getsockname()[1])
    assert relay_module.main(["127.0.0.1:9", "--port", port]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {port}: " in line


def test_as_a_program_it_relays_and_follows_standard_input(server: socket.socket) -> None:
    """It says where it listens, switches by name, tells a wrong name, and ends by SIGTERM."""
    port = server.getsockname()[1]
    command = [sys.executable, "-m", "penstock.netem.links.relay", f"127.0.0.1:{port}"]
    command += ["--profile", "open"]
    pipe = subprocess.PIPE
    with (
        reserved_port() as chosen,
        subprocess.Popen(
            [*command, "--port", str(chosen)],
            cwd=ROOT,
            text=True,
            stdin=pipe,
            stdout=pipe,
            bufsize=1,
        ) as process,
    ):
        try:
            said = read_line(process)
            assert said.endswith(f"for 127.0.0.1:{port}")
            host, _, listening = said.split()[2].rpartition(":")
            assert int(listening) == chosen
            with socket.create_connection((host, int(listening))) as client:
                server.setblocking(True)
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"hello")
                    assert accepted.recv(16) == b"hello"
            assert process.stdin is not None
            process.stdin.write("good\nworse\n")
            process.stdin.flush()
            assert read_line(process) == "profile good: 40 ms round trip, 2,500 kB/s"
            assert read_line(process) == "profile: read 'worse'; allowed: open, good, bad"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["127.0.0.1"], "HOST:PORT"),
        (["127.0.0.1:0"], "1 to 65535"),
        (["127.0.0.1:1883", "--profile", "worse"], "open, good, bad"),
        (["127.0.0.1:1883", "127.0.0.1:1884", "--port", "1885"], "allowed with one server"),
        ([], "HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_told_with_what_is_allowed(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake on the command line ends with status 2 and no traceback."""
    assert relay_module.main(arguments) == 2
    assert named in capsys.readouterr().err
