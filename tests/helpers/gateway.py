"""The real queue gateway as a process of a test."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from penstock.plugins.queue.client import QueueClient
from tests.helpers.process import Program

GROUP = "spark"
"""The only group of the queue, of kind `offsets`."""

_LISTENS = r"queue API listens on (https?://\S+)"


@contextlib.contextmanager
def running_gateway(
    folder: Path, queue: str = "telemetry", *, physical_queues: int = 2, bind: str = "127.0.0.1:0"
) -> Iterator[QueueClient]:
    """Start ``penstock queue`` on the messages in `folder`; end it afterwards.

    Args:
        folder: the folder of the policy file and the SQLite file; a second gateway on the same
            folder finds the first one's messages.
        queue: the name of the only logical queue.
        physical_queues: the number of its physical queues.
        bind: HOST:PORT.

    Yields:
        A client of the gateway.
    """
    layout = {
        "physical_queues": physical_queues,
        "topics": ["telemetry/#"],
        "groups": {GROUP: {"kind": "offsets"}},
    }
    section = {"path": str(folder / "queue.db"), "http": bind, "queues": {queue: layout}}
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump({"plugins": {"queue": section}}))
    with gateway_of(policy) as client:
        yield client


@contextlib.contextmanager
def gateway_of(policy: Path) -> Iterator[QueueClient]:
    """Start ``penstock queue`` with a policy file, in its folder; end it afterwards.

    Yields:
        A client of the gateway.
    """
    command = [sys.executable, "-m", "penstock.plugins.queue", "-c", str(policy)]
    gateway = Program(command, cwd=policy.parent, is_forked=True)
    try:
        yield QueueClient(gateway.wait_for_match(_LISTENS)[1])
    finally:
        gateway.stop()


def ranges(client: QueueClient, queue: str = "telemetry") -> dict[int, tuple[int, int]]:
    """Return the earliest and the next offset of each physical queue."""
    earliest, latest = client.position(queue, "earliest"), client.position(queue, "latest")
    assert earliest.incarnation == latest.incarnation
    return {number: (first, latest.offsets[number]) for number, first in earliest.offsets.items()}


def held(client: QueueClient, queue: str = "telemetry") -> int:
    """Return how many messages a queue has not deleted."""
    return sum(following - first for first, following in ranges(client, queue).values())


def stored_payloads(url: str, queue: str) -> list[bytes]:
    """Return every payload in a queue, read over HTTP as a back end does."""
    payloads: list[bytes] = []
    with contextlib.closing(QueueClient(url)) as client:
        for number, (earliest, behind) in ranges(client, queue).items():
            batch = client.read_range(queue, number, earliest, behind)
            assert batch.offset == list(range(earliest, behind))
            payloads += batch.payload
    return payloads
