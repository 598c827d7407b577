"""A slow link in user space: relays TCP connections with delay and rate, without root.

``python -m penstock.netem.links.relay 127.0.0.1:1883`` listens on a port that it prints (``--port``
chooses one), relays every connection to the target, and reads names of profiles from standard
input: ``bad`` makes the link bad, ``good`` makes it good again. All connections to a target share
one link, and take turns on it, a chunk each.

Limits. The relay terminates the TCP connection of each side.

* It sees bytes and no segments, and cannot lose or reorder segments. Loss needs the tunnel of
  `penstock.netem.links.network`, and root.
* The kernel's RTT (``TCP_INFO``) of either side ends at the relay and stays at some
  microseconds, however slow the link is. Only an answer of the other program, such as a PUBACK,
  measures the whole path.
* It accepts a connection before it connects to the target, and closes the connection if the target
  refuses.

Sockets have small buffers and segments of Ethernet's size, so that a sender notices the link: on
loopback, segments of 64 KiB let the kernel accept megabytes from a sender at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections import deque
from typing import Annotated, Final

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.netem.links.pacer import Pacer
from penstock.netem.links.profiles import PROFILES, Direction, Profile

BUFFER_BYTES: Final = 16 * 1024
"""The SO_RCVBUF and SO_SNDBUF that are requested, bytes; Linux doubles them."""

SEGMENT_BYTES: Final = 1460
"""The TCP_MAXSEG, bytes, with which a segment fits an Ethernet frame over IPv4."""


class _Channel:
    """One direction of the link, which all connections share.

    Attributes:
        pacer: the pacer, which says when bytes leave the link.
        turn: the lock that the connection holds whose chunk occupies the link; the others wait in
            the order of their requests.
    """

    def __init__(self, direction: Direction) -> None:
        self.pacer = Pacer(direction)
        self.turn = asyncio.Lock()


class _Way:
    """One direction of one connection: reads, occupies the link, delays, writes."""

    def __init__(
        self, source: socket.socket, destination: socket.socket, channel: _Channel
    ) -> None:
        self._channel = channel
        self._source = source
        self._destination = destination
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._under_way_bytes = 0
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Wake both tasks: the link or the bytes under way have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Relay until the source ends, then end the destination's input.

        Raises:
            ExceptionGroup: of OSError: either connection broke.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(), name="relay take")
            tasks.create_task(self._give(), name="relay give")

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        pacer = self._channel.pacer
        while True:
            data = await loop.sock_recv(self._source, pacer.chunk_bytes)
            async with self._channel.turn:
                pacer.begin(len(data), loop.time())
                while (wait := pacer.free_at - loop.time()) > 0:
                    await self._wait_for_change(wait)
                self._under_way.append((pacer.arrives_at, data))
            self._under_way_bytes += len(data)
            self.wake()
            if not data:
                return
            while self._under_way_bytes >= pacer.max_under_way_bytes:
                await self._wait_for_change(None)

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._under_way:
                await self._wait_for_change(None)
            arrives_at, data = self._under_way.popleft()
            await asyncio.sleep(arrives_at - loop.time())
            if not data:
                self._destination.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(self._destination, data)
            self._under_way_bytes -= len(data)
            self.wake()

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Wait until `wake`, at most for a number of seconds."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
        # Both tasks may wait, and each must see the change.
        if self._changed is changed and changed.is_set():
            self._changed = asyncio.Event()


class Relay:
    """Relays connections to one target over a link whose profile can change.

    Attributes:
        address: the (host, port) that it listens on, once started.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        profile: Profile,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Make a relay that is not running.

        Raises:
            ValueError: the profile asks for more than delay and rate.
        """
        self.profile = _without_packets(profile)
        self.address = (host, port)
        self._target = (target_host, target_port)
        self._up, self._down = _Channel(self.profile.upstream), _Channel(self.profile.downstream)
        self._ways: set[_Way] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be bound.
        """
        listening = _small_socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(self.address)
            listening.listen()
        except OSError:
            listening.close()
            raise
        self._listening = listening
        self.address = listening.getsockname()
        self._keep(asyncio.create_task(self._accept(listening), name="relay accept"))

    async def close(self) -> None:
        """Stop listening and drop every connection; may be called again."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    def switch(self, profile: Profile) -> None:
        """Change the link, for open connections too; bytes under way keep their delay.

        Raises:
            ValueError: the profile asks for more than delay and rate.
        """
        self.profile = _without_packets(profile)
        now = asyncio.get_running_loop().time()
        self._up.pacer.change(profile.upstream, now)
        self._down.pacer.change(profile.downstream, now)
        for way in self._ways:
            way.wake()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listening)
            self._keep(asyncio.create_task(self._relay(client), name="relay connection"))

    async def _relay(self, client: socket.socket) -> None:
        """Relay one connection; if one side breaks, the other side is closed."""
        server = _small_socket()
        with client, server:
            try:
                await asyncio.get_running_loop().sock_connect(server, self._target)
                await self._relay_between(client, server)
            except* OSError:
                pass

    async def _relay_between(self, client: socket.socket, server: socket.socket) -> None:
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up, down = _Way(client, server, self._up), _Way(server, client, self._down)
        self._ways |= {up, down}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(up.run(), name="relay upstream")
                tasks.create_task(down.run(), name="relay downstream")
        finally:
            self._ways -= {up, down}


def _without_packets(profile: Profile) -> Profile:
    """Return a profile that has delay and rate alone."""
    if profile.upstream.acts_on_packets or profile.downstream.acts_on_packets:
        raise ValueError(
            f"profile {profile.name!r}: a relay of bytes knows delay and rate; "
            "loss and the like need penstock.netem.links.network"
        )
    return profile


def _small_socket() -> socket.socket:
    """Return a TCP socket with small buffers; accepted connections inherit them."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    return sock


async def serve(targets: list[tuple[str, int]], profile: Profile, port: int = 0) -> None:
    """Relay to each target until SIGINT or SIGTERM, switching as standard input says.

    Args:
        targets: the (host, port) of the servers; each has a link of its own.
        profile: the links at the beginning.
        port: the port to listen on, where there is one target; 0 for any free one.

    Raises:
        OSError: no socket can be opened.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    relays = [Relay(*target, profile, port=port) for target in targets]
    try:
        for relay, target in zip(relays, targets, strict=True):
            await relay.start()
            _say(f"listening on {relay.address[0]}:{relay.address[1]} for {target[0]}:{target[1]}")

        def switch(name: str) -> None:
            if name not in PROFILES:
                _say(f"profile: read {name!r}; allowed: {', '.join(PROFILES)}")
                return
            for relay in relays:
                relay.switch(PROFILES[name])
            _say(f"profile {PROFILES[name]}")

        def follow_standard_input() -> None:
            # Not sys.stdin: a thread that blocks in it delays the end of the program.
            with contextlib.suppress(OSError), os.fdopen(os.dup(0), "rb", buffering=0) as lines:
                rest = b""
                while data := lines.read(4096):
                    *whole, rest = (rest + data).split(b"\n")
                    for line in whole:
                        loop.call_soon_threadsafe(switch, line.decode(errors="replace").strip())

        threading.Thread(target=follow_standard_input, daemon=True).start()
        await stopped.wait()
    finally:
        for relay in relays:
            await relay.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _read_target(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65_535):
        raise typer.BadParameter(f"read {text!r}; allowed: HOST:PORT with a port of 1 to 65535")
    return host, int(port)


app = CommandLine()


@app.command()
def relay(
    targets: Annotated[
        list[str], typer.Argument(metavar="HOST:PORT...", help="Servers to relay to.")
    ],
    profile: Annotated[
        str, typer.Option(help=f"The link to begin with: {', '.join(PROFILES)}.")
    ] = "good",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="To listen on, for one server; 0: any free one.")
    ] = 0,
) -> None:
    """Relay TCP connections over a slow link.

    The name of a profile on standard input switches the link to it.
    """
    if profile not in PROFILES:
        raise typer.BadParameter(
            f"read {profile!r}; allowed: {', '.join(PROFILES)}", param_hint="--profile"
        )
    if port and len(targets) > 1:
        raise typer.BadParameter("allowed with one server", param_hint="--port")
    try:
        asyncio.run(serve([_read_target(text) for text in targets], PROFILES[profile], port))
    except OSError as error:
        typer.echo(f"python -m penstock.netem.links.relay: port {port}: {error}", err=True)
        raise typer.Exit(1) from None


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    Returns:
        Exit status: 0 after a stop by signal, 2 for a mistake in the arguments.
    """
    return app.status(argv, "python -m penstock.netem.links.relay")


if __name__ == "__main__":
    sys.exit(main())
