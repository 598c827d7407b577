"""The publishing side of a load, a process of its own.

It sends a mebibyte of ready-made packets at a time, so that a million messages cost it a
hundred system calls. Reads a line ``{"messages": N}`` from standard input for each run and
answers with the seconds, on the system-wide monotonic clock, of its first and last byte.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from benchmarks import wire
from benchmarks.stream import Shape, Stream


def send_bytes(sock: socket.socket, block: bytes, size_bytes: int) -> tuple[float, float]:
    """Send `block` over and over, that many bytes in all.

    Returns:
        Monotonic seconds before the first and after the last byte was handed to the kernel.
    """
    whole, rest = divmod(size_bytes, len(block))
    started = time.monotonic()
    for _ in range(whole):
        sock.sendall(block)
    sock.sendall(block[:rest])
    return started, time.monotonic()


def main() -> None:
    """Connect, then send a run of messages for each line read."""
    port, shape = int(sys.argv[1]), Shape(**json.loads(sys.argv[2]))
    stream = Stream(shape)
    with wire.open_client(port, "bench-publisher") as sock:
        sock.settimeout(None)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            size_bytes = stream.size_of(json.loads(line)["messages"])
            cpu_before = time.process_time()
            started, sent = send_bytes(sock, stream.block, size_bytes)
            cpu = time.process_time() - cpu_before
            print(json.dumps({"started": started, "sent": sent, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main()
