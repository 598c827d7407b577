"""How long does a small message wait behind large ones on a slow link?

Rerun: ``python -m benchmarks.small_first``; a look with ``--quick``.

Brokers stand side by side, each with one subscriber behind a link of its own
(`penstock.netem.links.relay`: 2 Mbit/s, 40 ms round trip). To each, one client publishes 100 bytes
every 0.1 s, and every 4 s eight messages of 100 kB on other topics, at QoS 0: large ones fill 80 %
of the link, one takes it 0.4 s, eight of them 3.2 s. Latency counts from the moment a message is
due to its last byte at the subscriber. Nothing is withheld: all that differs is what passes what.

* `mosquitto` and `penstock, one class`: in the order in which they came.
* `penstock, kernel unbounded`: small ones first, but what the kernel has taken they cannot pass.
* `penstock`: small ones first, and the kernel takes little in advance.
* `penstock, alarms first`: the same, the small topic having `priority`.

Link and load together take a tenth of a core, so brokers do not disturb each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.loads import wire
from benchmarks.peers import (
    PEERS,
    Peer,
    RunningPeer,
    penstock_peer,
    running,
)
from benchmarks.program import Program, describe_run, tell
from penstock.netem.figures.estimates import pooled_quantile
from penstock.netem.links.profiles import Direction, Profile
from penstock.netem.links.relay import Relay

SLOW: Final = Profile("slow", Direction(0.02, 250_000), Direction(0.02, 250_000))
HEAD: Final = struct.Struct("!d")
"""At the beginning of each payload: the monotonic second it was due."""

SMALL_TOPIC: Final = "alarms/1"
SMALL_BYTES: Final = 100
SMALL_PERIOD_SECONDS: Final = 0.1
LARGE_BYTES: Final = 100_000
LARGE_PERIOD_SECONDS: Final = 4.0
LARGE_AT_ONCE: Final = 8
LARGE_TOPICS: Final = tuple(f"views/{n}" for n in range(LARGE_AT_ONCE))
BEGIN_SECONDS: Final = 1.0
END_SECONDS: Final = 10.0
"""For what is on its way when the last message was published."""


def _penstock(name: str, about: str, *, unsent_bytes: int | None = 0, **keys: Any) -> Peer:
    """Return Penstock with the example policy, but for some keys.

    Args:
        name: in the table.
        about: what is different.
        unsent_bytes: of the listener; 0 for the default.
        keys: of `withholding`.
    """

    def change(policy: dict[str, Any], _directory: Path) -> None:
        policy["plugins"]["withholding"] |= {"policy": "none", **keys}
        if unsent_bytes != 0:
            policy["listeners"]["default"]["unsent_bytes"] = unsent_bytes

    return penstock_peer(name, about, change)


BROKERS: Final = (
    PEERS["mosquitto"],
    _penstock("penstock, one class", "threshold_s above every message", threshold_s=10**9),
    _penstock("penstock, kernel unbounded", "unsent_bytes: null", unsent_bytes=None),
    _penstock("penstock", "policy: none"),
    _penstock("penstock, alarms first", "priority: [alarms/#]", priority=["alarms/#"]),
)


@dataclass(slots=True)
class Outcome:
    """What one broker did.

    Attributes:
        broker: its name.
        small_seconds: latency of each small message that came.
        large_seconds: the same of large ones.
        lost: messages that did not come.
    """

    broker: str
    small_seconds: list[float] = field(default_factory=list)
    large_seconds: list[float] = field(default_factory=list)
    lost: int = 0


def plan(seconds: float) -> Iterator[tuple[float, str, int]]:
    """Yield (second at which it is due, topic, payload bytes) of each message, in order."""
    small = (
        (n * SMALL_PERIOD_SECONDS, SMALL_TOPIC, SMALL_BYTES)
        for n in range(int(seconds / SMALL_PERIOD_SECONDS))
    )
    large = (
        (n * LARGE_PERIOD_SECONDS + SMALL_PERIOD_SECONDS / 2, topic, LARGE_BYTES)
        for n in range(int(seconds / LARGE_PERIOD_SECONDS))
        for topic in LARGE_TOPICS
    )
    return heapq.merge(small, large, key=lambda message: message[0])


@contextlib.contextmanager
def slow_link(port: int) -> Iterator[int]:
    """Run a relay to a port of this machine; yield the port that it listens on."""
    loop = asyncio.new_event_loop()
    relay = Relay("127.0.0.1", port, SLOW)
    loop.run_until_complete(relay.start())
    thread = threading.Thread(target=loop.run_forever, name="slow link", daemon=True)
    thread.start()
    try:
        yield relay.address[1]
    finally:
        asyncio.run_coroutine_threadsafe(relay.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Subscriber:
    """Reads all that comes for one broker's subscriber, on a thread of its own.

    Attributes:
        outcome: so far; complete after `finish`.
    """

    def __init__(self, peer: RunningPeer, port: int, stack: ExitStack) -> None:
        self.outcome = Outcome(peer.name)
        self._sock = stack.enter_context(wire.open_client(port, "subscriber"))
        wire.subscribe(self._sock, [SMALL_TOPIC, *LARGE_TOPICS], 0)
        self._sock.settimeout(None)
        self._thread = threading.Thread(target=self._read, name=peer.name, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        outcome = self.outcome
        with contextlib.suppress(wire.WireError, OSError):
            while True:
                packet = wire.receive_packet(self._sock)
                arrived_at = time.monotonic()
                publish = wire.read_publish(packet[:200])
                (due_at,) = HEAD.unpack_from(packet, publish.payload_at)
                is_small = publish.topic == SMALL_TOPIC
                kind = outcome.small_seconds if is_small else outcome.large_seconds
                kind.append(arrived_at - due_at)

    def finish(self, n_messages: int, deadline: float) -> Outcome:
        """Wait for so many messages, or for a monotonic second; return what came."""
        outcome = self.outcome
        while time.monotonic() < deadline:
            if len(outcome.small_seconds) + len(outcome.large_seconds) == n_messages:
                break
            time.sleep(0.1)
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        outcome.lost = n_messages - len(outcome.small_seconds) - len(outcome.large_seconds)
        return outcome


def run_side_by_side(brokers: Sequence[Peer], seconds: float) -> list[Outcome]:
    """Publish the same to all brokers at the same times.

    Args:
        brokers: which.
        seconds: that messages are published.

    Raises:
        BenchmarkError: a broker does not start.
    """
    messages = list(plan(seconds))
    bodies = {size: os.urandom(size - HEAD.size) for size in (SMALL_BYTES, LARGE_BYTES)}
    with ExitStack() as stack:
        peers = [stack.enter_context(running(broker)) for broker in brokers]
        subscribers = [
            Subscriber(peer, stack.enter_context(slow_link(peer.port)), stack) for peer in peers
        ]
        publishers = [
            stack.enter_context(wire.open_client(peer.port, "publisher")) for peer in peers
        ]
        begin_at = time.monotonic() + BEGIN_SECONDS
        for due, topic, size in messages:
            due_at = begin_at + due
            time.sleep(max(0.0, due_at - time.monotonic()))
            packet = wire.publish_packet(topic, HEAD.pack(due_at) + bodies[size])
            for publisher in publishers:
                publisher.sendall(packet)
        deadline = time.monotonic() + END_SECONDS
        return [subscriber.finish(len(messages), deadline) for subscriber in subscribers]


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the least value that a share of all do not exceed; nan of none."""
    return pooled_quantile([seconds], share)([0])


def to_markdown(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a row for each broker."""
    lines = [
        "| broker | small p50, s | small p90, s | small p99, s | large mean, s | lost |",
        "|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        cells = [quantile(each.small_seconds, share) for share in (0.5, 0.9, 0.99)]
        cells.append(statistics.fmean(each.large_seconds or [float("nan")]))
        shown = " | ".join(f"{seconds:.2f}" for seconds in cells)
        lines.append(f"| {each.broker} | {shown} | {each.lost} |")
    return lines


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return the conclusion in one line: ours and mosquitto's small messages."""
    p99 = {each.broker: quantile(each.small_seconds, 0.99) for each in outcomes}
    ours, theirs = p99["penstock"], p99["mosquitto"]
    before = p99["penstock, kernel unbounded"]
    return (
        f"99 % of small messages take {ours:.2f} s at most; {before:.2f} s where the kernel takes "
        f"what it likes; with mosquitto {theirs:.2f} s."
    )


def run(
    seconds: Annotated[float, typer.Option(min=4, help="For which is published.")] = 60.0,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="12 seconds.")] = False,
) -> None:
    """Measure how long small messages wait behind large ones on a slow link."""
    if quick:
        seconds = 12.0
    outcomes = run_side_by_side(BROKERS, seconds)
    tell([verdict(outcomes), "", *to_markdown(outcomes)], describe_run(BROKERS))


main: Final = Program(run, "python -m benchmarks.small_first")


if __name__ == "__main__":
    sys.exit(main())
