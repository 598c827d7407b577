"""Many raw pairs of one QoS 1 publisher and one durable subscriber, all in one thread.

A publisher sends few messages at a time and repeats with DUP what a lost connection left
unacknowledged. So a broker that keeps its promises delivers each number once at least, and the
first deliveries in order. In some pairs the subscriber is slow: for a while it acknowledges late,
reads nothing, stays away, or connects anew while its old connection is still there; and the
publisher loses its connection now and then.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from benchmarks.loads import wire

RETRY_SECONDS: Final = 0.05
TIMEOUT_SECONDS: Final = 10.0
MOOD_SECONDS: Final = (0.1, 1.0)
LATE_SECONDS: Final = (0.03, 0.2)
"""A slow subscriber acknowledges each message so late, one after the other."""

N_WINDOWED: Final = 4
"""Every so-manieth publisher has up to this many messages unacknowledged, the others one."""


class Pair:
    """A pair, and what it has seen.

    Attributes:
        n_acknowledged: the publisher's first so many messages are promised.
        n_repeats: messages that came again.
        n_disordered: first deliveries after that of a later message.
        n_without_dup: messages that came again without DUP, though they were published once.
        n_sessions_lost: times that the broker did not know the subscriber's session.
    """

    def __init__(self, pairs: Pairs, number: int, *, is_slow: bool) -> None:
        self.n_acknowledged = self.n_repeats = self.n_disordered = 0
        self.n_without_dup = self.n_sessions_lost = 0
        self._missing: set[int] = set()
        self._repeated: set[int] = set()
        self._newest = -1
        self._pairs = pairs
        self._version = 4 + number % 2
        self._topic = f"pairs/{number}"
        self._window = N_WINDOWED if number % N_WINDOWED == 0 else 1
        self._n_sent = 0
        self._is_slow = is_slow
        self._is_subscribed = False
        self._acknowledges_at = 0.0
        self._late_seconds = 0.0
        self._sub = _Client(pairs, f"s{number}", self._version, self._opened, self._delivered)
        self._pub = _Client(pairs, f"p{number}", self._version, self._publish, self._acknowledged)
        self._sub.connect()

    @property
    def n_connects(self) -> int:
        """How often the broker has accepted both."""
        return min(self._sub.n_connects, self._pub.n_connects)

    @property
    def n_lost(self) -> int:
        """How many acknowledged messages have not come."""
        n_behind = max(0, self.n_acknowledged - 1 - self._newest)
        return n_behind + sum(each < self.n_acknowledged for each in self._missing)

    @property
    def is_drained(self) -> bool:
        """Whether all that was published is acknowledged and delivered."""
        return self.n_acknowledged == self._n_sent and not self.n_lost

    def _opened(self, *, is_present: bool) -> None:
        if not is_present:
            self.n_sessions_lost += self._is_subscribed
            self._sub.send(wire.subscribe_packet(1, self._topic, 1, version=self._version))

    def _delivered(self, packet: bytes) -> None:
        if packet[0] == wire.SUBACK:
            if not self._is_subscribed:
                self._is_subscribed = True
                self._pub.connect()
                if self._is_slow:
                    self._change_mood()
            return None
        found = wire.read_publish(packet, version=self._version)
        number = int(packet[found.payload_at :])
        if number > self._newest:
            self._missing.update(range(self._newest + 1, number))
            self._newest = number
        elif number in self._missing:
            self._missing.remove(number)
            self.n_disordered += 1
        else:
            self.n_repeats += 1
            is_dup = packet[0] & wire.DUPLICATE
            self.n_without_dup += not is_dup and number not in self._repeated
        answer = wire.acknowledgement(
            wire.PUBACK, int.from_bytes(packet[found.packet_id_at : found.packet_id_at + 2], "big")
        )
        if not self._late_seconds:
            return self._sub.send(answer)
        now = time.monotonic()
        self._acknowledges_at = max(now, self._acknowledges_at) + self._late_seconds
        sock = self._sub.sock
        self._pairs.later(self._acknowledges_at - now, lambda: self._sub.send(answer, sock))
        return None

    def _change_mood(self) -> None:
        """Be late, asleep, away or taken over until the next change, or quick."""
        rng, sub = self._pairs.rng, self._sub
        self._late_seconds, self._acknowledges_at = 0.0, 0.0
        if self._pairs.is_ending:
            return
        seconds = rng.uniform(*MOOD_SECONDS)
        match rng.randrange(6):
            case 0:
                self._late_seconds = rng.uniform(*LATE_SECONDS)
            case 1:
                sub.sleep(seconds)
            case 2:
                sub.reconnect(seconds)
            case 3:
                sub.take_over()
            case 4:
                self._pub.reconnect()
        self._pairs.later(seconds, self._change_mood)

    def _publish(self, *, is_present: bool) -> None:  # noqa: ARG002
        for number in range(self.n_acknowledged, self._n_sent):
            self._repeated.add(number)
            self._send(number, wire.DUPLICATE)
        self._go_on()

    def _acknowledged(self, packet: bytes) -> None:
        wanted = self.n_acknowledged % wire.DEFAULT_RECEIVE_MAXIMUM + 1
        if packet != wire.acknowledgement(wire.PUBACK, wanted):
            raise wire.WireError(f"{self._topic}: read {packet.hex(' ')}; expected PUBACK {wanted}")
        self.n_acknowledged += 1
        self._go_on()

    def _go_on(self) -> None:
        while (
            self._n_sent - self.n_acknowledged < self._window
            and not self._pairs.is_ending
            and self._pub.sock is not None
        ):
            self._n_sent += 1
            self._send(self._n_sent - 1)

    def _send(self, number: int, flags: int = 0) -> None:
        packet_id = number % wire.DEFAULT_RECEIVE_MAXIMUM + 1
        payload = b"%0*d" % (1 + number % 200, number)
        properties = b"" if self._version == 5 else None
        packet = wire.publish_packet(self._topic, payload, packet_id, properties=properties)
        self._pub.send(bytes((packet[0] | flags,)) + packet[1:])


class _Client:
    """A client with a session that is kept; it connects again as often as it has to."""

    def __init__(
        self,
        pairs: Pairs,
        name: str,
        version: int,
        opened: Callable[..., None],
        received: Callable[[bytes], None],
    ) -> None:
        self.sock: socket.socket | None = None
        self.n_connects = 0
        self._pairs = pairs
        self._connect = wire.connect_packet(name, version=version, is_clean=False)
        self._opened = opened
        self._received = received
        self._left = b""

    def connect(self) -> None:
        """Connect, now or later."""
        if self.sock is not None or self._pairs.has_ended:
            return
        try:
            sock = socket.create_connection(("127.0.0.1", self._pairs.port), TIMEOUT_SECONDS)
        except OSError:
            self._pairs.later(RETRY_SECONDS, self.connect)
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._left = sock, b""
        self._pairs.selector.register(sock, selectors.EVENT_READ, self.read)
        self.send(self._connect)

    def send(self, packet: bytes, on: socket.socket | None = None) -> None:
        """Send a packet, if the connection is there, and is that one."""
        if self.sock is None or on not in (None, self.sock):
            return
        try:
            self.sock.sendall(packet)
        except OSError:
            self.reconnect()

    def reconnect(self, seconds: float = RETRY_SECONDS) -> None:
        """End the connection, and connect again some time later."""
        sock, self.sock = self.sock, None
        if sock is not None:
            self._pairs.forget(sock)
            self._pairs.later(seconds, self.connect)

    def take_over(self) -> None:
        """Connect anew beside the connection that is there."""
        sock, self.sock = self.sock, None
        if sock is not None:
            self._pairs.forget(sock, TIMEOUT_SECONDS)
            self.connect()

    def sleep(self, seconds: float) -> None:
        """Read nothing for some time."""
        sock = self.sock
        if sock is not None and sock in self._pairs.selector.get_map():
            self._pairs.selector.unregister(sock)
            self._pairs.later(seconds, lambda: self._wake(sock))

    def _wake(self, sock: socket.socket) -> None:
        if sock is self.sock and sock not in self._pairs.selector.get_map():
            self._pairs.selector.register(sock, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Read what has come."""
        sock = self.sock
        if sock is None:
            return
        try:
            data = sock.recv(65_536)
        except OSError:
            data = b""
        if not data:
            self.reconnect()
            return
        packets, self._left = wire.whole_packets(self._left + data)
        for packet in packets:
            if sock is not self.sock:
                return
            if packet[0] == wire.CONNACK:
                self.n_connects += 1
                self._opened(is_present=bool(packet[2] & 1))
            elif packet[0] & 0xF0 in (wire.PUBLISH, wire.PUBACK, wire.SUBACK):
                self._received(packet)


class Pairs:
    """Pairs that publish and receive from the start of the block on.

    Attributes:
        port: the port of the broker on this machine.
        rng: of the moods of the slow ones.
        selector: who is read from.
        is_ending: nobody publishes anything new, and nobody is slow any more.
        has_ended: nobody connects any more.
        pairs: all of them.
    """

    def __init__(self, port: int, n_pairs: int, n_slow: int, rng: random.Random) -> None:
        """Make them.

        Args:
            port: the port of the broker on this machine.
            n_pairs: how many.
            n_slow: how many of them have a slow subscriber.
            rng: of the moods of the slow ones.
        """
        self.port = port
        self.rng = rng
        self.selector = selectors.DefaultSelector()
        self.is_ending = self.has_ended = False
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._n_timers = 0
        self._failure: BaseException | None = None
        self.pairs = [Pair(self, number, is_slow=number < n_slow) for number in range(n_pairs)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.has_ended = True
        self._thread.join()
        for key in [*self.selector.get_map().values()]:
            self.forget(key.fileobj)  # type: ignore[arg-type]
        self.selector.close()

    def wait(self, condition: Callable[[Pair], bool], seconds: float) -> bool:
        """Wait until something is true of each pair; say whether it is.

        Raises:
            WireError: a packet came that must not.
        """
        give_up_at = time.monotonic() + seconds
        while not (is_met := all(map(condition, self.pairs))) and time.monotonic() < give_up_at:
            if self._failure is not None:
                raise self._failure
            time.sleep(RETRY_SECONDS)
        return is_met

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something later, in the thread of the pairs."""
        self._n_timers += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._n_timers, call))

    def forget(self, sock: socket.socket, seconds: float = 0.0) -> None:
        """Read no more from a socket, and close it some time later."""
        if sock in self.selector.get_map():
            self.selector.unregister(sock)
        if seconds:
            self.later(seconds, sock.close)
        else:
            sock.close()

    def _run(self) -> None:
        try:
            while not self.has_ended:
                while self._timers and self._timers[0][0] <= time.monotonic():
                    heapq.heappop(self._timers)[2]()
                for key, _ in self.selector.select(RETRY_SECONDS / 10):
                    key.data()
        except BaseException as error:  # noqa: BLE001 (raised by `wait`)
            self._failure = error
