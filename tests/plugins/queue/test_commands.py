from __future__ import annotations

import io
import json
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.__main__ import main
from penstock.plugins.queue.client import OtherIncarnationError, QueueClient, QueueError
from tests.helpers.gateway import gateway_of, running_gateway
from tests.helpers.redis_server import shared_redis

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns what it prints."""

    def run_it(*argv: str, status: int = 0) -> str:
        ended = main(list(argv))
        shown = capsys.readouterr()
        assert ended == status, shown.err
        assert "Traceback" not in shown.err
        return shown.err if status else shown.out

    return run_it


def fill(client: QueueClient) -> None:
    """Make the queue `work` with two messages and a dead letter, which is in `failed`."""
    client.put_queue("failed", {"physical_queues": 1})
    group = {"dead_letter_queue": "failed"}
    client.put_queue("work", {"physical_queues": 1, "groups": {"default": group}})
    client.enqueue("work", [(f"a/{n}", b"payload %d" % n) for n in range(3)])
    (first,) = client.receive("work", max_messages=1, wait_seconds=5)
    client.settle("work", [first.receipt_handle], "dead")


@pytest.fixture(params=["server", "file"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Return the arguments that name a server with queues, or the file of one that has ended."""
    if request.param == "server":
        with running_gateway(tmp_path) as client:
            fill(client)
            yield ["--url", client.url]
    else:
        with running_gateway(tmp_path) as client:
            fill(client)
        yield ["-c", str(tmp_path / "policy.yaml")]


def test_messages_are_counted_shown_and_moved(run: Run, at: list[str]) -> None:
    """What an operator does with dead letters, with and without a server."""
    rows = [line.split() for line in run("stats", *at).splitlines()]
    assert ["failed", "1"] in [row[:2] for row in rows]
    assert ["work", "default", "lease", "2"] in [row[:4] for row in rows]
    (work,) = json.loads(run("stats", "work", "--json", *at))
    assert (work["name"], work["messages"]) == ("work", 2)

    shown = run("peek", "work", "--group", "default", "--max-messages", "1", *at)
    assert len(shown.splitlines()) == 2
    (dead,) = json.loads(run("peek", "failed", "--json", *at))
    assert dead["topic"] == "a/0"

    assert run("redrive", "failed", "--max-messages", "5", *at) == "1 messages moved\n"
    assert run("purge", "work", "--yes", *at) == "3 messages removed\n"
    assert run("peek", "work", *at).count("\n") == 1


def test_queues_and_groups_are_made_changed_and_deleted(run: Run, at: list[str]) -> None:
    """Settings are keys of the policy file; those that are not named stay."""
    settings = ["--set", "max_messages=10", "--set", "topics=[b/#]"]
    assert run("create", "new", *settings, *at) == "queue new created\n"
    assert run("create", "new", "late", "--set", "kind=offsets", *at) == (
        "group late of queue new created\n"
    )
    assert "queue new: read one that exists" in run("create", "new", *at, status=2)
    assert run("change", "new", "--set", "retention_seconds=60", *at) == "queue new changed\n"
    (new,) = json.loads(run("stats", "new", "--json", *at))
    changed = {name: new["settings"][name] for name in ("max_messages", "retention_seconds")}
    assert changed == {"max_messages": 10, "retention_seconds": 60}
    assert new["settings"]["topics"] == ["b/#"]
    assert sorted(new["groups"]) == ["default", "late"]
    run("change", "new", "default", "--set", "visibility_timeout=5", *at)
    (new,) = json.loads(run("stats", "new", "--json", *at))
    assert new["groups"]["default"]["settings"]["visibility_timeout"] == 5
    assert "frequency" in run("change", "new", "--set", "frequency=5", *at, status=1)

    run("delete", "new", "late", "--yes", *at)
    (new,) = json.loads(run("stats", "new", "--json", *at))
    assert sorted(new["groups"]) == ["default"]
    assert run("delete", "new", "--yes", *at) == "queue new deleted\n"
    assert "new" in run("stats", "new", *at, status=1)


def test_groups_are_moved(run: Run, at: list[str]) -> None:
    """Forward leaves messages out, back brings those that are there again."""
    run("create", "work", "audit", "--set", "kind=offsets", *at)

    def waiting() -> int:
        (work,) = json.loads(run("stats", "work", "--json", *at))
        n: int = work["groups"]["audit"]["waiting"]
        return n

    there = waiting()
    assert there >= 2
    run("seek", "work", "audit", "latest", "--yes", *at)
    # Nothing leaves that the group `default` has not settled.
    assert waiting() == 0
    run("seek", "work", "audit", "earliest", *at)
    assert waiting() == there
    run("seek", "work", "audit", "2001-01-01T00:00:00Z", "--yes", *at)
    assert waiting() == there


def test_the_database_is_compacted_and_copied(run: Run, at: list[str], tmp_path: Path) -> None:
    """The copy is a database of queues."""
    assert run("compact", *at).endswith(" bytes given back\n")
    copy = tmp_path / "copy.db"
    assert run("backup", str(copy), *at).endswith(f" bytes written to {copy}\n")
    policy = f"plugins: {{queue: {{path: {copy}, http: null, queues: {{work: {{}}}}}}}}"
    (tmp_path / "copy.yaml").write_text(policy)
    (work,) = json.loads(run("stats", "work", "--json", "-c", str(tmp_path / "copy.yaml")))
    assert work["messages"] == 2


def test_each_command_answers_with_json(run: Run, at: list[str], tmp_path: Path) -> None:
    """Those that change something, too."""

    def answer(*argv: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(run(*argv, "--json", *at))
        return found

    copy = str(tmp_path / "copy.db")
    written = answer("backup", copy)
    assert written == {"path": copy, "bytes": Path(copy).stat().st_size}
    assert answer("create", "new", "--set", "physical_queues=1") == {"queue": "new", "group": None}
    assert answer("change", "new", "--set", "max_messages=10") == {"queue": "new", "group": None}
    assert answer("create", "new", "late", "--set", "kind=offsets")["group"] == "late"
    assert answer("seek", "new", "late", "earliest") == {"position": {"0": 0}}
    assert answer("delete", "new", "late", "--yes") == {"queue": "new", "group": "late"}
    assert answer("redrive", "failed") == {"moved": 1}
    assert answer("purge", "work", "--yes") == {"removed": 3}
    assert list(answer("compact")) == ["freed_bytes"]


def test_a_copy_takes_the_place_of_the_database(run: Run, tmp_path: Path) -> None:
    """Made by a backup or by other means; readers learn that offsets are given again."""
    with running_gateway(tmp_path) as client:
        fill(client)
        client.backup(str(tmp_path / "copy.db"))
        before = client.position("work", "latest")
    at = ["-c", str(tmp_path / "policy.yaml")]
    database = tmp_path / "queue.db"
    restore = ["restore", str(tmp_path / "copy.db"), *at]
    told = run(*restore, status=2)
    assert "read a database there; allowed: none. Move it away" in told
    database.rename(tmp_path / "by hand.db")
    assert run(*restore) == f"3 queues restored to {database}\n"
    assert database.stat().st_mode & 0o077 == 0
    seen = set()
    for _ in range(2):
        with running_gateway(tmp_path) as client:
            assert client.queue("work")["messages"] == 2
            with pytest.raises(OtherIncarnationError):
                client.plan("work", before)
            seen.add(client.position("work").incarnation)
        if len(seen) == 1:
            database.unlink()
            run("restore", str(tmp_path / "by hand.db"), *at)
    assert len({*seen, before.incarnation}) == 3


def test_what_cannot_be_restored_is_told(run: Run, tmp_path: Path) -> None:
    """Nothing is written."""
    with running_gateway(tmp_path):
        pass
    (tmp_path / "queue.db").unlink()
    at = ["-c", str(tmp_path / "policy.yaml")]
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    (tmp_path / "text").write_text("no database" * 1000)
    for name, wanted in (("missing", "read no file"), ("other.db", "read something else")):
        assert wanted in run("restore", str(tmp_path / name), *at, status=2)
    assert "not a database" in run("restore", str(tmp_path / "text"), *at, status=2)
    assert "allowed with sqlite: a copy of the database" in run("restore", *at, status=2)
    assert not (tmp_path / "queue.db").exists()
    with running_gateway(tmp_path) as client:
        client.backup(str(tmp_path / "copy.db"))
        assert "in use by process" in run("restore", str(tmp_path / "copy.db"), *at, status=2)


def test_queues_of_a_restored_server_get_other_incarnations(run: Run, tmp_path: Path) -> None:
    """There is no file to restore: the server's own means have done that."""
    prefix = f"test-{uuid.uuid4().hex}"
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": prefix}
    section = {"engine": "redis", "redis": redis, "http": "127.0.0.1:0", "queues": {"q": {}}}
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"plugins": {"queue": section}}))
    with gateway_of(policy) as client:
        before = client.position("q").incarnation
        assert run("restore", "-c", str(policy)) == "1 queues have another incarnation\n"
        assert "allowed with redis: no FILE" in run("restore", "x", "-c", str(policy), status=2)
    with gateway_of(policy) as client:
        assert client.position("q").incarnation != before


def test_a_server_that_has_the_file_is_told(run: Run, tmp_path: Path) -> None:
    """A database has one process at a time."""
    with running_gateway(tmp_path):
        # Its port is not in the file.
        told = run("stats", "-c", str(tmp_path / "policy.yaml"), status=2)
    assert "queue.db: in use by process" in told


def test_the_address_of_a_policy_file_is_asked_first(run: Run, tmp_path: Path) -> None:
    """With a server on it, the file is left to the server."""
    with reserved_port() as port, running_gateway(tmp_path, bind=f"127.0.0.1:{port}"):
        assert "telemetry" in run("stats", "-c", str(tmp_path / "policy.yaml"))
    assert "telemetry" in run("stats", "-c", str(tmp_path / "policy.yaml"))


def test_a_server_that_does_not_answer_is_one_line_and_status_1(run: Run) -> None:
    """The line names the address, and what would answer."""
    with reserved_port() as port:
        told = run("stats", "--url", f"http://127.0.0.1:{port}", status=1)
    assert told.startswith(f"penstock queue: no answer from http://127.0.0.1:{port}: ")
    assert "; allowed: a program with the plugin queue" in told
    assert told.count("\n") == 1


def test_memory_of_a_program_that_has_ended_is_gone(run: Run, tmp_path: Path) -> None:
    """Without a server there is nothing to look at."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("plugins: {queue: {engine: memory, http: null, queues: {q: {}}}}")
    told = run("stats", "-c", str(policy), status=2)
    assert "plugins.queue.engine: read memory, and no server runs" in told


def test_something_else_that_answers_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of another form are no traceback."""
    monkeypatch.setattr(QueueClient, "queues", lambda _: [{}])
    assert "something else answers there" in run("stats", status=2)

    def refuse(_: QueueClient) -> None:
        raise QueueError(418, "I am a \x1b[2J teapot")

    monkeypatch.setattr(QueueClient, "queues", refuse)
    assert run("stats", status=1) == "penstock queue: 418: I am a \\x1b[2J teapot\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["stats", "--url", "nowhere"], "--url: queue URL: read 'nowhere'; allowed: http://HOST"),
        (["stats", "--url", "http://h", "-c", "x"], "--url: read --url and -c; allowed: one of"),
        (["stats", "-c", "missing.yaml"], "missing.yaml"),
        (["stats", "--token-file", "missing"], "--token-file: "),
        (["stats", "--url", "https://h", "--ca-file", "missing"], "--ca-file: missing cannot be"),
        (["seek", "q", "g", "yesterday"], "TO: read 'yesterday'; allowed: earliest, latest, a"),
        (["create", "q", "--set", "kind"], "--set: read 'kind'; allowed: KEY=VALUE"),
        (["create", "q", "--set", "topics=[a"], "--set: read 'topics=[a'; allowed: KEY=VALUE"),
        (["change", "q"], "--set: read none; allowed: one or more KEY=VALUE"),
        (["peek", "q", "--max-messages", "0"], "read '0'; allowed: 1 or more"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_arguments_end_with_status_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], told: str
) -> None:
    """What was read and what is allowed, before anything is asked."""
    monkeypatch.chdir(tmp_path)
    assert told in run(*argv, status=2)


@pytest.mark.parametrize(
    "argv", [["purge", "q"], ["delete", "q"], ["delete", "q", "g"], ["seek", "q", "g", "latest"]]
)
def test_what_cannot_be_undone_is_asked_first(
    run: Run, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    """A script says --yes; somebody at a terminal may say no."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert "allowed: --yes" in run(*argv, status=2)
    asked = io.StringIO("n\n")
    monkeypatch.setattr(asked, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", asked)
    assert "Aborted" in run(*argv, status=1)
