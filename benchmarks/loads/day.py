"""A day of a site as it is run: three processes that send, read, and wake up in between.

Everybody logs in over TLS, and has a session that lasts. Of the clients three fifths are devices
that stay connected and publish. A fifth wakes up every few seconds: such a device connects, takes
the commands that came while it slept, publishes and disconnects. A fifth reads what the devices of
one site publish, two readers each; one reader in ten has a bad link. A few messages in a hundred
are large, and all have QoS 1.

A bad link is a small receive buffer of which little is read at a time, so that TCP's window closes
as on a link that carries no more. That needs no rights. `penstock netem` has real loss and delay.

All processes know when each message is due, by one clock. A message is late from when it was due,
sent or not, so that a broker that stops reading is charged with all that waits meanwhile. Readers
compare every byte, and a message that is lost, repeated or out of turn ends the day.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import json
import random
import select
import socket
import ssl
import struct
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from benchmarks.loads import wire
from benchmarks.loads.access import Access, publisher_id
from benchmarks.loads.paced import go_first, quantile

INTERVAL_SECONDS: Final = 2.0
"""The time between two messages of a device that stays connected."""

SLEEP_SECONDS: Final = 4.0
"""The time between two connections of a device that sleeps: a fifth of 1,000 make 50 a second."""

READERS_OF_A_SITE: Final = 2
LARGE_PER_THOUSAND: Final = 50
SMALL_BYTES: Final = (20, 500)
LARGE_BYTES: Final = (50_000, 150_000)
HEAD: Final = struct.Struct("!II")
"""The beginning of a payload: the number of the device, and that of its message."""

BAD_EVERY: Final = 10
BAD_RECEIVE_BUFFER_BYTES: Final = 1 << 13
BAD_BYTES_PER_SECOND: Final = 5_000
FAIR_BYTES_PER_SECOND: Final = 100_000
PHASE_SECONDS: Final = 20.0
"""A bad link takes one phase in three `BAD_BYTES_PER_SECOND` of payload and in the others
`FAIR_BYTES_PER_SECOND`. A reader's messages are some 16 kB a second."""

LOOK_SECONDS: Final = 0.02
"""The time between two reads from a bad link."""

SEND_BUFFER_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 1 << 18
IDLE_SECONDS: Final = 30.0
THREADS: Final = 16
"""The number of devices that can be awake at once."""

Steps: TypeAlias = Generator[dict[str, object], float, None]
"""The steps of a process: it tells that it is ready, is told the beginning, tells the outcome."""

_FILLING: Final = random.Random(0).randbytes(LARGE_BYTES[1] + 1000)  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Day:
    """The plan, the same in all processes.

    Attributes:
        clients: the number of clients, at least 10.
    """

    clients: int
    seconds: float

    @property
    def readers(self) -> int:
        """The number of readers."""
        return self.sites * READERS_OF_A_SITE

    @property
    def sites(self) -> int:
        """The number of sites."""
        return self.clients // 5 // READERS_OF_A_SITE

    @property
    def sleepers(self) -> range:
        """The numbers of the devices that sleep, which are the last ones."""
        devices = self.clients - self.readers
        return range(devices - self.clients // 5, devices)

    def interval(self, device: int) -> float:
        """Return the seconds between two messages of a device."""
        return SLEEP_SECONDS if device in self.sleepers else INTERVAL_SECONDS

    def due(self, device: int, number: int) -> float:
        """Return when a message is due, in seconds from the beginning."""
        phase = zlib.crc32(HEAD.pack(device, 0)) / (1 << 32)
        return (phase + number) * self.interval(device)

    def command_due(self, device: int, number: int) -> float:
        """Return when a command to a device that sleeps is due: halfway through its sleep."""
        return self.due(device, number) + SLEEP_SECONDS / 2

    def count(self, device: int) -> int:
        """Return how many messages of a device are due in the day."""
        return max(0, -int(-(self.seconds - self.due(device, 0)) // self.interval(device)))

    def commands(self, device: int) -> int:
        """Return how many commands to a device that sleeps are due in the day."""
        return max(0, -int(-(self.seconds - self.command_due(device, 0)) // SLEEP_SECONDS))

    def is_large(self, device: int, number: int) -> bool:
        """Say whether a message is large; those of devices that sleep, and commands, never are."""
        if device in self.sleepers:
            return False
        return zlib.crc32(HEAD.pack(device, number)) % 1000 < LARGE_PER_THOUSAND

    def payload(self, device: int, number: int) -> bytes:
        """Return the payload of a message."""
        chance = zlib.crc32(HEAD.pack(device, number)) // 1000
        least, most = LARGE_BYTES if self.is_large(device, number) else SMALL_BYTES
        begin = chance % 997
        filling = _FILLING[begin : begin + least + chance % (most - least + 1)]
        return HEAD.pack(device, number) + filling

    def topic(self, device: int) -> str:
        """Return a device's topic: the ACL file allows it by a line of the user, or a pattern."""
        root = publisher_id(device) if device % 2 else "day"
        return f"bench/{root}/{device % self.sites}/{device}"

    def topic_filter(self, reader: int) -> str:
        """Return what a reader subscribes to."""
        return f"bench/+/{reader // READERS_OF_A_SITE}/#"

    def devices_of(self, reader: int) -> list[int]:
        """Return the devices of a reader's site."""
        site = reader // READERS_OF_A_SITE
        return list(range(site, self.clients - self.readers, self.sites))

    def has_bad_link(self, reader: int) -> bool:
        """Say whether a reader has a bad link."""
        return reader % BAD_EVERY == BAD_EVERY - 1


def command_topic(device: int) -> str:
    """Return the topic of commands to a device."""
    return f"bench/{publisher_id(device)}/command"


def send_all(sock: socket.socket, data: bytes) -> None:
    """Send on a connection that does not block, and wait where the kernel takes no more."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            select.select([], [sock], [], IDLE_SECONDS)


def receive_all(sock: socket.socket) -> bytes:
    """Return what has come on a connection that does not block; with TLS all whole records.

    Raises:
        wire.WireError: the broker closed the connection.
    """
    data = b""
    while True:
        try:
            chunk = sock.recv(BUFFER_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return data
        if not chunk:
            raise wire.WireError("the broker closed a connection of the load")
        data += chunk


def sleep_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock, if it is still to come."""
    if (seconds := moment - time.monotonic()) > 0:
        time.sleep(seconds)


# The process that sends.


def departures(day: Day) -> Iterator[tuple[float, str, int, int]]:
    """Yield what the devices that stay connected publish, and the commands, in order of time.

    Yields:
        Seconds from the beginning, the topic, the device and the number of the message.
    """

    def of(device: int) -> Iterator[tuple[float, str, int, int]]:
        topic = day.topic(device)
        for number in range(day.count(device)):
            yield day.due(device, number), topic, device, number

    def to(device: int) -> Iterator[tuple[float, str, int, int]]:
        topic = command_topic(device)
        for number in range(day.commands(device)):
            yield day.command_due(device, number), topic, device, number

    return heapq.merge(*map(of, range(day.sleepers.start)), *map(to, day.sleepers))


def send(access: Access, day: Day) -> Steps:
    """Connect; then publish, each message when it is due, and wait until all are acknowledged."""
    # The commands come from one client, which has a right to all their topics.
    socks = [access.open_publisher(device)[0] for device in range(day.sleepers.start)]
    socks.append(access.open("bench-operator", "south")[0])
    by_file = {sock.fileno(): sock for sock in socks}
    acknowledged = sent = 0
    with select.epoll() as poller:
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            sock.setblocking(False)
            poller.register(sock, select.EPOLLIN)

        def read(seconds: float) -> int:
            ready = poller.poll(seconds)
            return sum(len(receive_all(by_file[file])) for file, _ in ready)

        start = yield {"ready": True}
        late = array("d")
        for offset, topic, device, number in departures(day):
            due = start + offset
            packet = wire.publish_packet(topic, day.payload(device, number), 1 + number % 60_000)
            while (early := due - time.monotonic()) > 0:
                acknowledged += read(early)
            late.append(-early)
            send_all(socks[min(device, len(socks) - 1)], packet)
            sent += 1
        last = time.monotonic()
        while acknowledged < 4 * sent and time.monotonic() - last < IDLE_SECONDS:
            if size := read(1.0):
                acknowledged, last = acknowledged + size, time.monotonic()
    yield {
        "published": sent,
        "unacknowledged": sent - acknowledged // 4,
        "sender_p99": quantile(sorted(late), 0.99) if late else 0.0,
    }


# The process that reads.


class Reader:
    """A reader: what it expects next of each device, and how late messages were, by class."""

    def __init__(
        self, access: Access, day: Day, reader: int, lateness: Mapping[str, array[float]]
    ) -> None:
        self.sock, _ = access.open_subscriber(reader)
        wire.subscribe(self.sock, day.topic_filter(reader), 1)
        self.sock.setblocking(False)
        self.is_bad = day.has_bad_link(reader)
        if self.is_bad:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BAD_RECEIVE_BUFFER_BYTES)
        self._day = day
        self._next = dict.fromkeys(day.devices_of(reader), 0)
        self.remaining = sum(map(day.count, self._next))
        self._lateness = lateness
        self._data = bytearray()
        self._wanted_bytes = 2

    def read(self, most_bytes: int, start: float) -> int:
        """Take and acknowledge what is there; return its bytes.

        Raises:
            wire.WireError: it is something else than the messages that are due, in their order.
        """
        taken = 0
        while taken < most_bytes:
            try:
                chunk = self.sock.recv(most_bytes - taken)
            except ssl.SSLWantReadError:
                break
            if not chunk:
                raise wire.WireError("the broker closed a reader's connection")
            self._data += chunk
            taken += len(chunk)
        if len(self._data) < self._wanted_bytes:
            return taken
        now = time.monotonic() - start
        packets, rest = wire.whole_packets(bytes(self._data))
        self._data[:] = rest
        # A large message is looked at again when it is there in full.
        self._wanted_bytes = wire.size_of(rest + bytes(5)) if len(rest) > 1 else 2
        answers = b"".join(self._take(packet, now) for packet in packets)
        if answers:
            send_all(self.sock, answers)
        return taken

    def _take(self, packet: bytes, now: float) -> bytes:
        """Compare a message, note how late it is, and return its acknowledgement."""
        publish, day = wire.read_publish(packet), self._day
        device, number = HEAD.unpack_from(packet, publish.payload_at)
        is_due = self._next.get(device) == number and publish.topic == day.topic(device)
        if not is_due or packet[publish.payload_at :] != day.payload(device, number):
            raise wire.WireError(
                f"read message {number} of device {device}; due was {self._next.get(device)}"
            )
        self._next[device] += 1
        self.remaining -= 1
        kind = "large" if day.is_large(device, number) else "small"
        if device in day.sleepers:
            kind = "woken"
        self._lateness[f"{kind}_bad" if self.is_bad else kind].append(now - day.due(device, number))
        at = publish.packet_id_at
        return wire.acknowledgement(wire.PUBACK, int.from_bytes(packet[at : at + 2], "big"))


def rate_of_bad_links(seconds: float) -> int:
    """Return the bytes per second that bad links take so long after the beginning."""
    is_bad = seconds // PHASE_SECONDS % 3 == 1
    return BAD_BYTES_PER_SECOND if is_bad else FAIR_BYTES_PER_SECOND


KINDS: Final = ("small", "large", "woken", "small_bad", "large_bad", "woken_bad")


def read(access: Access, day: Day) -> Steps:
    """Subscribe; then read all messages of the day, and tell how late they were."""
    lateness = {kind: array("d") for kind in KINDS}
    readers = [Reader(access, day, reader, lateness) for reader in range(day.readers)]
    by_file = {each.sock.fileno(): each for each in readers}
    bad = [each for each in readers if each.is_bad]
    expected = sum(each.remaining for each in readers)
    with select.epoll() as poller:
        for each in readers:
            if not each.is_bad:
                poller.register(each.sock, select.EPOLLIN)
        start = yield {"ready": True}
        looked = last = time.monotonic()
        while any(each.remaining for each in readers):
            for file, _ in poller.poll(LOOK_SECONDS):
                by_file[file].read(BUFFER_BYTES, start)
                last = time.monotonic()
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                # The day over, what still waits is read as fast as it comes.
                is_over = now - start > day.seconds
                budget = int(rate_of_bad_links(now - start) * (now - looked))
                for each in bad:
                    if each.read(BUFFER_BYTES if is_over else max(1, budget), start):
                        last = now
                looked = now
            if now - max(last, start + day.seconds) > IDLE_SECONDS:
                break
    told: dict[str, object] = {}
    for kind, values in lateness.items():
        ordered = sorted(values)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            told[f"{kind}_{name}"] = quantile(ordered, share) if ordered else 0.0
    yield {
        "expected": expected,
        "received": expected - sum(each.remaining for each in readers),
        **told,
    }


# The process of the devices that sleep.


class Sleeper:
    """A device that sleeps."""

    def __init__(self, access: Access, day: Day, device: int) -> None:
        self._access = access
        self._day = day
        self._device = device
        self._lock = threading.Lock()  # one that wakes late has not gone to sleep again yet
        self.commands = 0
        self.connected = array("d")
        with self._open() as sock:
            wire.subscribe(sock, command_topic(device), 1)
            sock.sendall(wire.DISCONNECT)

    def _open(self) -> socket.socket:
        sock, _ = self._access.open_publisher(self._device)
        return sock

    def wake(self, number: int, start: float) -> None:
        """Connect, publish a message, and take what waits until it is acknowledged."""
        with self._lock, self._open() as sock:
            self.connected.append(time.monotonic() - start - self._day.due(self._device, number))
            payload = self._day.payload(self._device, number)
            topic = self._day.topic(self._device)
            sock.sendall(wire.publish_packet(topic, payload, 1 + number % 60_000))
            while self._receive(sock)[0] != wire.PUBACK:
                pass
            sock.sendall(wire.DISCONNECT)

    def take_the_rest(self, deadline: float) -> None:
        """Take the commands that still wait, until a moment of the monotonic clock."""
        with self._lock, self._open() as sock, contextlib.suppress(TimeoutError):
            while self.commands < self._day.commands(self._device):
                sock.settimeout(max(0.1, deadline - time.monotonic()))
                self._receive(sock)
            sock.sendall(wire.DISCONNECT)

    def _receive(self, sock: socket.socket) -> bytes:
        """Read a packet; take and acknowledge a command.

        Raises:
            wire.WireError: it is not the next one.
        """
        packet = wire.receive_packet(sock)
        if packet[0] & 0xF0 == wire.PUBLISH:
            publish = wire.read_publish(packet)
            found = HEAD.unpack_from(packet, publish.payload_at)
            if packet[publish.payload_at :] != self._day.payload(self._device, self.commands):
                # What was acknowledged as the connection ended may come again, marked as such.
                if not packet[0] & wire.DUPLICATE:
                    raise wire.WireError(f"read command {found}; due was {self.commands}")
            else:
                self.commands += 1
            packet_id = packet[publish.packet_id_at : publish.packet_id_at + 2]
            sock.sendall(bytes([wire.PUBACK, 2]) + packet_id)
        return packet


def sleep(access: Access, day: Day) -> Steps:
    """Make the sessions; then wake each device when it is due."""
    sleepers = {device: Sleeper(access, day, device) for device in day.sleepers}

    def wakes(device: int) -> Iterator[tuple[float, int, int]]:
        for number in range(day.count(device)):
            yield day.due(device, number), device, number

    start = yield {"ready": True}
    with ThreadPoolExecutor(THREADS) as pool:
        futures = []
        for offset, device, number in heapq.merge(*map(wakes, sleepers)):
            sleep_until(start + offset)
            futures.append(pool.submit(sleepers[device].wake, number, start))
        for future in futures:
            future.result()
        sleep_until(start + day.seconds)
        deadline = time.monotonic() + IDLE_SECONDS
        list(pool.map(lambda each: each.take_the_rest(deadline), sleepers.values()))
    connected = sorted(value for each in sleepers.values() for value in each.connected)
    expected = sum(map(day.commands, sleepers))
    yield {
        "connects": len(connected),
        "connect_p50": quantile(connected, 0.5) if connected else 0.0,
        "connect_p99": quantile(connected, 0.99) if connected else 0.0,
        "expected": expected,
        "received": sum(each.commands for each in sleepers.values()),
    }


def main() -> None:
    """Do as the first argument says: be ready, read when the day begins, and tell the outcome."""
    role = {"send": send, "read": read, "sleep": sleep}[sys.argv[1]]
    access, day = (json.loads(each) for each in sys.argv[2:4])
    gc.disable()
    if role is not sleep:  # they sleep nearly all of the time, and their clocks have to be right
        go_first()
    steps = role(Access(**access), Day(**day))
    print(json.dumps(next(steps)), flush=True)
    start = json.loads(sys.stdin.readline())["start"]
    cpu_before = time.process_time()
    outcome = steps.send(start)
    print(json.dumps({**outcome, "cpu": time.process_time() - cpu_before}), flush=True)


if __name__ == "__main__":
    main()
