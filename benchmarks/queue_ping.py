"""How long does an MQTT client wait for a PINGRESP while the queue answers large requests?

Rerun: ``python -m benchmarks.queue_ping``; a look in seconds with ``--quick``.

A broker with the plugin `queue` serves one MQTT client, which sends PINGREQ after PINGREQ, and one
client of HTTP and Amazon SQS in a process of its own, which makes one round of requests after the
other. Each row is a kind of round; `idle` has none. Queue and broker share an event loop, so the
longest step that a request takes there is what the MQTT client waits for; it also waits while the
thread that writes to the database does not let go of the interpreter. The engine is SQLite, without
a flush at each commit: how long a disk takes is not asked.
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
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

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
FULL_ROUNDS: Final = 30
QUICK_ROUNDS: Final = 1
IDLE_PINGS: Final = 2_000
ANSWER_SECONDS: Final = 60.0

BODY_MESSAGES: Final = 2_800
"""Of `PAYLOAD_BYTES` in a body of 4 MB."""
SMALL_MESSAGES: Final = 10_000
"""As many as one request may store, and receive."""
SQS_TEXT: Final = 'é"\\' * 25_000
"""Of each of the ten messages of a batch, 1 MB together, which JSON and XML must escape."""

JSON: Final = "application/json"
BATCH: Final = "application/vnd.penstock.batch"
ARROW: Final = "application/vnd.apache.arrow.stream"
FORM: Final = "application/x-www-form-urlencoded"
SQS_JSON: Final = "application/x-amz-json-1.0"
SIGNATURE: Final = (
    "AWS4-HMAC-SHA256 Credential=a/20261123/eu-west-1/sqs/aws4_request, SignedHeaders=host, "
    "Signature=a"
)
"""Without tokens, one of any key will do."""

QUEUES: Final = {
    "read": {"physical_queues": 1, "groups": {"readers": {"kind": "offsets"}}},
    "work": {"n_max": 10_000, "max_messages": 100_000, "when_full": "drop_oldest"},
    "sqs": {},
}


class Client:
    """Sends requests to both APIs of a queue, one after the other.

    Args:
        http_url: of the HTTP API.
        sqs_url: of Amazon SQS.
    """

    def __init__(self, http_url: str, sqs_url: str) -> None:
        self._http, self._sqs = (
            http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_SECONDS)
            for url in (http_url, sqs_url)
        )
        self.n_requests = 0

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        accept: str = JSON,
        content_type: str = JSON,
        status: int = 200,
    ) -> bytes:
        """Send a request to the HTTP API; return the body of its answer.

        Raises:
            BenchmarkError: it has another status.
        """
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        return self._answer(self._http, (method, path, body, headers), status)

    def sqs(self, action: str, **parameters: Any) -> Any:
        """Return the result of an action by the JSON protocol."""
        headers = {"Content-Type": SQS_JSON, "X-Amz-Target": f"AmazonSQS.{action}"}
        data = json.dumps({"QueueUrl": "/0/sqs", **parameters}).encode()
        return json.loads(self._answer(self._sqs, ("POST", "/", data, headers), 200))

    def query(self, action: str, **parameters: str) -> bytes:
        """Return the answer to an action by the query protocol."""
        headers = {"Content-Type": FORM, "Authorization": SIGNATURE}
        data = urlencode({"Action": action, "QueueUrl": "/0/sqs"} | parameters).encode()
        return self._answer(self._sqs, ("POST", "/", data, headers), 200)

    def _answer(
        self, connection: http.client.HTTPConnection, request: tuple[Any, ...], status: int
    ) -> bytes:
        self.n_requests += 1
        connection.request(*request)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != status:
            raise BenchmarkError(f"{request[1]}: status {answer.status}: {body[:200].decode()}")
        return body


Round: TypeAlias = Callable[[Client], object]

RANGE: Final = f"/queues/read/physical/0/range?start=0&end={STORED_MESSAGES}"
WORK: Final = "/queues/work"
GROUP: Final = f"{WORK}/groups/default"


@cache
def _rows(n_messages: int, payload_bytes: int = PAYLOAD_BYTES) -> bytes:
    payload = base64.b64encode(os.urandom(payload_bytes)).decode()
    rows = [{"topic": f"plant/{n % 50}", "payload": payload} for n in range(n_messages)]
    return json.dumps({"messages": rows}).encode()


@cache
def _arrow_rows(n_messages: int) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 (an optional package)
    import pyarrow.ipc  # noqa: PLC0415

    payload = os.urandom(PAYLOAD_BYTES)
    columns = {"topic": ["plant/1"] * n_messages, "payload": [payload] * n_messages}
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


@cache
def _picture() -> bytes:
    payload = base64.b64encode(os.urandom(3_000_000)).decode()
    return json.dumps({"topic": "a", "payload": payload}).encode()


def _store(client: Client, body: bytes, content_type: str = JSON, status: int = 200) -> bytes:
    return client.ask("POST", f"{WORK}/messages", body, content_type=content_type, status=status)


def _receive(client: Client, group: str = GROUP, accept: str = JSON) -> bytes:
    return client.ask("POST", f"{group}/receive", b'{"max_messages": 10000}', accept=accept)


def _store_and_receive(client: Client, accept: str) -> None:
    _store(client, _rows(BODY_MESSAGES))
    _receive(client, accept=accept)


def _receive_and_settle(client: Client, action: str) -> None:
    _store(client, _rows(SMALL_MESSAGES, 1))
    received = json.loads(_receive(client))["messages"]
    handles = [one["receipt_handle"] for one in received]
    body = {"action": action, "receipt_handles": handles}
    client.ask("POST", f"{GROUP}/settle", json.dumps(body).encode())


def _pass_over(client: Client) -> None:
    """Have a group of other topics pass over a backlog."""
    _store(client, _rows(SMALL_MESSAGES, 1))
    group = f"{WORK}/groups/other"
    client.ask("PUT", group, b'{"topics": ["other/#"]}')
    _receive(client, group)
    client.ask("DELETE", group)


def _purge(client: Client) -> None:
    for _ in range(5):
        _store(client, _rows(SMALL_MESSAGES, 1))
    client.ask("POST", f"{WORK}/purge", b"{}")


def _back_up(client: Client) -> None:
    name = f"copy-{uuid.uuid4()}.db"
    client.ask("POST", "/backup", json.dumps({"path": name}).encode())


def _sqs_batch(client: Client) -> None:
    entries = [{"Id": str(n), "MessageBody": SQS_TEXT} for n in range(10)]
    client.sqs("SendMessageBatch", Entries=entries)
    received = client.sqs("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", [])
    handles = [
        {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(received)
    ]
    client.sqs("DeleteMessageBatch", Entries=handles)


def _sqs_query_batch(client: Client) -> None:
    entries: dict[str, str] = {}
    for n in range(1, 11):
        entry = f"SendMessageBatchRequestEntry.{n}"
        entries |= {f"{entry}.Id": str(n), f"{entry}.MessageBody": SQS_TEXT}
    client.query("SendMessageBatch", **entries)
    client.query("ReceiveMessage", MaxNumberOfMessages="10", VisibilityTimeout="0")
    client.query("PurgeQueue")


ROWS: Final[dict[str, Round | None]] = {
    "idle": None,
    "range of 4 MB, JSON": lambda client: client.ask("GET", RANGE),
    "range of 4 MB, batch format": lambda client: client.ask("GET", RANGE, accept=BATCH),
    "range of 4 MB, Arrow": lambda client: client.ask("GET", RANGE, accept=ARROW),
    "store 2,800 messages, JSON": lambda client: _store(client, _rows(BODY_MESSAGES)),
    "store 2,800 messages, Arrow": lambda client: _store(client, _arrow_rows(BODY_MESSAGES), ARROW),
    "store and receive 2,800 messages, JSON": lambda client: _store_and_receive(client, JSON),
    "store and receive 2,800 messages, Arrow": lambda client: _store_and_receive(client, ARROW),
    "receive and acknowledge 10,000 messages": lambda client: _receive_and_settle(client, "ack"),
    "receive 10,000 messages and give them up": lambda client: _receive_and_settle(client, "dead"),
    "pass over 10,000 messages of other topics": _pass_over,
    "store a picture of 3 MB, JSON": lambda client: _store(client, _picture()),
    "a body of 4 MB of numbers": lambda client: _store(
        client, b"[" + b"1," * (BODY_BYTES // 2 - 1) + b"1]", status=400
    ),
    "a batch of 1 MB over SQS": _sqs_batch,
    "a batch of 1 MB over SQS, query protocol": _sqs_query_batch,
    "store and purge 50,000 messages": _purge,
    "backup of 20 MB": _back_up,
}
NEEDS_ARROW: Final = "Arrow"
"""In the names of rows for which pyarrow must be installed."""


def rows() -> list[str]:
    """Return the names of the rows that can be measured here."""
    has_arrow = find_spec("pyarrow") is not None
    return [row for row in ROWS if has_arrow or NEEDS_ARROW not in row]


def _load(http_url: str, sqs_url: str, row: str, n_rounds: int) -> None:
    """Make so many rounds of a row, one after the other."""
    client, make_round = Client(http_url, sqs_url), ROWS[row]
    print("begun", flush=True)
    begin = time.perf_counter()
    for _ in range(n_rounds):
        if make_round is not None:
            make_round(client)
    print((time.perf_counter() - begin) / max(client.n_requests, 1), flush=True)


@contextmanager
def _broker(folder: Path, port: int) -> Iterator[tuple[str, str]]:
    """Run a broker; yield the URLs of its queue: of HTTP, and of Amazon SQS."""
    with reserved_port() as http_port, reserved_port() as sqs_port:
        binds = f"127.0.0.1:{http_port}", f"127.0.0.1:{sqs_port}"
        queue = {
            "path": "queue.db",
            "durability": "normal",
            **dict(zip(("http", "sqs"), binds, strict=True)),
            "queues": QUEUES,
        }
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
                yield f"http://{binds[0]}", f"http://{binds[1]}"
            finally:
                process.terminate()


def _fill(urls: tuple[str, str]) -> None:
    """Store what is read in ranges."""
    client, some = Client(*urls), 2_000
    for _ in range(STORED_MESSAGES // some):
        client.ask("POST", "/queues/read/messages", _rows(some))


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


def _measure(
    urls: tuple[str, str], client: socket.socket, row: str, n_rounds: int
) -> dict[str, Any]:
    """Return the round trips beside the rounds of a row, and seconds of a request."""
    if ROWS[row] is None:
        return {"trips": _ping(client, lambda n: n < IDLE_PINGS), "request_seconds": None}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.queue_ping", "--part", *urls, row, str(n_rounds)],
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
    n_rounds = QUICK_ROUNDS if quick else FULL_ROUNDS
    found: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        reserved_port() as port,
        _broker(Path(folder), port) as urls,
        socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(connect_packet("ping"))
        if client.recv(4, socket.MSG_WAITALL) != CONNACK_ACCEPTED:
            raise BenchmarkError("the broker did not accept the client")
        _fill(urls)
        for row in rows():
            found[row] = _measure(urls, client, row, n_rounds)
    run = describe_run(rounds=f"{n_rounds} of each kind")
    write_json(json_file, {"run": run, "rows": found})
    tell(to_markdown(found), run)


_measure_all: Final = Program(bench, "python -m benchmarks.queue_ping")


def main(argv: list[str]) -> int:
    """Run the benchmark, or the load of a row in a process of its own."""
    if argv[:1] == ["--part"]:
        _load(argv[1], argv[2], argv[3], int(argv[4]))
        return 0
    return _measure_all(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
