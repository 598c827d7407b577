"""A load of clients that connect, publish and vanish faster than a broker can serve them.

50 clients do the same over and over: connect under a new name, subscribe at QoS 1 to a filter that
a tenth of all clients share, publish 50 messages of 100 bytes to it, every second one at QoS 1, and
vanish: half of them by a reset, none with a DISCONNECT, none waiting for an acknowledgement of what
it has published. Two of three speak MQTT 5 and leave a session behind that expires in 3 to 5 s. So
the work that one client causes grows with those that came shortly before. One reader, which stays,
subscribes to all of it at QoS 0; what it gets counts as *goodput*.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psutil

from benchmarks.loads.wire import connect_packet, frame, publish_packet, subscribe_packet
from benchmarks.peers import RunningPeer

T = TypeVar("T")

CLIENTS: Final = 50
GROUPS: Final = 10
BURST_MESSAGES: Final = 50
PAYLOAD_BYTES: Final = 100
EXPIRY_SECONDS: Final = (3, 4, 5)
READER_BUFFER_BYTES: Final = 1 << 20
ANSWER_SECONDS: Final = 60.0
"""A client gives up when its CONNECT or SUBSCRIBE is not answered in this time."""

IDLE_RATIO: Final = 0.1
"""A broker that uses less than this share of a core for a second is idle."""

IDLE_WINDOW_SECONDS: Final = 1.0
MOST_IDLE_SECONDS: Final = 90.0
MOST_STOP_SECONDS: Final = 60.0

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time, so that `close` sends RST."""


@dataclass(frozen=True, slots=True)
class ChurnFigures:
    """The figures of one load.

    Attributes:
        connects_per_second: the clients a second whose SUBSCRIBE was answered.
        delivered_per_second: the messages a second that the reader received meanwhile.
        idle_seconds: the time from the end of the load until the broker was idle; None where not
            measured.
    """

    connects_per_second: float
    delivered_per_second: float
    idle_seconds: float | None = None


class _Load:
    """Clients that connect and vanish, and their reader.

    Attributes:
        n_connected: the number of clients whose SUBSCRIBE was answered.
        n_bytes: the bytes that the reader received.
    """

    def __init__(self, port: int, rate: float | None) -> None:
        self._address = ("127.0.0.1", port)
        self._interval = None if rate is None else 1 / rate
        self._next_at = 0.0
        self._n_begun = 0
        self._run = os.urandom(4).hex()
        self._bursts = [
            [self._burst(group, is_5=is_5) for group in range(GROUPS)] for is_5 in (False, True)
        ]
        self.n_connected = 0
        self.n_bytes = 0
        self.is_over = False

    @staticmethod
    def message_bytes() -> int:
        """Return the size of one message as the reader gets it."""
        return len(publish_packet(_topic(0), bytes(PAYLOAD_BYTES)))

    @staticmethod
    def _burst(group: int, *, is_5: bool) -> bytes:
        payload = bytes(PAYLOAD_BYTES)
        properties = b"" if is_5 else None
        return b"".join(
            publish_packet(
                _topic(group), payload, n if n % 2 else None, qos=1, properties=properties
            )
            for n in range(1, BURST_MESSAGES + 1)
        )

    async def read(self, reader: socket.socket) -> None:
        """Count what the reader gets, until it is cancelled or the connection ends."""
        loop = asyncio.get_running_loop()
        buffer = bytearray(READER_BUFFER_BYTES)
        with contextlib.suppress(ConnectionError):
            while n_bytes := await loop.sock_recv_into(reader, buffer):
                self.n_bytes += n_bytes

    async def come_and_go(self) -> None:
        """Be one client after the other, each with a name of its own."""
        while not self._has_ended():
            if self._interval is not None:
                now = time.monotonic()
                self._next_at = max(self._next_at, now - 1.0) + self._interval
                await asyncio.sleep(self._next_at - self._interval - now)
                if self._has_ended():
                    return
            number = self._n_begun
            self._n_begun += 1
            with contextlib.suppress(OSError, TimeoutError):  # it was not served
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._be_client(number)

    def _has_ended(self) -> bool:
        return self.is_over

    async def _be_client(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        is_5 = number % 3 > 0
        group = number % GROUPS
        version = 5 if is_5 else 4
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, self._address)
            await loop.sock_sendall(sock, self._connect(number, is_5=is_5))
            await _wait_for(sock, b"\x20")
            subscribe = subscribe_packet(1, f"churn/{group}/#", 1, version=version)
            await loop.sock_sendall(sock, subscribe)
            await _wait_for(sock, b"\x90\x04\0\1\0\1" if is_5 else b"\x90\x03\0\1\1")
            self.n_connected += 1
            await loop.sock_sendall(sock, self._bursts[is_5][group])
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _connect(self, number: int, *, is_5: bool) -> bytes:
        client_id = f"churn-{self._run}-{number}"
        if not is_5:
            return connect_packet(client_id)
        expiry = b"\x11" + struct.pack("!I", EXPIRY_SECONDS[number % len(EXPIRY_SECONDS)])
        head = b"\0\x04MQTT\x05\x02" + struct.pack("!H", 60)
        name = struct.pack("!H", len(client_id)) + client_id.encode()
        return frame(0x10, head + bytes([len(expiry)]) + expiry + name)


def _topic(group: int) -> str:
    return f"churn/{group}/value"


async def _wait_for(sock: socket.socket, packet: bytes) -> None:
    """Read until a packet has come, whatever comes before it.

    Raises:
        ConnectionError: the broker has closed the connection.
    """
    loop = asyncio.get_running_loop()
    seen = b""
    while packet not in seen:
        data = await loop.sock_recv(sock, 1 << 16)
        if not data:
            raise ConnectionError("closed by the broker")
        seen = seen[-len(packet) :] + data


async def _open_reader(port: int) -> socket.socket:
    reader = socket.socket()
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, ("127.0.0.1", port))
    await loop.sock_sendall(reader, connect_packet("churn-reader"))
    await _wait_for(reader, b"\x20\x02\0\0")
    await loop.sock_sendall(reader, subscribe_packet(1, "churn/#", 0))
    await _wait_for(reader, b"\x90\x03\0\1\0")
    return reader


async def _churn(
    peer: RunningPeer, rate: float | None, seconds: float, *, waits: bool
) -> ChurnFigures:
    load = _Load(peer.port, rate)
    reader = await _open_reader(peer.port)
    reading = asyncio.create_task(load.read(reader))
    started = time.monotonic()
    clients = [asyncio.create_task(load.come_and_go()) for _ in range(CLIENTS)]
    await asyncio.sleep(seconds)
    elapsed = time.monotonic() - started
    connected, n_bytes = load.n_connected, load.n_bytes
    load.is_over = True
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    idle_seconds = await _until_idle(peer) if waits else None
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    reader.close()
    return ChurnFigures(connected / elapsed, n_bytes / load.message_bytes() / elapsed, idle_seconds)


async def _until_idle(peer: RunningPeer) -> float:
    """Return the seconds until a broker begins to be idle; the most, where it never is."""
    started = time.monotonic()
    before, at = peer.cpu_seconds(), started
    while at - started < MOST_IDLE_SECONDS:
        await asyncio.sleep(IDLE_WINDOW_SECONDS)
        cpu, now = peer.cpu_seconds(), time.monotonic()
        if cpu - before < IDLE_RATIO * (now - at):
            return at - started
        before, at = cpu, now
    return MOST_IDLE_SECONDS


def churn(
    peer: RunningPeer, rate: float | None, seconds: float, *, waits: bool = True
) -> ChurnFigures:
    """Let clients connect and vanish.

    Args:
        peer: a started broker; `persistent` is one with persistence.
        rate: the connections offered a second; None for as many as the clients can make.
        seconds: the length of the load, seconds.
        waits: whether to wait until the broker is idle, and to measure that time.

    Raises:
        OSError: the broker takes no connection.
    """
    return _run(_churn(peer, rate, seconds, waits=waits))


def stop_seconds(peer: RunningPeer, seconds: float) -> float:
    """Send SIGTERM under a load without a limit, and return how long the broker takes to end.

    Args:
        peer: a started broker, of no use afterwards.
        seconds: the seconds of load before the signal; the load goes on afterwards.

    Returns:
        Seconds; the most that is waited for where it does not end.
    """
    return _run(_stop_seconds(peer, seconds))


async def _stop_seconds(peer: RunningPeer, seconds: float) -> float:
    load = _Load(peer.port, None)
    clients = [asyncio.create_task(load.come_and_go()) for _ in range(CLIENTS)]
    await asyncio.sleep(seconds)
    peer.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    waiting = asyncio.create_task(asyncio.to_thread(_wait, peer.process))
    await asyncio.sleep(0.5)
    load.is_over = True
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return await waiting - started


def _wait(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
        process.wait(MOST_STOP_SECONDS)
    return time.monotonic()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    import uvloop  # noqa: PLC0415 - not on every system, and only this load needs it

    return uvloop.run(coroutine)
