"""What does it cost to look at the kernel's RTT of 10,000 subscribers?

4.3 % of a core at T_Q = 5 s and 9.9 % at 1 s (commit a25501b, medians of three repetitions on two
cores of an AMD EPYC, 3.9 to 4.4 % and 9.7 to 13.3 %). Of a look's 10 to 20 us, half are the
processor's caches, which hold nothing of that client any more.
Rerun: ``python -m benchmarks.sampling``; a look in seconds with ``--quick``.

10,000 connected clients subscribe, and each gets a message of 100 bytes every 5 s, so that the
kernel has news of each at every look at T_Q = 5 s, which costs more than where it has none. The
processor time of the broker is measured without the plugin `probing`, with source `tcp_info` at
T_Q = 5 s and with the same at its default of 1 s, each in a broker of its own; what is beyond the
first is what sampling costs. The load is another process, so that either has its own limit of
open files.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkError
from benchmarks.loads import wire
from benchmarks.peers import Peer, Setting, allow_open_files, running
from benchmarks.program import DEFAULT_REPEATS, Program, Quick, Repeats, describe_run, tell
from penstock.netem.runs.broker_process import ANONYMOUS, penstock_command

FULL_SUBSCRIBERS: Final = 10_000
QUICK_SUBSCRIBERS: Final = 1_000
FULL_SECONDS: Final = 10.0
"""Two rounds of the longer period."""

QUICK_SECONDS: Final = 2.0
PERIODS: Final = (5.0, 1.0)
MESSAGE_SECONDS: Final = 5.0
PAYLOAD_BYTES: Final = 100
TOPIC: Final = "bench/sampling"
TARGET_RATIO: Final = 0.05
"""Of one core, at the longer period."""

_KEPT_FREE: Final = 100
"""Open files of either process that are no subscriber's."""


def _peer(period: float | None) -> Peer:
    """Return a broker that samples once in so many seconds; None for never."""

    def prepare(directory: Path, setting: Setting) -> list[str]:
        plugins: dict[str, Any] = {ANONYMOUS: {"allow_anonymous": True}}
        if period is not None:
            plugins["probing"] = {"sources": ["tcp_info"], "probe_period": period}
        policy = {
            "listeners": {"default": {"bind": f"127.0.0.1:{setting.port}"}},
            "sys_interval": 0,
            "plugins": plugins,
        }
        return penstock_command(directory, policy)

    return Peer("penstock", "sampling", prepare, lambda: "this checkout")


def _publish_until(publisher: socket.socket, deadline: float) -> None:
    """Publish a message at once, and one every few seconds."""
    packet = wire.publish_packet(TOPIC, os.urandom(PAYLOAD_BYTES))
    due = time.monotonic()
    while due < deadline:
        time.sleep(max(0.0, due - time.monotonic()))
        publisher.sendall(packet)
        due += MESSAGE_SECONDS
    time.sleep(max(0.0, deadline - time.monotonic()))


def measure(n_subscribers: int, period: float | None, seconds: float) -> float:
    """Return the share of one core that a broker takes.

    Args:
        n_subscribers: connected.
        period: T_Q in seconds; None for no sampling.
        seconds: measured, after a first message to all.

    Raises:
        BenchmarkError: the broker did not start, or there may not be so many open files.
        WireError: it answered something else than expected.
    """
    allow_open_files()
    names = [f"bench-sampled-{number}" for number in range(n_subscribers)]
    with running(_peer(period)) as peer, ExitStack() as stack:
        try:
            socks = [stack.enter_context(sock) for sock in wire.open_clients(peer.port, names)]
        except OSError as error:
            raise BenchmarkError(
                f"{n_subscribers} connections, {error}; each of two processes needs as many open "
                f"files and {_KEPT_FREE} more (ulimit -n)"
            ) from error
        for sock in socks:
            wire.subscribe(sock, TOPIC, 0)
        publisher = stack.enter_context(wire.open_client(peer.port, "bench-publisher"))
        _publish_until(publisher, time.monotonic() + min(seconds, MESSAGE_SECONDS))
        before, began = peer.cpu_seconds(), time.monotonic()
        _publish_until(publisher, began + seconds)
        return (peer.cpu_seconds() - before) / (time.monotonic() - began)


def _row(name: str, found: Sequence[float], n_looks: float, *, has_target: bool) -> str:
    """Return a line of the table.

    Args:
        name: what was measured.
        found: shares of a core, one a repetition.
        n_looks: a second; 0 where there are none.
        has_target: whether the target is this row's.
    """
    median = statistics.median(found)
    target = f"{TARGET_RATIO:.0%}" if has_target else ""
    is_met = "" if not has_target else "yes" if median < TARGET_RATIO else "no"
    look = f"{1e6 * median / n_looks:.1f}" if n_looks else ""
    spread = f"{min(found):.2%} - {max(found):.2%}"
    return f"| {name} | {target} | {median:.2%} | {spread} | {is_met} | {look} |"


def bench(
    repeats: Repeats = DEFAULT_REPEATS,
    *,
    quick: Quick = False,
) -> None:
    """Measure sampling on this machine: a Markdown table on standard output."""
    n_subscribers = QUICK_SUBSCRIBERS if quick else FULL_SUBSCRIBERS
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    without: list[float] = []
    beyond: dict[float, list[float]] = {period: [] for period in PERIODS}
    for _ in range(repeats):
        without.append(measure(n_subscribers, None, seconds))
        for period in PERIODS:
            beyond[period].append(measure(n_subscribers, period, seconds) - without[-1])
    lines = [
        (
            f"| {n_subscribers:,} subscribers, a message every {MESSAGE_SECONDS:g} s each "
            f"| target, of a core | median of {repeats} | least - most | met | us a look |"
        ),
        "|---|---|---|---|---|---|",
        _row("all else", without, 0.0, has_target=False),
    ]
    for period in PERIODS:
        name = f"sampling, T_Q {period:g} s"
        n_looks = n_subscribers / period
        lines.append(_row(name, beyond[period], n_looks, has_target=period == PERIODS[0]))
    tell(lines, describe_run())


main: Final = Program(bench, "python -m benchmarks.sampling")


if __name__ == "__main__":
    sys.exit(main())
