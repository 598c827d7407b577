"""The publishing side of a load, a process of its own.

It sends megabytes of ready-made packets at a time, so that a million messages cost it a
hundred system calls. Reads a line ``{"messages": N}`` from standard input for each run and
answers with the seconds, on the system-wide monotonic clock, of its first and last byte.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Final

from benchmarks import wire

BLOB_BYTES: Final = 1 << 20
"""What one call sends: large enough that calls do not count, small enough for the cache."""


def send_messages(sock: socket.socket, packet: bytes, messages: int) -> tuple[float, float]:
    """Send `packet` that many times.

    Returns:
        Monotonic seconds before the first and after the last byte was handed to the kernel.
    """
    per_blob = max(1, BLOB_BYTES // len(packet))
    blob = packet * min(per_blob, messages)
    whole, rest = divmod(messages, per_blob)
    started = time.monotonic()
    for _ in range(whole):
        sock.sendall(blob)
    sock.sendall(blob[: rest * len(packet)])
    return started, time.monotonic()


def main() -> None:
    """Connect, then send a run of messages for each line read."""
    port, topic, payload_bytes = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    packet = wire.publish_packet(topic, b"x" * payload_bytes)
    with wire.open_client(port, "bench-publisher") as sock:
        sock.settimeout(None)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            cpu_before = time.process_time()
            started, sent = send_messages(sock, packet, json.loads(line)["messages"])
            cpu = time.process_time() - cpu_before
            print(json.dumps({"started": started, "sent": sent, "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main()
