"""Consumes what `queue_publisher` published, and tells what came: a process of its own.

Over HTTP with `QueueClient`, over AMQP with pika, or over MQTT as a subscriber of `$queue/NAME`.
Each acknowledges a batch when it has it: over HTTP with the request for the next one, over AMQP
with one basic.ack for all of them (`multiple`), over MQTT with a PUBACK for each, sent at once.
Each batch is one line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmarks.loads import wire
from benchmarks.loads.queue_publisher import HEAD
from penstock.plugins.queue.client import QueueClient

BATCH_MESSAGES: Final = 100
BATCHES: Final = 2
"""The number of batches under way, so that one is on its way while another is worked on: threads
over HTTP, and the prefetch over AMQP. Over MQTT the broker has a window of its own."""
BUFFER_BYTES: Final = 1 << 18
WAIT_SECONDS: Final = 20.0


def tell(received: Iterable[tuple[bytes, float]]) -> None:
    """Write a line about a batch, once it is acknowledged.

    The line holds the number of messages, the sum of their numbers, the time of the acknowledgement
    and the lateness of each.
    """
    heads = [(HEAD.unpack_from(payload), at) for payload, at in received]
    line = {
        "messages": len(heads),
        "sum": sum(number for (number, _), _ in heads),
        "at": time.monotonic(),
        "late": [round(at - due, 6) for (_, due), at in heads],
    }
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def drain_http(url: str, queue: str) -> None:
    """Receive and acknowledge until the process ends."""
    client = QueueClient(url)
    lock = threading.Lock()

    def work() -> None:
        handles: list[str] = []
        while True:
            received = client.receive(
                queue, max_messages=BATCH_MESSAGES, wait_seconds=WAIT_SECONDS, acknowledge=handles
            )
            handles = [each.receipt_handle for each in received]
            if received:
                at = time.monotonic()
                with lock:
                    tell((each.payload, at) for each in received)

    with ThreadPoolExecutor(BATCHES) as threads:
        for working in [threads.submit(work) for _ in range(BATCHES)]:
            working.result()


def drain_amqp(port: int, queue: str) -> None:
    """Consume and acknowledge until the process ends."""
    import pika  # noqa: PLC0415 - the extra `peers` has it; consuming over HTTP needs nothing

    parameters = pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=30)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=BATCHES * BATCH_MESSAGES)
    batch: list[tuple[bytes, float]] = []
    tag = 0

    def take(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        nonlocal tag
        tag = method.delivery_tag
        batch.append((body, time.monotonic()))
        if len(batch) == BATCH_MESSAGES:
            acknowledge()

    def acknowledge() -> None:
        channel.basic_ack(tag, multiple=True)
        tell(batch)
        batch.clear()

    channel.basic_consume(queue, take)
    while True:
        connection.process_data_events(time_limit=None)
        if batch:
            acknowledge()


def drain_mqtt(port: int, queue: str) -> None:
    """Subscribe, and acknowledge what comes, until the process ends."""
    with wire.open_client(port, f"bench-queue-consumer-{os.getpid()}") as sock:
        wire.subscribe(sock, f"$queue/{queue}", 1)
        sock.settimeout(None)
        data = b""
        while chunk := sock.recv(BUFFER_BYTES):
            at = time.monotonic()
            data += chunk
            packets, data = wire.whole_packets(data)
            parts = [wire.read_publish(packet) for packet in packets]
            ids = [
                packet[part.packet_id_at : part.packet_id_at + 2]
                for packet, part in zip(packets, parts, strict=True)
            ]
            sock.sendall(b"".join(b"\x40\x02" + packet_id for packet_id in ids))
            if packets:
                tell(
                    (packet[part.payload_at :], at)
                    for packet, part in zip(packets, parts, strict=True)
                )
    raise wire.WireError("the server closed the connection of a consumer")


DRAINS: Final[dict[str, Callable[[str, str], None]]] = {
    "http": drain_http,
    "amqp": lambda port, queue: drain_amqp(int(port), queue),
    "mqtt": lambda port, queue: drain_mqtt(int(port), queue),
}
"""The function that drains a queue, by protocol; each takes an address and the name of a queue."""


def main(argv: list[str]) -> None:
    """Say that it is ready, and begin at the first line."""
    protocol, address, queue = argv
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    DRAINS[protocol](address, queue)


if __name__ == "__main__":
    main(sys.argv[1:])
