"""`penstock record` beside a real broker and real clients."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.models.__main__ import main as plan
from penstock.models.planner import delivery
from penstock.models.planner.fleet import read_fleet
from penstock.models.recording import recorder
from penstock.models.recording.__main__ import main
from penstock.models.recording.rows import (
    FILES,
    FigureRow,
    MessageRow,
    RttRow,
    SubscriptionRow,
    read_rows,
)
from tests.helpers.certificates import Authority
from tests.helpers.paho_client import PahoClient
from tests.helpers.process import ROOT, BrokerProcess, Program, running_broker

LARGE = b"secret" * 5_000


class Running(NamedTuple):
    """A broker that is watched, and its clients: a subscriber and a publisher."""

    broker: BrokerProcess
    publisher: PahoClient
    authority: Authority

    @property
    def urls(self) -> dict[str, str]:
        """Address by the name of the listener."""
        kinds = {"default": "mqtt", "tls": "mqtts"}
        return {name: f"{kinds[name]}://127.0.0.1:{n}" for name, n in self.broker.ports.items()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a broker whose users have passwords, with TLS on another port."""
    folder = tmp_path_factory.mktemp("broker")
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    subprocess.run(
        [sys.executable, "-m", "penstock.plugins.access", "passwords", "ann"],
        check=True,
        input="a",
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
    )
    (folder / "acl").write_text("user ann\ntopic pictures/#\ntopic news\ntopic read $SYS/#\n")
    policy = {
        "listeners": {
            "default": {"bind": "127.0.0.1:0"},
            "tls": {"bind": "127.0.0.1:0", "ssl": True, **authority.listener_keys()},
        },
        "sys_interval": 0.2,
        "limits": {"subscriptions": 12, "queued_messages": 500},
        "plugins": {
            "access": {"password_file": "passwords", "acl_file": "acl"},
            "probing": {"probe_period": 0.1},
        },
    }
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(policy, folder))
        far = stack.enter_context(PahoClient(broker.port, "far"))
        publisher = stack.enter_context(PahoClient(broker.port, "publisher"))
        assert far.connect("ann", "a")
        assert far.subscribe("$share/all/pictures/+", 1)
        assert publisher.connect("ann", "a")
        yield Running(broker, publisher, authority)


def start_record(folder: Path, url: str, *options: str) -> Program:
    """Start the command as an operator does."""
    password = folder.parent / "password"
    password.write_text("a\n")
    known = ["--username", "ann", "--password-file", str(password), "--topics", "pictures/#"]
    command = [sys.executable, "-m", "penstock.models.recording", str(folder), "--url", url]
    return Program([*command, *known, "--every", "0.1", *options], is_forked=True)


def publish_until(running: Running, folder: Path, *, n_messages: int = 2) -> None:
    """Publish until the recording has so many messages, and a known RTT."""
    while True:
        running.publisher.publish("pictures/1", LARGE)
        try:
            n_found = len(read_rows(folder, MessageRow))
            known = [row for row in read_rows(folder, RttRow) if row.rtt_seconds is not None]
            filters = read_rows(folder, SubscriptionRow)
        except (OSError, ValueError):  # not yet there, or not yet whole
            continue
        if n_found >= n_messages and known and len(filters) > 1:
            return


@pytest.mark.parametrize("listener", ["default", "tls"])
def test_what_a_running_broker_shows_is_recorded_until_ctrl_c(
    running: Running, tmp_path: Path, listener: str
) -> None:
    """Paths of all clients but the recorder, topic filters, and sizes without payloads."""
    folder = tmp_path / "recording"
    options = ["--ca-file", str(running.authority.cafile)] if listener == "tls" else []
    program = start_record(folder, running.urls[listener], *options)
    program.wait_for_log("Ctrl-C ends it")
    publish_until(running, folder)
    assert program.stop(signal.SIGINT) == 0, program.log
    assert "ended: " in program.log
    assert "Traceback" not in program.log
    rtts = read_rows(folder, RttRow)
    assert {row.client for row in rtts} == {"far", "publisher"}
    assert all(row.is_connected for row in rtts)
    assert [row.seconds for row in rtts] == sorted(row.seconds for row in rtts)
    filters = {(row.client, row.topic_filter) for row in read_rows(folder, SubscriptionRow)}
    assert filters == {("far", "pictures/+"), ("publisher", None)}
    sizes = {row[1:] for row in read_rows(folder, MessageRow)}
    assert sizes == {("pictures/1", len(LARGE), None)}
    figures = {row.name for row in read_rows(folder, FigureRow)}
    assert {"penstock/withholding/policy", "penstock/machine/cores"} <= figures
    assert b"secret" not in b"".join((folder / name).read_bytes() for name in FILES.values())


def test_a_plan_for_a_running_broker(
    running: Running,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fleet that was seen, what to change about the present settings, and the gain."""
    monkeypatch.setattr(recorder, "MOST_BYTES", 60_000)  # most of it messages
    monkeypatch.setattr(delivery, "MESSAGES", 500)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            running.publisher.publish("pictures/1", LARGE)

    password = tmp_path / "password"
    password.write_text("a\n")
    file = tmp_path / "fleet.yaml"
    known = ["--username", "ann", "--password-file", str(password), "--topics", "pictures/#"]
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        url = running.urls["default"]
        options = ["--seconds", "3600", "--fleet-out", str(file)]
        assert plan(["--from-running", url, *known, *options]) == 0
    finally:
        is_over.set()
        thread.join()
    told = capsys.readouterr()
    assert "enough was recorded" in told.err
    assert "| `limits.queued_messages` | 500 | 1,000 at least | room for what waits" in told.out
    assert "| `withholding.policy` | none | adaptive | nothing: keep it |" in told.out
    assert "| messages received a second | " in told.out
    fleet = read_fleet(file)
    (kind,) = fleet.devices.values()
    assert (kind.payload_bytes, kind.topics, kind.count) == (len(LARGE), "pictures/+", 1)
    assert fleet.subscribers["far"].share_ratio == 1
    assert fleet.links["far"].rtt_seconds < 10


def test_names_are_hidden_alike_in_all_files(running: Running, tmp_path: Path) -> None:
    """A filter still matches its topics, so that the simulation knows who gets what."""
    folder = tmp_path / "recording"
    program = start_record(folder, running.urls["default"], "--hide-names")
    program.wait_for_log("Ctrl-C ends it")
    while not (folder / FILES[MessageRow]).exists() or len(read_rows(folder, MessageRow)) < 1:
        running.publisher.publish("pictures/1", LARGE)
    while {row.topic_filter for row in read_rows(folder, SubscriptionRow)} <= {None}:
        pass
    assert program.stop(signal.SIGTERM) == 0, program.log
    (topic,) = {row.topic for row in read_rows(folder, MessageRow)}
    (hidden,) = {row.topic_filter for row in read_rows(folder, SubscriptionRow)} - {None}
    assert hidden is not None
    first, last = topic.split("/")
    assert hidden == f"{first}/+"
    assert not {first, last} & {"pictures", "1"}
    text = "".join((folder / name).read_text() for name in FILES.values())
    assert "far" not in text.replace("penstock/", "")


def test_a_recording_ends_at_its_size(running: Running, tmp_path: Path) -> None:
    """The disk does not fill up, and what is there can be read."""
    folder = tmp_path / "recording"
    program = start_record(folder, running.urls["default"], "--max-size", "3 kB")
    assert program.wait() == 0, program.log
    assert "the files are as large as --max-size 3 kB allows" in program.log
    assert sum((folder / name).stat().st_size for name in FILES.values()) <= 3_000
    assert read_rows(folder, FigureRow)


def test_what_cannot_be_recorded_is_said_in_a_line(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, no traceback, and no folder that a second try would stumble over."""
    folder = tmp_path / "recording"
    url = running.urls["default"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    cases = {
        "allowed: mqtt://HOST:PORT": ["--url", "http://127.0.0.1"],
        "allowed: the address of a running broker": ["--url", f"mqtt://127.0.0.1:{free}"],
        "does not let a client in": ["--url", url, "--username", "eve"],
        "--max-size": ["--max-size", "huge"],
        "--password-file": ["--username", "ann", "--password-file", str(tmp_path / "none")],
    }
    for text, options in cases.items():
        assert main([str(folder), *options]) == 2
        assert text in capsys.readouterr().err
        assert not folder.exists()
    (tmp_path / "other").touch()
    password = tmp_path / "password"
    password.write_text("a")
    known = ["--url", url, "--username", "ann", "--password-file", str(password)]
    assert main([str(tmp_path), *known]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([str(folder), *known, "--topics", "news/#/all"]) == 2
    assert "--topics: " in capsys.readouterr().err
    many = [text for number in range(20) for text in ("--topics", f"news/{number}")]
    assert main([str(folder), *known, *many]) == 2
    assert "the broker refuses to be asked for news/" in capsys.readouterr().err
