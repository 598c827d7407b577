"""A load of QoS 1 or 2 with full handshakes on both sides, in the process that measures.

Each publisher keeps a window of messages unacknowledged; its packets are prepared in a block whose
Packet Identifiers repeat, so that a message is a part of one `send`. Each subscriber checks every
packet, its header, properties and payload, and answers a chunk of them with one `send`. Order, loss
and duplicates show, because no two neighbours have the same payload. At QoS 2 each side goes
through its four packets.

One epoll loop serves all connections. Where no messages can be read together, a message costs the
loop one wake-up and two system calls, and the broker at least as much.
"""

from __future__ import annotations

import itertools
import random
import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from benchmarks.loads import wire
from benchmarks.loads.access import Access, publisher_id
from benchmarks.rows.rates import Run

BUFFER_BYTES: Final = 1 << 17
SEND_BUFFER_BYTES: Final = 1 << 20
"""The size of send buffers, which have room for whole windows: one thread both sends and reads,
so a send must never block."""

IDLE_SECONDS: Final = 30.0
"""After a silence of this length, missing messages count as lost."""

STALL_SECONDS: Final = 0.5
"""After a silence of this length a side looks, once, at less than it wanted to be woken for. A
machine that is busy with other work is silent for as long, and a load that woke up for every
packet from then on would be its own bottleneck."""

ANSWER_BYTES: Final = 4
"""The size of a PUBACK, PUBREC, PUBREL or PUBCOMP that reports success, in both versions."""

LEAST_BLOCK_MESSAGES: Final = 500
RANDOM_TOPICS: Final = 5
"""The number of topics of a publisher where they are at random."""


@dataclass(frozen=True, slots=True)
class WindowedPlan:
    """The plan of a load: its messages and their windows.

    Attributes:
        pairs: the number of publishers, each with a topic and a subscriber of its own.
        window: the number of unacknowledged messages of a publisher.
        payload_bytes: the greatest payload length of a message.
        qos: the QoS of publishers and subscriptions, 1 or 2.
        version: the protocol level, 4 or 5.
        properties: the encoded properties of each message, for version 5.
        wake_up_packets: the number of acknowledgements that wake a publisher; a subscriber wakes
            for that many messages (SO_RCVLOWAT). For windows of which that is a small part.
        least_bytes: the least payload length; lengths between the two are equally likely. None for
            one length.
        topics: the number of topics over which the messages of a publisher are spread at random.
        is_retained: whether the broker is to keep the last message of each topic.
        members: the number of subscribers that share the subscription of a single pair; 0 for one
            that does not.
    """

    pairs: int
    window: int
    payload_bytes: int
    qos: int
    version: int = 4
    properties: bytes = b""
    wake_up_packets: int = 1
    least_bytes: int | None = None
    topics: int = 1
    is_retained: bool = False
    members: int = 0

    def at_random(self) -> WindowedPlan:
        """Return the plan with sizes and topics at random, of two users in turn."""
        most_bytes = 2 * self.payload_bytes - 1
        return replace(
            self,
            pairs=max(2, self.pairs),
            payload_bytes=most_bytes,
            least_bytes=1,
            topics=RANDOM_TOPICS,
        )

    def payloads(self) -> list[bytes]:
        """Return the payloads of a block, at random."""
        generator = random.Random(0)  # noqa: S311 - payloads, not secrets
        least_bytes = self.payload_bytes if self.least_bytes is None else self.least_bytes
        # Packet Identifiers come round only when the last use is acknowledged.
        count = max(2 * self.window, LEAST_BLOCK_MESSAGES if self.pairs < 100 else 10)
        return [
            generator.randbytes(generator.randint(least_bytes, self.payload_bytes))
            for _ in range(count)
        ]

    def filters(self, pair: int) -> list[str]:
        """Return the topic filters that match the topics of a pair, each one of them."""
        if self.members:
            return [f"$share/bench/{self.topic(0, b'')}"]
        if self.topics == 1:
            return [self.topic(pair, b"")]
        return [f"bench/windowed/{pair}/+", f"bench/{publisher_id(pair)}/+"]

    def topic(self, pair: int, payload: bytes) -> str:
        """Return the topic of a message of a pair, which its payload decides."""
        if self.topics == 1:
            return f"bench/windowed/{pair}"
        number = payload[0] % self.topics
        return f"bench/{publisher_id(pair) if number % 2 else f'windowed/{pair}'}/{number}"

    def packet(self, pair: int, payload: bytes, packet_id: int) -> bytes:
        """Return a PUBLISH of a pair."""
        properties = self.properties if self.version == 5 else None
        topic = self.topic(pair, payload)
        return wire.publish_packet(
            topic,
            payload,
            packet_id,
            qos=self.qos,
            properties=properties,
            is_retained=self.is_retained,
        )


class Side(Protocol):
    """A connection of either side, while messages are under way."""

    sock: socket.socket
    remaining: int

    def read(self) -> None:
        """Take what has come and answer it; `remaining` goes down."""
        ...

    def near_the_end(self) -> None:
        """Be woken by a single byte from here on."""
        ...

    def look(self, *, at_anything: bool) -> None:
        """Be woken by a single byte, or again by as many as before."""
        ...


def _set_wake_up(sock: socket.socket, size_bytes: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)


class _Connection:
    """The base of both sides: a connection, and the bytes of an incomplete packet.

    Attributes:
        receive_maximum: the number of unacknowledged messages that the broker accepts.
        remaining: the number of messages of this run whose handshake is not complete.
        rest: the bytes of an incomplete packet.
    """

    __slots__ = ("receive_maximum", "remaining", "rest", "session_present", "sock", "wake_up_bytes")

    def __init__(self, sock: socket.socket, accepted: wire.Accepted) -> None:
        self.sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.session_present = accepted.session_present
        self.receive_maximum = accepted.receive_maximum
        self.remaining = 0
        self.rest = b""
        self.wake_up_bytes = 1

    def begin(self, messages: int, wake_up_bytes: int) -> None:
        """Begin a run."""
        self.remaining = messages
        self.wake_up_bytes = wake_up_bytes
        _set_wake_up(self.sock, wake_up_bytes)

    def near_the_end(self) -> None:
        """Be woken by a single byte from here on."""
        if self.wake_up_bytes > 1:
            self.wake_up_bytes = 1
            _set_wake_up(self.sock, 1)

    def look(self, *, at_anything: bool) -> None:
        """Be woken by a single byte, or again by as many as before."""
        if self.wake_up_bytes > 1:
            _set_wake_up(self.sock, 1 if at_anything else self.wake_up_bytes)

    def receive(self) -> bytes:
        """Return what has come, behind the rest of the last chunk.

        Raises:
            wire.WireError: the broker closed the connection.
        """
        try:
            data = self.sock.recv(BUFFER_BYTES)
            while isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
                data += self.sock.recv(BUFFER_BYTES)
        except ssl.SSLWantReadError:  # part of a record, or a session ticket
            return b""
        if not data:
            raise wire.WireError("the broker closed a connection of the load")
        if self.rest:
            data = self.rest + data
            self.rest = b""
        return data


class Publisher(_Connection):
    """A publisher of a block of messages, repeated, with at most a window unacknowledged."""

    __slots__ = (
        "_completions",
        "_packets",
        "_period",
        "_receipts",
        "_releases",
        "_starts",
        "_unsent",
        "acknowledged",
        "received",
        "sent",
        "window",
    )

    def __init__(
        self, access: Access, plan: WindowedPlan, pair: int, payloads: list[bytes]
    ) -> None:
        super().__init__(*access.open_publisher(pair, version=plan.version))
        self.window = min(plan.window, self.receive_maximum)
        packets = [plan.packet(pair, payload, i + 1) for i, payload in enumerate(payloads)]
        self._period = len(packets)
        self._packets = b"".join(packets) * 2
        self._starts = list(itertools.accumulate(map(len, packets * 2), initial=0))
        ids = range(1, self._period + 1)
        last, first = (wire.PUBACK, 0) if plan.qos == 1 else (wire.PUBCOMP, wire.PUBREC)
        self._completions = b"".join(wire.acknowledgement(last, i) for i in ids) * 2
        self._receipts = b"".join(wire.acknowledgement(first, i) for i in ids) if first else b""
        self._releases = b"".join(wire.acknowledgement(wire.PUBREL, i) for i in ids) * 2
        self.sent = self.received = self.acknowledged = 0
        self._unsent = 0

    def start(self, messages: int) -> None:
        """Begin a run by filling the window."""
        self._unsent = messages
        self.sock.sendall(self._next())

    def _next(self) -> bytes:
        """Return the packets for which the window has room."""
        count = min(self.window - (self.sent - self.acknowledged), self._unsent)
        first = self.sent % self._period
        self.sent += count
        self._unsent -= count
        return self._packets[self._starts[first] : self._starts[first + count]]

    def read(self) -> None:
        """Take acknowledgements and publish as many further messages.

        Raises:
            wire.WireError: they are others than were due.
        """
        data = self.receive()
        size = len(data) & -ANSWER_BYTES
        if size != len(data):
            self.rest = data[size:]
            data = data[:size]
        start = self.acknowledged % self._period * ANSWER_BYTES
        if self._completions.startswith(data, start):
            completed = size // ANSWER_BYTES
            answer = b""
        else:
            completed, answer = self._read_mixed(data)
        self.acknowledged += completed
        self.remaining -= completed
        if self._unsent:
            answer += self._next()
        if not self._unsent:
            self.near_the_end()
        if answer:
            self.sock.sendall(answer)

    def _read_mixed(self, data: bytes) -> tuple[int, bytes]:
        """Return how many handshakes are complete, and the PUBRELs due."""
        receipts, completions = self._receipts, self._completions
        period = self._period
        released_from = self.received % period * ANSWER_BYTES
        completed = self.acknowledged
        for at in range(0, len(data), ANSWER_BYTES):
            packet = data[at : at + ANSWER_BYTES]
            if receipts.startswith(packet, self.received % period * ANSWER_BYTES):
                self.received += 1
            elif completions.startswith(packet, completed % period * ANSWER_BYTES):
                completed += 1
            else:
                raise wire.WireError(f"read {packet.hex(' ')}, which no message was due")
        due = (self.received % period * ANSWER_BYTES - released_from) % (period * ANSWER_BYTES)
        return completed - self.acknowledged, self._releases[released_from : released_from + due]


class Subscriber(_Connection):
    """A subscriber, which reads, compares and acknowledges.

    Attributes:
        least_bytes: the length of the shortest packet by which a message goes on.
    """

    __slots__ = ("_heads", "_pair", "_position", "_qos", "_tails", "least_bytes", "received")

    def __init__(
        self, access: Access, plan: WindowedPlan, pair: int, *, session: str | None = None
    ) -> None:
        """Connect, and subscribe unless a session is resumed that already has."""
        super().__init__(*access.open_subscriber(pair, version=plan.version, session=session))
        if session is None or not self.session_present:
            wire.subscribe(self.sock, plan.filters(pair), plan.qos, version=plan.version)
        self._qos = plan.qos
        self._pair = pair
        self._heads: list[bytes] = []
        self._tails: list[bytes] = []
        self.least_bytes = ANSWER_BYTES
        self._position = self.received = 0

    def learn(self, packet: bytes, sent: bytes, plan: WindowedPlan, payloads: list[bytes]) -> int:
        """Learn the form of the further packets from the first, which must have the sent content.

        The broker may only change the order of properties.

        Returns:
            Its Packet Identifier.

        Raises:
            wire.WireError: it differs from what was published.
        """
        read = wire.read_publish(packet, version=plan.version)
        published = wire.read_publish(sent, version=plan.version)
        same = (read.first_byte, read.topic, read.properties) == (
            published.first_byte & ~wire.RETAIN,  # it was subscribed before
            published.topic,
            published.properties,
        )
        if not same or packet[read.payload_at :] != payloads[0]:
            raise wire.WireError(f"read {packet[:64].hex(' ')}; published {sent[:64].hex(' ')}")
        between = packet[read.packet_id_at + 2 : read.payload_at]
        self._tails = [between + payload for payload in payloads]
        plan = replace(plan, is_retained=False)
        due = [plan.packet(self._pair, payload, 1) for payload in payloads]
        self._heads = [each[: -2 - len(tail)] for each, tail in zip(due, self._tails, strict=True)]
        if plan.qos == 1:  # at QoS 2 a PUBREL is all that may come for a while
            self.least_bytes = min(map(len, due))
        return int.from_bytes(packet[read.packet_id_at : read.packet_id_at + 2], "big")

    def expect_from(self, position: int) -> None:
        """Say which message of the block is the next."""
        self._position = position

    def read(self) -> None:
        """Compare what has come and answer it.

        Raises:
            wire.WireError: something else than the published messages, in order, came.
        """
        data = self.receive()
        heads, tails = self._heads, self._tails
        position, period = self._position, len(tails)
        answer_head = b"\x40\x02" if self._qos == 1 else b"\x50\x02"
        answers = []
        at, end = 0, len(data)
        completed = received = 0
        while at < end:
            head, tail = heads[position], tails[position]
            id_at = at + len(head)
            stop = id_at + 2 + len(tail)
            if stop <= end and data.startswith(head, at):
                if not data.startswith(tail, id_at + 2):
                    raise wire.WireError(
                        f"message {self.received + received} is not the one published then"
                    )
                position += 1
                if position == period:
                    position = 0
                received += 1
                answers.append(answer_head + data[id_at : id_at + 2])
            elif data[at] == wire.PUBREL and self._qos == 2:
                stop = at + ANSWER_BYTES
                if stop > end:
                    break
                answers.append(b"\x70\x02" + data[at + 2 : stop])
                completed += 1
            elif stop > end:
                break
            else:
                raise wire.WireError(f"a subscriber read {data[at : at + 16].hex(' ')}")
            at = stop
        if at < end:
            self.rest = data[at:]
        self._position = position
        self.received += received
        self.remaining -= received if self._qos == 1 else completed
        if answers:
            self.sock.sendall(b"".join(answers))
        if self.wake_up_bytes > 1 and self.remaining * self.least_bytes <= self.wake_up_bytes:
            self.near_the_end()


class WindowedLoad:
    """Pairs of a publisher and a subscriber, connected.

    A context manager; the connections end with it.

    Attributes:
        window: the number of unacknowledged messages of a publisher: the plan's, or the broker's
            limit where that is less.
    """

    def __init__(self, access: Access, plan: WindowedPlan) -> None:
        self._plan = plan
        self._publishers: list[Publisher] = []
        self._subscribers: list[Subscriber] = []
        self._stack = ExitStack()
        try:
            self._connect(access)
        except BaseException:
            self._stack.close()
            raise
        self.window = self._publishers[0].window

    def _connect(self, access: Access) -> None:
        plan = self._plan
        payloads = plan.payloads()
        for pair in range(plan.pairs):
            subscriber = Subscriber(access, plan, pair)
            self._add(subscriber)
            publisher = Publisher(access, plan, pair, payloads)
            self._add(publisher)
            self._try_out(publisher, subscriber, pair, payloads)

    def _add(self, side: Publisher | Subscriber) -> None:
        """Take a connection in."""
        self._stack.enter_context(side.sock)
        if isinstance(side, Publisher):
            self._publishers.append(side)
        else:
            self._subscribers.append(side)

    def _try_out(
        self, publisher: Publisher, subscriber: Subscriber, pair: int, payloads: list[bytes]
    ) -> None:
        """Carry the first message by hand, to see in which form the broker sends it."""
        plan = self._plan
        sent = plan.packet(pair, payloads[0], 1)
        publisher.sock.sendall(sent)
        # Its publisher's side first: a broker may deliver only what was released.
        if plan.qos == 1:
            wire.expect(publisher.sock, wire.acknowledgement(wire.PUBACK, 1))
        else:
            wire.expect(publisher.sock, wire.acknowledgement(wire.PUBREC, 1))
            publisher.sock.sendall(wire.acknowledgement(wire.PUBREL, 1))
            wire.expect(publisher.sock, wire.acknowledgement(wire.PUBCOMP, 1))
        packet = wire.receive_packet(subscriber.sock)
        packet_id = subscriber.learn(packet, sent, plan, payloads)
        if plan.qos == 1:
            subscriber.sock.sendall(wire.acknowledgement(wire.PUBACK, packet_id))
        else:
            subscriber.sock.sendall(wire.acknowledgement(wire.PUBREC, packet_id))
            wire.expect(subscriber.sock, wire.acknowledgement(wire.PUBREL, packet_id))
            subscriber.sock.sendall(wire.acknowledgement(wire.PUBCOMP, packet_id))
        publisher.sent = publisher.received = publisher.acknowledged = 1
        subscriber.expect_from(1 % len(payloads))

    def run(self, messages: int) -> Run:
        """Publish so many messages, the same number for each pair, and complete all handshakes.

        Raises:
            wire.WireError: a broker answered something else than it should.
        """
        each = max(1, messages // self._plan.pairs)
        sides: list[Side] = [*self._publishers, *self._subscribers]
        for side in sides:
            # With a timeout, each call would poll the socket first. With TLS, a readable socket
            # may hold no data.
            side.sock.settimeout(0 if isinstance(side.sock, ssl.SSLSocket) else None)
        received_before = sum(subscriber.received for subscriber in self._subscribers)
        packets = min(self._plan.wake_up_packets, each)
        for publisher in self._publishers:
            publisher.begin(each, packets * ANSWER_BYTES)
        for number, subscriber in enumerate(self._subscribers):
            due = each if number < self._plan.pairs else 0  # the first of a group counts for all
            subscriber.begin(due, packets * subscriber.least_bytes)
        cpu_before = time.process_time()
        started = time.monotonic()
        for publisher in self._publishers:
            publisher.start(each)
        finished = serve(sides)
        cpu = time.process_time() - cpu_before
        delivered = sum(subscriber.received for subscriber in self._subscribers) - received_before
        published = each * self._plan.pairs
        incomplete = max(_remaining(self._publishers), _remaining(self._subscribers))
        return Run(published, delivered, incomplete, finished - started, cpu)

    def close(self) -> None:
        """End the connections."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remaining(sides: Sequence[Side]) -> int:
    return sum(side.remaining for side in sides)


def serve(sides: Sequence[Side]) -> float:
    """Serve all sides until each handshake is complete, or nothing comes any more.

    Returns:
        Monotonic seconds at which the last was.
    """
    by_descriptor = {side.sock.fileno(): side for side in sides}
    finished = time.monotonic()
    with select.epoll() as poller:
        for descriptor in by_descriptor:
            poller.register(descriptor, select.EPOLLIN)
        left = _remaining(sides)
        is_last_look = False
        while left:
            ready = poller.poll(IDLE_SECONDS if is_last_look else STALL_SECONDS)
            if not ready:
                if is_last_look:
                    break
                for side in sides:
                    side.look(at_anything=True)
            for descriptor, _ in ready:
                side = by_descriptor[descriptor]
                left -= side.remaining
                side.read()
                left += side.remaining
            if ready and is_last_look:
                for side in sides:
                    side.look(at_anything=False)
            is_last_look = not ready
            finished = time.monotonic()
    return finished
