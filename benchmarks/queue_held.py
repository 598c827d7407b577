"""What do requests cost that the queue holds until messages arrive?

Rerun: ``python -m benchmarks.queue_held``; a look in seconds with ``--quick``.

Each row is a gateway of its own, with the memory engine, that is left alone for some seconds: idle;
with as many connections as there are requests in the others, each idle after one request; with
requests over HTTP, and over Amazon SQS, that are held by `rds+wake`; and with requests that `rds`
holds and tries again every five seconds, the paper's sleep time. In the row with messages, one
message arrives every tenth of a second, and one request is answered by it.

Processor time and wake-ups are the kernel's counts for all threads of the process; a wake-up is a
context switch by which a thread begins to wait. Memory is the resident set. The descriptors that
the processes may open (``ulimit -Hn``) must be more than the requests. A request over SQS waits for
20 s at most, in which the row must begin and end: it has a tenth of the requests. The column `held`
says how many were held when the row ended.
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.errors import BenchmarkError
from benchmarks.loads.gateway import Gateway, running_gateway
from benchmarks.program import JsonFile, Program, Quick, describe_run, tell, write_json

QUEUE: Final = "bench"
FULL_REQUESTS: Final = 10_000
QUICK_REQUESTS: Final = 200
FULL_SECONDS: Final = 10.0
QUICK_SECONDS: Final = 1.0
SPARE_FILES: Final = 200
"""That a process opens besides its connections."""
WAIT_SECONDS: Final = 600
SQS_WAIT_SECONDS: Final = 20
SLEEP_SECONDS: Final = 5.0
MESSAGE_SECONDS: Final = 0.1
"""Between two messages of the row with messages."""
SETTLE_SECONDS: Final = 1.0
"""From when all requests are held until it is measured: what their arrival caused is over."""
ANSWER_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of load.

    Attributes:
        name: as the table shows it.
        dequeue: strategy of the queue.
        api: index of the API that gets a request on each connection; None for no connections.
        request: that is sent on each.
        is_held: whether the requests wait for messages.
        has_messages: whether messages arrive.
        share: of the requests that the row has.
    """

    name: str
    dequeue: str = "rds+wake"
    api: int | None = None
    request: bytes = b""
    is_held: bool = True
    has_messages: bool = False
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process takes.

    Attributes:
        cpu_ratio: of one core.
        wake_ups_per_second: of all threads.
        resident_bytes: of memory.
        requests: that were sent.
        held: of these, those that are held.
        seconds_to_begin: from the first connection until all requests were held.
    """

    cpu_ratio: float
    wake_ups_per_second: float
    resident_bytes: int
    requests: int
    held: int
    seconds_to_begin: float


def _request(method: str, path: str, body: Mapping[str, Any] | None = None, **more: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*head, "", ""]).encode() + data


RECEIVE: Final = _request(
    "POST",
    f"/queues/{QUEUE}/groups/default/receive",
    {"wait_seconds": WAIT_SECONDS},
    Content_Type="application/json",
)
RECEIVE_SQS: Final = _request(
    "POST",
    "/",
    {"QueueUrl": f"/000000000000/{QUEUE}", "WaitTimeSeconds": SQS_WAIT_SECONDS},
    Content_Type="application/x-amz-json-1.0",
    X_Amz_Target="AmazonSQS.ReceiveMessage",
)

ROWS: Final = (
    Row("idle"),
    Row("connections alone", api=0, request=_request("GET", "/health"), is_held=False),
    Row("HTTP, rds+wake", api=0, request=RECEIVE),
    Row("HTTP, rds+wake, 10 messages a second", api=0, request=RECEIVE, has_messages=True),
    Row("Amazon SQS, rds+wake", api=1, request=RECEIVE_SQS, share=0.1),
    Row("HTTP, rds every 5 s", dequeue="rds", api=0, request=RECEIVE),
)


def _section(row: Row, n_requests: int) -> dict[str, Any]:
    queue = {
        "dequeue": row.dequeue,
        "sleep_time": SLEEP_SECONDS,
        "max_wait_seconds": WAIT_SECONDS,
        "max_waiting_requests": max(n_requests, 1),
    }
    return {
        "engine": "memory",
        "http": "127.0.0.1:0",
        "sqs": "127.0.0.1:0",
        "http_limits": {"connections": n_requests + SPARE_FILES // 4, "idle_timeout_seconds": 600},
        "queues": {QUEUE: queue},
    }


def _allow_files(n_requests: int) -> None:
    """Raise the limit of open files for this process and those that it starts.

    Raises:
        BenchmarkError: the limit of the system is too low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < n_requests + SPARE_FILES:
        raise BenchmarkError(
            f"open files: read a hard limit of {hard}; allowed: {n_requests + SPARE_FILES} or more "
            "(ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def _connections(url: str, n_connections: int, request: bytes) -> Iterator[None]:
    """Have connections open on which a request was sent each."""
    address = urlsplit(url)
    with ExitStack() as stack:
        for _ in range(n_connections):
            sock = socket.create_connection((address.hostname, address.port), ANSWER_SECONDS)
            stack.enter_context(sock)
            sock.sendall(request)
        yield


def _ask(url: str, method: str, path: str, body: Any = None) -> Any:
    """Return the JSON value of an answer.

    Raises:
        BenchmarkError: it was refused.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchmarkError(f"{path}: status {answer.status}: {found[:200].decode()}")
    return json.loads(found)


def _held(url: str) -> int:
    group = _ask(url, "GET", f"/queues/{QUEUE}/groups/default")
    held: int = group.get("requests", {}).get("held", 0)
    return held


def _until_held(url: str, n_requests: int) -> None:
    """Wait until so many requests are held, or no more of them come."""
    until = time.monotonic() + ANSWER_SECONDS
    while _held(url) < n_requests:
        if time.monotonic() > until:
            raise BenchmarkError(f"{_held(url)} of {n_requests} requests are held")
        time.sleep(POLL_SECONDS)


def _looks(pid: int) -> tuple[float, int]:
    """Return the processor seconds and the wake-ups of a process so far."""
    seconds, wake_ups = 0.0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
        status = (task / "status").read_text()
        wake_ups += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return seconds, wake_ups


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _watch(gateway: Gateway, seconds: float, *, has_messages: bool) -> tuple[float, float]:
    """Return the share of a core and the wake-ups a second of a gateway."""
    began, (cpu, wake_ups) = time.monotonic(), _looks(gateway.pid)
    if has_messages:
        message = {"topic": "bench/1", "text": "x"}
        while time.monotonic() < began + seconds:
            _ask(gateway.urls[0], "POST", f"/queues/{QUEUE}/messages", message)
            time.sleep(MESSAGE_SECONDS)
    else:
        time.sleep(seconds)
    cpu_after, wake_ups_after = _looks(gateway.pid)
    elapsed = time.monotonic() - began
    return (cpu_after - cpu) / elapsed, (wake_ups_after - wake_ups) / elapsed


def measure_row(row: Row, n_requests: int, seconds: float) -> Cost:
    """Measure a gateway of its own.

    Raises:
        BenchmarkError: the gateway failed, or does not hold the requests.
    """
    n_requests = 0 if row.api is None else max(1, round(n_requests * row.share))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_gateway(Path(folder), _section(row, n_requests)) as gateway,
        ExitStack() as stack,
    ):
        began = time.monotonic()
        if row.api is not None:
            url = gateway.urls[row.api]
            stack.enter_context(_connections(url, n_requests, row.request))
            if row.is_held:
                _until_held(gateway.urls[0], n_requests)
        begun = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        cpu, wake_ups = _watch(gateway, seconds, has_messages=row.has_messages)
        resident = _resident_bytes(gateway.pid)
        held = _held(gateway.urls[0])
        return Cost(cpu, wake_ups, resident, n_requests, held, begun)


def to_markdown(costs: Mapping[str, Cost]) -> list[str]:
    """Return the table; memory for each request is that above the idle gateway's."""
    lines = [
        "| row | requests | held | of a core | wake-ups/s | memory, MB | KB a request above idle |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    idle = next(iter(costs.values()))
    for name, cost in costs.items():
        each = (cost.resident_bytes - idle.resident_bytes) / max(cost.requests, 1) / 1e3
        above = f"{each:.1f}" if cost.requests else "-"
        lines.append(
            f"| {name} | {cost.requests:,} | {cost.held:,} | {cost.cpu_ratio:.2%} | "
            f"{cost.wake_ups_per_second:,.1f} | {cost.resident_bytes / 1e6:,.0f} | {above} |"
        )
    return lines


def bench(json_file: JsonFile = None, *, quick: Quick = False) -> None:
    """Measure what held requests cost on this machine: a Markdown table on standard output."""
    n_requests = QUICK_REQUESTS if quick else FULL_REQUESTS
    seconds = QUICK_SECONDS if quick else FULL_SECONDS
    _allow_files(n_requests)
    costs = {row.name: measure_row(row, n_requests, seconds) for row in ROWS}
    run = describe_run(requests=f"{n_requests:,}", seconds=f"{seconds:g} a row")
    write_json(json_file, {"run": run, "rows": {name: asdict(one) for name, one in costs.items()}})
    tell(to_markdown(costs), run)


main: Final = Program(bench, "python -m benchmarks.queue_held")

if __name__ == "__main__":
    sys.exit(main())
