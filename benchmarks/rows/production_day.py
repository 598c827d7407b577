"""What does a broker cost on a day in production, and how late are messages?

The load, three processes, is that of `loads/day.py`: by default 1,000 clients with TLS 1.3 log in
as users of an ACL file, with sessions that last. 350 messages a second are published, five in a
hundred of them large, and each is read twice, by one reader in ten over a bad link. 50 clients a
second connect, take a command from their session, publish, and disconnect. Meanwhile the broker's
metrics are read every few seconds. `--day-seconds 3600` makes it an hour, as memory wants.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

from benchmarks.loads import wire
from benchmarks.loads.day import KINDS, Day
from benchmarks.loads.load import Side
from benchmarks.peers import Options, RunningPeer
from benchmarks.rows.rates import BROKER_CPU, MICROSECOND
from benchmarks.rows.row import Figure, Measurement, Row, Scale, Target

MILLISECOND: Final = 1e-3
MEGABYTE: Final = 1_000_000
METRICS: Final = ("/metrics", "/api/clients?limit=1000")
"""What is read of Penstock's console: all counters, and all clients' state."""

SCRAPE_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
"""A machine that others use as well may be slow to answer, and an hour is not to end for that."""

LEAD_SECONDS: Final = 0.5
MEMORY_MINUTES: Final = (1, 10, 30, 60)


class Scraper:
    """Reads the metrics of a broker: Penstock's over HTTP, and $SYS of all.

    Attributes:
        rss_bytes: the resident set at each look, by the second of the monotonic clock.
    """

    def __init__(self, peer: RunningPeer, stack: ExitStack) -> None:
        self._peer = peer
        self._sock, _ = peer.access.open("bench-monitor", "office")
        stack.enter_context(self._sock)
        wire.subscribe(self._sock, "$SYS/#", 0)
        self._sock.settimeout(0.01)
        self.count = 0
        self.rss_bytes: dict[float, int] = {}

    def scrape(self) -> None:
        """Read all there is."""
        self.rss_bytes[time.monotonic()] = self._peer.rss_bytes()
        with contextlib.suppress(TimeoutError):
            while self._sock.recv(1 << 16):
                pass
        try:
            for path in METRICS:
                url = f"http://127.0.0.1:{self._peer.metrics_port}{path}"
                with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                    self.count += bool(answer.read())
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):  # a broker without HTTP
                raise


def measure_day(peer: RunningPeer, scale: Scale) -> Measurement:
    """Return microseconds of processor time for each delivered message."""
    day = Day(2 * scale.clients, scale.day_seconds)
    with ExitStack() as stack:
        scraper = Scraper(peer, stack)
        sides: dict[str, Side] = {}
        for role in ("read", "sleep", "send"):
            arguments = json.dumps(asdict(peer.access)), json.dumps(asdict(day))
            sides[role] = Side("benchmarks.loads.day", role, *arguments)
            stack.callback(sides[role].close)
            sides[role].answer()
        start = time.monotonic() + LEAD_SECONDS
        cpu_before = peer.cpu_seconds()
        for side in sides.values():
            side.tell(start=start)
        while (left := start + day.seconds - time.monotonic()) > 0:
            scraper.scrape()
            time.sleep(min(left, SCRAPE_SECONDS))
        told: dict[str, dict[str, Any]] = {role: side.answer() for role, side in sides.items()}
        cpu = peer.cpu_seconds() - cpu_before
        scraper.scrape()
    read, sleep, sent = told["read"], told["sleep"], told["send"]
    delivered = read["received"] + sleep["received"]
    elapsed = time.monotonic() - start
    late = {f"{kind}_{each}": read[f"{kind}_{each}"] for kind in KINDS for each in ("p50", "p99")}
    late |= {name: sleep[name] for name in ("connect_p50", "connect_p99")}
    megabytes = [(moment - start, rss / MEGABYTE) for moment, rss in scraper.rss_bytes.items()]
    by_minute = {
        f"megabytes_after_{minute}_minutes": [size for at, size in megabytes if at <= minute * 60][
            -1
        ]
        for minute in MEMORY_MINUTES
        if minute * 60 <= day.seconds
    }
    return Measurement(
        value=cpu / MICROSECOND / max(1, delivered),
        lost=read["expected"] + sleep["expected"] - delivered + sent["unacknowledged"],
        details={
            BROKER_CPU: cpu / MICROSECOND / max(1, delivered),
            "broker_cpu_ratio": cpu / elapsed,
            "load_cpu_ratio": sum(each["cpu"] for each in told.values()) / elapsed,
            "delivered_messages": delivered,
            "connects": sleep["connects"],
            "scrapes": scraper.count,
            "begin_megabytes": megabytes[0][1],
            "end_megabytes": megabytes[-1][1],
            "most_megabytes": max(size for _, size in megabytes),
            **by_minute,
            "sender_p99_milliseconds": sent["sender_p99"] / MILLISECOND,
            **{f"{name}_milliseconds": value / MILLISECOND for name, value in late.items()},
        },
    )


def _late(name: str, title: str, target: Target | None = None) -> Figure:
    return Figure(f"{name}_milliseconds", f"that day, {title}", "ms", target or Target())


ROWS: Final = (
    Row(
        name="production_day",
        group="day",
        title="a production day: 1,000 clients with TLS, users, an ACL file and durable sessions;"
        " processor time for each delivered message",
        unit="us",
        target=Target(most_ratio=1),
        measure=measure_day,
        options=Options(is_tls=True, has_acl=True, is_durable=True, has_metrics=True),
        figures=(
            _late("small_p50", "p50 of small messages on good links"),
            _late("small_p99", "p99 of small messages on good links", Target(most_ratio=1)),
            _late("large_p50", "p50 of large messages on good links"),
            _late("large_p99", "p99 of large messages on good links"),
            _late("small_bad_p50", "p50 of small messages on bad links"),
            _late("small_bad_p99", "p99 of small messages on bad links"),
            _late("large_bad_p50", "p50 of large messages on bad links"),
            _late("large_bad_p99", "p99 of large messages on bad links"),
            _late("connect_p50", "p50 of connecting with a session, from when it was due"),
            _late("connect_p99", "p99 of connecting with a session, from when it was due"),
            Figure("end_megabytes", "that day, resident set at its end", "MB", Target()),
        ),
    ),
)
