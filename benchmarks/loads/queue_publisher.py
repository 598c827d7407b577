"""A publisher to a queue at QoS 1: as fast as it is acknowledged, or on a schedule.

It is a process of its own. Each payload begins with the message's number and the monotonic time at
which it was due; consumers on the same machine compute its lateness. On a schedule, a message is
due at its scheduled time whether it could be sent or not, so that a server that stands still is
charged for all messages that wait meanwhile.

PUBACKs may come in any order: a server may confirm messages as its disk has them.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.loads import wire

HEAD: Final = struct.Struct("<Qd")
"""The head of each payload: the number of the message, and the monotonic seconds at which it was
due."""
TOPICS: Final = "bench"
"""The first level of all topics; the second is the number of the connection."""
BUFFER_BYTES: Final = 1 << 17
SEND_BUFFER_BYTES: Final = 1 << 20
IDLE_SECONDS: Final = 30.0
"""After a silence of this length no further acknowledgement is expected."""
PACKET_IDS: Final = 65_535


@dataclass(frozen=True, slots=True)
class Publishing:
    """The settings of publishing.

    Attributes:
        connections: the number of publishers, each with a topic of its own.
        window: the number of unacknowledged messages of a publisher.
        payload_bytes: the payload length of each message; at least that of `HEAD`.
    """

    connections: int
    window: int
    payload_bytes: int


class Connection:
    """One publisher.

    Attributes:
        unacknowledged: the Packet Identifiers of its unacknowledged messages.
    """

    def __init__(self, port: int, number: int, publishing: Publishing) -> None:
        self.sock = wire.open_client(port, f"bench-queue-publisher-{number}")
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sock.settimeout(IDLE_SECONDS)
        self.unacknowledged: set[int] = set()
        packet = wire.publish_packet(f"{TOPICS}/{number}", bytes(publishing.payload_bytes), 1)
        self._head = packet[: -publishing.payload_bytes - 2]
        self._rest = b"x" * (publishing.payload_bytes - HEAD.size)
        self._packet_id = 0
        self._unread = b""

    def publish(self, numbers: range, due: float) -> None:
        """Send some messages."""
        parts = []
        for number in numbers:
            self._packet_id = self._packet_id % PACKET_IDS + 1
            self.unacknowledged.add(self._packet_id)
            packet_id = self._packet_id.to_bytes(2, "big")
            parts += [self._head, packet_id, HEAD.pack(number, due), self._rest]
        self.sock.sendall(b"".join(parts))

    def read(self) -> None:
        """Take acknowledgements.

        Raises:
            WireError: something else came, or the connection was closed.
        """
        data = self.sock.recv(BUFFER_BYTES)
        if not data:
            raise wire.WireError("the server closed the connection of a publisher")
        data = self._unread + data
        end = len(data) & -4
        self._unread = data[end:]
        for at in range(0, end, 4):
            packet_id = int.from_bytes(data[at + 2 : at + 4], "big")
            if data[at : at + 2] != b"\x40\x02" or packet_id not in self.unacknowledged:
                raise wire.WireError(f"read {data[at : at + 4].hex(' ')}; expected a PUBACK")
            self.unacknowledged.remove(packet_id)


class Publisher:
    """All connections, and the messages that they send."""

    def __init__(self, port: int, publishing: Publishing) -> None:
        self._connections = [
            Connection(port, number, publishing) for number in range(publishing.connections)
        ]
        self._window = publishing.window
        self._by_descriptor = {each.sock.fileno(): each for each in self._connections}
        self._poller = select.epoll()
        for descriptor in self._by_descriptor:
            self._poller.register(descriptor, select.EPOLLIN)

    def _take(self, seconds: float) -> bool:
        """Read what has come within some seconds; return whether anything has."""
        ready = self._poller.poll(seconds)
        for descriptor, _ in ready:
            self._by_descriptor[descriptor].read()
        return bool(ready)

    def _take_or_fail(self) -> None:
        if not self._take(IDLE_SECONDS):
            missing = sum(len(each.unacknowledged) for each in self._connections)
            raise wire.WireError(f"{missing} messages were not acknowledged")

    def flood(self, messages: int) -> float:
        """Publish as fast as windows allow; return the seconds until the last PUBACK."""
        begin = time.monotonic()
        sent = 0
        while sent < messages:
            for connection in self._connections:
                room = min(self._window - len(connection.unacknowledged), messages - sent)
                if room:
                    connection.publish(range(sent, sent + room), time.monotonic())
                    sent += room
            self._take_or_fail()
        return self._finish() - begin

    def pace(self, messages: int, rate: float, first: int = 0) -> float:
        """Publish messages at a rate; return the seconds until the last PUBACK."""
        begin = time.monotonic()
        for index in range(messages):
            due = begin + index / rate
            while (early := due - time.monotonic()) > 0:
                self._take(early)
            number = first + index
            self._connections[number % len(self._connections)].publish(
                range(number, number + 1), due
            )
        return self._finish() - begin

    def _finish(self) -> float:
        """Wait for all PUBACKs; return when the last was there."""
        while any(each.unacknowledged for each in self._connections):
            self._take_or_fail()
        return time.monotonic()


def main(argv: list[str]) -> None:
    """Connect, then publish as each line says, and tell the seconds that it took."""
    publisher = Publisher(int(argv[0]), Publishing(**json.loads(argv[1])))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        messages, rate, first = told["messages"], told.get("rate"), told.get("first", 0)
        cpu_before = time.process_time()
        seconds = (
            publisher.flood(messages) if rate is None else publisher.pace(messages, rate, first)
        )
        cpu = time.process_time() - cpu_before
        print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
