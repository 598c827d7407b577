"""Fault: for a moment the broker may open no further file."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from benchmarks.loads import wire
from tests.campaigns.faults.case import Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject

OPEN_FILES: Final = 256
N_CLIENTS: Final = 600
AFTERWARDS_SECONDS: Final = 15.0
SYS_SECONDS: Final = 2
LEAST_UPDATES: Final = 2

POLICY: Final = {"sys_interval": SYS_SECONDS}
LINES: Final = (f"sys_interval {SYS_SECONDS}",)


def inflict(broker: Subject, rng: random.Random, effort: Effort) -> Sequence[Finding]:
    """Take all files of a broker by connections, give them back, and see what still works."""
    broker.configure(POLICY, LINES, open_files=OPEN_FILES)
    broker.start()
    seconds = effort.seconds / 2
    with wire.open_client(broker.port, "before") as before:
        with ExitStack() as stack:
            for _ in range(N_CLIENTS):
                with suppress(OSError):
                    stack.enter_context(wire.open_connection(broker.port))
            cpu = broker.cpu_seconds()
            started = time.monotonic()
            n_answered = 0
            while (elapsed := time.monotonic() - started) < seconds:
                packet_id = rng.randrange(1, 65_536)
                before.sendall(wire.publish_packet("t", b"x", packet_id))
                wire.expect(before, wire.acknowledgement(wire.PUBACK, packet_id))
                n_answered += 1
                time.sleep(0.05)
            cpu_ratio = (broker.cpu_seconds() - cpu) / elapsed
        back_seconds = _seconds_until_served(broker.port)
        n_updates = _n_updates(broker.port)
    return [
        Finding("processor, of a core, meanwhile", cpu_ratio, most=0.5),
        Finding("PUBACKs to a client that was there before", n_answered, least=1),
        Finding("a newcomer is served again after", back_seconds, "s", most=AFTERWARDS_SECONDS),
        Finding("`$SYS/broker/uptime` afterwards, times", n_updates, least=LEAST_UPDATES),
    ]


def _seconds_until_served(port: int) -> float:
    """Return how long it takes until a client is let in; infinity where none is in time."""
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < AFTERWARDS_SECONDS:
        with suppress(OSError, wire.WireError), wire.open_client(port, "after"):
            return elapsed
        time.sleep(0.1)
    return float("inf")


def _n_updates(port: int) -> int:
    """Wait until the uptime is published as often as promised, the retained one included."""
    n_updates = 0
    with wire.open_client(port, "uptime") as sock:
        wire.subscribe(sock, "$SYS/broker/uptime", 0)
        deadline = time.monotonic() + AFTERWARDS_SECONDS
        while n_updates < LEAST_UPDATES and (left := deadline - time.monotonic()) > 0:
            sock.settimeout(left)
            with suppress(TimeoutError):
                wire.receive_packet(sock)
                n_updates += 1
    return n_updates


DESCRIPTORS: Final = Fault(
    "descriptors",
    f"{N_CLIENTS} connections take all of the {OPEN_FILES} files that the process may open, and go",
    inflict,
)
