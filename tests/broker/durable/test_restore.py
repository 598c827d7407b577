"""``penstock restore`` puts a backup in its place, or changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from penstock.broker.check import restore_main
from penstock.plugins.console.commands.running import backup_main
from penstock.plugins.queue.client import QueueClient
from tests.helpers.paho_client import PahoClient, connect_properties
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker

TOKEN: Final = "a-token-of-an-admin"

POLICY: Final[dict[str, Any]] = anonymous_policy(
    {
        "console": {"http": "127.0.0.1:0", "token_file": "tokens"},
        "queue": {"http": "127.0.0.1:0", "path": "q.db", "queues": {"work": {"topics": ["work"]}}},
    },
    persistence={"path": "s.db"},
)
LASTING: Final = connect_properties(SessionExpiryInterval=3_600)


def restored(*arguments: str) -> int:
    """Run the command for the backup `copy`, and return its status."""
    return restore_main(["copy", "-c", "policy.yaml", *arguments])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(yaml.safe_dump(POLICY))
    Path("tokens").write_text(f"ines admin {TOKEN}\n")
    Path("token").write_text(TOKEN)


def publish(broker: BrokerProcess, text: bytes) -> None:
    """Publish to a session and to a queue."""
    with PahoClient(broker.port, "publisher") as publisher:
        assert publisher.connect()
        for topic in ("t", "work"):
            publisher.publish(topic, text)


def test_a_broker_goes_on_from_its_backup(capsys: pytest.CaptureFixture[str]) -> None:
    """With its sessions, their messages and its queues; what came later is gone."""
    with running_broker(POLICY, Path.cwd()) as broker:
        with PahoClient(broker.port, "s") as client:
            assert client.connect(clean_start=False, properties=LASTING)
            assert client.subscribe("t", 1)
        publish(broker, b"before")
        console = ["--url", broker.console_url, "--token-file", "token"]
        assert backup_main(["copy", *console]) == 0
        publish(broker, b"after")
        assert restored("--yes") == 2
        assert f"in use by process {broker.process.pid}" in capsys.readouterr().err
        assert broker.stop() == 0

    assert restored() == 2
    assert "read no terminal to ask on; allowed: --yes" in capsys.readouterr().err
    assert restored("--yes") == 0
    assert (
        capsys.readouterr().out
        == "q.db is that of copy/queue.db\ns.db is that of copy/sessions.db\n"
    )
    assert not list(Path().glob("*.part"))
    with running_broker(POLICY, Path.cwd()) as broker, PahoClient(broker.port, "s") as client:
        assert client.connect(clean_start=False, properties=LASTING)
        assert client.message().payload == b"before"
        with PahoClient(broker.port, "publisher") as publisher:
            assert publisher.connect()
            publisher.publish("t", b"new")
        assert client.message().payload == b"new"
        received = QueueClient(broker.queue_url).receive("work", max_messages=10)
        assert [message.payload for message in received] == [b"before"]


def test_what_is_no_backup_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A file of no database of the policy file, one that is broken, and none at all."""
    Path("s.db").write_bytes(b"as it was")
    told = {
        "": "copy: read no backup; allowed: queue.db, sessions.db",
        "other.db": "copy: read other.db; allowed: queue.db, sessions.db",
        "sessions.db": "copy/sessions.db: read file is not a database; allowed: a file of penstock",
    }
    Path("copy").mkdir()
    for name, error in told.items():
        if name:
            Path("copy", name).write_bytes(b"x" * 10_000)
        assert restored("--yes") == 2
        assert error in capsys.readouterr().err
        for copy in Path("copy").iterdir():
            copy.unlink()
    assert Path("s.db").read_bytes() == b"as it was"
