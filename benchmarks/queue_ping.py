"""How long does an MQTT client wait for a PINGRESP while the queue answers large requests?

Rerun: ``python -m benchmarks.queue_ping``; a look in seconds with ``--quick``.

A broker with the plugin `queue` serves one MQTT client, which sends PINGREQ after PINGREQ, and one
HTTP client in a process of its own, which sends one request after the other. Each row is a kind of
request; `idle` has none. Queue and broker share an event loop, so the longest step that a request
takes there is what the MQTT client waits for. The engine is in memory: what a disk does is not
asked.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.errors import BenchmarkError
from benchmarks.loads.wire import CONNACK_ACCEPTED, connect_packet
from benchmarks.program import JsonFile, Program, Quick, describe_run, tell, write_json
from penstock.netem.runs.broker_process import ENVIRONMENT, reserved_port

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"

PAYLOAD_BYTES: Final = 1024
STORED_MESSAGES: Final = 20_000
BODY_BYTES: Final = 4_000_000
"""Just below `max_request_bytes`."""
FULL_REQUESTS: Final = 30
QUICK_REQUESTS: Final = 1
IDLE_PINGS: Final = 2_000
ANSWER_SECONDS: Final = 60.0

JSON: Final = "application/json"
BATCH: Final = "application/vnd.penstock.batch"
QUEUES: Final = {
    "read": {"physical_queues": 1, "groups": {"readers": {"kind": "offsets"}}},
    "work": {"n_max": 10_000, "max_messages": 100_000, "when_full": "drop_oldest"},
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is sent over and over.

    Attributes:
        method: of HTTP.
        path: with the query.
        body: of the request; None for none.
        accept: content type of the answer.
        status: of the answer.
    """

    method: str
    path: str
    body: bytes | None = None
    accept: str = JSON
    status: int = 200


def _rows(n_messages: int) -> bytes:
    payload = base64.b64encode(os.urandom(PAYLOAD_BYTES)).decode()
    rows = [{"topic": f"plant/{n % 50}", "payload": payload} for n in range(n_messages)]
    return json.dumps({"messages": rows}).encode()


RANGE: Final = f"/queues/read/physical/0/range?start=0&end={STORED_MESSAGES}"

ROWS: Final[dict[str, Callable[[], list[Request]]]] = {
    "idle": list,
    "range of 4 MB, JSON": lambda: [Request("GET", RANGE)],
    "range of 4 MB, batch format": lambda: [Request("GET", RANGE, accept=BATCH)],
    "store 2,800 messages, JSON": lambda: [Request("POST", "/queues/work/messages", _rows(2_800))],
    "store and receive 2,800 messages, JSON": lambda: [
        Request("POST", "/queues/work/messages", _rows(2_800)),
        Request("POST", "/queues/work/groups/default/receive", b'{"max_messages": 10000}'),
    ],
    "store a picture of 3 MB, JSON": lambda: [
        Request(
            "POST",
            "/queues/work/messages",
            json.dumps(
                {"topic": "a", "payload": base64.b64encode(os.urandom(3_000_000)).decode()}
            ).encode(),
        )
    ],
    "a body of 4 MB of numbers": lambda: [
        Request(
            "POST",
            "/queues/work/messages",
            b"[" + b"1," * (BODY_BYTES // 2 - 1) + b"1]",
            status=400,
        )
    ],
}


def _ask(connection: http.client.HTTPConnection, request: Request) -> None:
    """Send a request and take its answer.

    Raises:
        BenchmarkError: it has another status.
    """
    headers = {"Accept": request.accept}
    if request.body is not None:
        headers["Content-Type"] = JSON
    connection.request(request.method, request.path, request.body, headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != request.status:
        raise BenchmarkError(f"{request.path}: status {answer.status}: {body[:200].decode()}")


def _load(url: str, row: str, n_requests: int) -> None:
    """Send the requests of a row so many times, one after the other."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
    requests = ROWS[row]()
    print("begun", flush=True)
    begin = time.perf_counter()
    for request in requests * n_requests:
        _ask(connection, request)
    print((time.perf_counter() - begin) / n_requests / len(requests), flush=True)


@contextmanager
def _broker(folder: Path, port: int) -> Iterator[str]:
    """Run a broker; yield the URL of its queue."""
    with reserved_port() as http_port:
        bind = f"127.0.0.1:{http_port}"
        queue = {"engine": "memory", "http": bind, "queues": QUEUES}
        policy = {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"queue": queue},
        }
        (folder / "policy.yaml").write_text(json.dumps(policy))
        log = folder / "log"
        with (
            log.open("w") as stderr,
            subprocess.Popen(
                [sys.executable, "-m", "penstock.broker", "-c", "policy.yaml"],
                stderr=stderr,
                cwd=folder,
                env=ENVIRONMENT,
            ) as process,
        ):
            try:
                until = time.monotonic() + ANSWER_SECONDS
                while "listener default: listening" not in log.read_text():
                    if process.poll() is not None or time.monotonic() > until:
                        raise BenchmarkError(f"the broker did not start: {log.read_text()}")
                    time.sleep(0.05)
                yield f"http://{bind}"
            finally:
                process.terminate()


def _fill(url: str) -> None:
    """Store what is read in ranges."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
    some = 2_000
    for _ in range(STORED_MESSAGES // some):
        _ask(connection, Request("POST", "/queues/read/messages", _rows(some)))


def _ping(client: socket.socket, goes_on: Callable[[int], bool]) -> list[float]:
    """Return round trips of PINGREQs, in seconds, one every millisecond at most.

    Args:
        client: the MQTT connection.
        goes_on: says after so many whether there is another one.
    """
    trips: list[float] = []
    while goes_on(len(trips)):
        begin = time.perf_counter()
        client.sendall(PINGREQ)
        if client.recv(2, socket.MSG_WAITALL) != PINGRESP:
            raise BenchmarkError("the broker answered a PINGREQ with something else")
        trips.append(time.perf_counter() - begin)
        time.sleep(0.001)
    return trips


def _measure(url: str, client: socket.socket, row: str, n_requests: int) -> dict[str, Any]:
    """Return the round trips beside the requests of a row, and seconds of a request."""
    if not ROWS[row]():
        return {"trips": _ping(client, lambda n: n < IDLE_PINGS), "request_seconds": None}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queue_ping", "--part", url, row, str(n_requests)],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as load:
        if load.stdout is None or load.stdout.readline() != "begun\n":
            raise BenchmarkError(f"the load of row {row!r} did not begin")
        trips = _ping(client, lambda _: load.poll() is None)
        told = load.stdout.readline()
    if load.returncode:
        raise BenchmarkError(f"the load of row {row!r} failed")
    return {"trips": trips, "request_seconds": float(told)}


def to_markdown(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table."""
    lines = [
        "| beside | a request, ms | PINGREQs | median, ms | p99, ms | longest, ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, figures in found.items():
        trips = sorted(figures["trips"])
        shown = (statistics.median(trips), trips[int(len(trips) * 0.99)], trips[-1])
        times = " | ".join(f"{1000 * one:.2f}" for one in shown)
        request = figures["request_seconds"]
        took = "-" if request is None else f"{1000 * request:.0f}"
        lines.append(f"| {row} | {took} | {len(trips):,} | {times} |")
    return lines


def bench(json_file: JsonFile = None, *, quick: Quick = False) -> None:
    """Measure round trips of PINGREQ on this machine: a Markdown table on standard output."""
    n_requests = QUICK_REQUESTS if quick else FULL_REQUESTS
    found: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        reserved_port() as port,
        _broker(Path(folder), port) as url,
        socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(connect_packet("ping"))
        if client.recv(4, socket.MSG_WAITALL) != CONNACK_ACCEPTED:
            raise BenchmarkError("the broker did not accept the client")
        _fill(url)
        for row in ROWS:
            found[row] = _measure(url, client, row, n_requests)
    run = describe_run(requests=f"{n_requests} of each kind")
    write_json(json_file, {"run": run, "rows": found})
    tell(to_markdown(found), run)


_measure_all: Final = Program(bench, "python -m benchmarks.queue_ping")


def main(argv: list[str]) -> int:
    """Run the benchmark, or the load of a row in a process of its own."""
    if argv[:1] == ["--part"]:
        _load(argv[1], argv[2], int(argv[3]))
        return 0
    return _measure_all(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
