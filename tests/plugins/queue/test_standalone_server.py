from __future__ import annotations

import hashlib
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.plugins.queue.__main__ import main
from penstock.plugins.queue.client import AccessError, QueueClient, QueueError
from tests.helpers.gateway import stored_payloads
from tests.helpers.process import Program
from tests.helpers.redis_server import shared_redis
from tests.plugins.queue.running import LONG_SECONDS

COMMAND = [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"]
POLICY = """
plugins:
  queue:
    path: queue.db
    http: 127.0.0.1:0
    queues:
      work: {topics: [a/#]}
      log: {topics: [a/#], physical_queues: 2, groups: {reader: {kind: offsets}}}
"""


@contextmanager
def running_gateway(
    folder: Path, policy: str = POLICY, *, is_forked: bool = True
) -> Iterator[tuple[Program, str]]:
    """Start ``penstock queue`` in a folder, as a fork or as a user does; yield it and its URL."""
    (folder / "policy.yaml").write_text(policy)
    gateway = Program(COMMAND, cwd=folder, is_forked=is_forked)
    try:
        yield gateway, gateway.wait_for_match(r"listens on (http://\S+)")[1]
    finally:
        gateway.end()


def test_gateway_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """The program answers over HTTP, ends with status 0, and its messages are there next time."""
    with running_gateway(tmp_path, is_forked=False) as (gateway, url):
        QueueClient(url).enqueue("work", [("a", b"kept")])
        assert gateway.stop() == 0
    with running_gateway(tmp_path) as (gateway, url):
        client = QueueClient(url)
        assert [one.payload for one in client.receive("work", wait_seconds=5)] == [b"kept"]
        assert gateway.stop(signal.SIGINT) == 0


def test_two_gateways_share_the_queues_of_a_redis_server(tmp_path: Path) -> None:
    """What one has stored the other gives away, also when the first was killed."""
    prefix = f"test-{uuid.uuid4().hex}"
    server = f"redis: {{server: '127.0.0.1:{shared_redis()}', prefix: {prefix}}}"
    policy = POLICY.replace("path: queue.db", f"engine: redis\n    {server}")
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with (
        running_gateway(folders[0], policy) as (first, one),
        running_gateway(folders[1], policy) as (_, other),
    ):
        QueueClient(one).enqueue("work", [("a", b"a"), ("a", b"b")])
        (received,) = QueueClient(one).receive("work", wait_seconds=5, max_messages=1)
        first.kill()
        (left,) = QueueClient(other).receive("work", wait_seconds=LONG_SECONDS)
        assert {received.payload, left.payload} == {b"a", b"b"}
        handles = [received.receipt_handle, left.receipt_handle]
        assert QueueClient(other).settle("work", handles) == {}


def test_sighup_reads_the_tokens_again(tmp_path: Path) -> None:
    """A token that is taken out of the file ends; a file with a mistake changes nothing."""
    tokens = tmp_path / "tokens.yaml"

    def allow(token: str) -> None:
        digest = hashlib.sha256(token.encode()).hexdigest()
        tokens.write_text(
            f"tokens: [{{name: me, token_sha256: {digest}, roles: {{work: [read]}}}}]"
        )

    allow("first")
    with running_gateway(
        tmp_path, POLICY.replace("queue:", "queue:\n    tokens: tokens.yaml", 1)
    ) as (gateway, url):
        assert QueueClient(url, token="first").queue("work")["messages"] == 0
        allow("second")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for_log("reloaded: plugins.queue.tokens tokens.yaml")
        assert QueueClient(url, token="second").queue("work")["messages"] == 0
        with pytest.raises(AccessError):
            QueueClient(url, token="first").queue("work")
        tokens.write_text("tokens: [17]")
        gateway.process.send_signal(signal.SIGHUP)
        gateway.wait_for_log("not reloaded: tokens.yaml: tokens.0")
        assert QueueClient(url, token="second").queue("work")["messages"] == 0


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    """Whenever the process dies, what it had answered for is stored, once and in order."""
    acknowledged: list[bytes] = []
    lock = threading.Lock()

    def enqueue(url: str, name: str) -> None:
        client = QueueClient(url)
        try:
            for n in range(1_000_000):
                payload = f"{name}-{n}".encode()
                client.enqueue("log", [("a", payload)])
                with lock:
                    acknowledged.append(payload)
        except QueueError:
            pass

    for kill in range(3):
        with running_gateway(tmp_path) as (gateway, url):
            threads = [
                threading.Thread(target=enqueue, args=(url, f"{kill}-{n}")) for n in range(4)
            ]
            for thread in threads:
                thread.start()
            before = len(acknowledged)
            deadline = time.monotonic() + LONG_SECONDS
            while len(acknowledged) < before + 50 * (kill + 1) and time.monotonic() < deadline:
                time.sleep(0.005)
            gateway.kill()
            for thread in threads:
                thread.join()
    with running_gateway(tmp_path) as (_, url):
        stored = stored_payloads(url, "log")
    assert len(acknowledged) >= 300
    assert set(acknowledged) <= set(stored)
    assert len(set(stored)) == len(stored)


def test_second_gateway_on_the_same_file_is_refused(tmp_path: Path) -> None:
    """Another process is told who has the file and ends with status 2."""
    with running_gateway(tmp_path) as (gateway, _):
        second = Program(COMMAND, cwd=tmp_path, is_forked=True)
        assert second.wait() == 2
        assert f"queue.db: in use by process {gateway.process.pid}" in second.log
        assert "Traceback" not in second.log


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plugins: {}", "policy.yaml: plugins.queue: read nothing; allowed: the queues to serve"),
        (
            "plugins: {queue: {queues: {q: {n: 1}}}}",
            "plugins.queue.queues.q.n: read an unknown key",
        ),
        ("plugins: {queue: {http: null, queues: {q: {}}}}", "plugins.queue.http: read null"),
        (
            "plugins: {queue: {path: no/queue.db, queues: {q: {}}}}",
            "no/queue.db.lock cannot be written",
        ),
        (
            "plugins: {queue: {engine: redis, redis: {server: '127.0.0.1:1'}, queues: {q: {}}}}",
            "Redis server 127.0.0.1:1: ",
        ),
        (
            "plugins: {queue: {http: '203.0.113.9:80', engine: memory, queues: {q: {}}}}",
            "http: read 203",
        ),
    ],
)
def test_file_that_cannot_be_used_ends_with_status_2(
    text: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user's mistake is told in words, and the program ends with status 2."""
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(text)
    assert main(["-c", "policy.yaml"]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "Traceback" not in shown


def test_redis_without_its_package_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra that brings it is named."""
    monkeypatch.setitem(sys.modules, "penstock.plugins.queue.engines.redis.engine", None)
    file = tmp_path / "policy.yaml"
    file.write_text("plugins: {queue: {engine: redis, queues: {q: {}}}}")
    assert main(["-c", str(file)]) == 2
    assert "pip install 'penstock-mqtt[redis]'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["serve"], ["--log-level", "info"]])
def test_missing_argument_ends_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The program asks for its policy file, also where the command's name is left out."""
    assert main(argv) == 2
    assert "--config" in capsys.readouterr().err


def test_help_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The program says what it is for."""
    assert main(["--help"]) == 0
    assert "without a broker" in capsys.readouterr().out
