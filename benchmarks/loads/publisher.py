"""The publishing side of a load, a process of its own.

It sends a mebibyte of ready-made packets at a time, so that a million messages cost it a
hundred system calls. Reads a line ``{"messages": N}`` from standard input for each run, of
each publisher, and answers with the seconds, on the system-wide monotonic clock, of its first
and last byte.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

from benchmarks.loads.access import Access
from benchmarks.loads.stream import Shape, Traffic


class Sending:
    """A block that is sent over and over on a connection.

    Attributes:
        remaining: the bytes of this run that are not yet sent.
    """

    def __init__(self, sock: socket.socket, block: bytes) -> None:
        self.sock = sock
        self.remaining = 0
        self._block = memoryview(block)
        self._position = 0

    def begin(self, size_bytes: int) -> None:
        """Begin a run at the start of the block."""
        self.remaining = size_bytes
        self._position = 0

    def send(self) -> None:
        """Hand the kernel what it takes of the rest of the block."""
        stop = min(self._position + self.remaining, len(self._block))
        sent = self.sock.send(self._block[self._position : stop])
        self.remaining -= sent
        self._position = (self._position + sent) % len(self._block)


def send_run(sendings: list[Sending]) -> tuple[float, float]:
    """Send what remains on all connections.

    Returns:
        Monotonic seconds before the first and after the last byte was handed to the kernel.
    """
    started = time.monotonic()
    if len(sendings) == 1:
        while sendings[0].remaining:
            sendings[0].send()
        return started, time.monotonic()
    with selectors.DefaultSelector() as selector:
        for sending in sendings:
            selector.register(sending.sock, selectors.EVENT_WRITE, sending)
        while selector.get_map():
            for key, _ in selector.select():
                key.data.send()
                if not key.data.remaining:
                    selector.unregister(key.data.sock)
    return started, time.monotonic()


def main() -> None:
    """Connect, then send a run of messages for each line read."""
    access, shape = (json.loads(each) for each in sys.argv[1:3])
    access, traffic = Access(**access), Traffic(Shape(**shape))
    sendings = []
    for i, stream in enumerate(traffic.publishers):
        sock, _ = access.open_publisher(i)
        # A single one may wait for the kernel; several take turns.
        sock.settimeout(None if len(traffic.publishers) == 1 else 0)
        sendings.append(Sending(sock, stream.block))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        messages = json.loads(line)["messages"]
        for sending, stream in zip(sendings, traffic.publishers, strict=True):
            sending.begin(stream.size_of(messages))
        cpu_before = time.process_time()
        started, sent = send_run(sendings)
        cpu = time.process_time() - cpu_before
        print(json.dumps({"started": started, "sent": sent, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main()
