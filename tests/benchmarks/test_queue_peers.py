from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import queue_peers
from benchmarks.errors import BenchmarkError
from benchmarks.loads import queue_servers
from benchmarks.loads.queue_servers import RABBITMQ, missing_rabbitmq, rabbitmq_settings
from benchmarks.queue_peers import Consumers, QueueRunSize, main

MQTT_FIGURES = {"publish", "drain", "through", "p50", "p99"}


def measured(
    peers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return every figure of some peers at a tiny size."""
    monkeypatch.setattr(queue_peers, "QUICK", QueueRunSize(500, 200, 0.5, 40))
    file = tmp_path / "results.json"
    arguments = ["--quick", "--repeats", "1", "--folder", str(tmp_path), "--json", str(file)]
    assert main([*arguments, "--peers", peers]) == 0
    document: dict[str, dict[str, dict[str, list[float]]]] = json.loads(file.read_text())
    return document


def test_penstock_and_moto_are_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in the tables that it can be in; what servers wrote is gone afterwards."""
    document = measured("penstock,moto", tmp_path, monkeypatch)
    assert set(document["mqtt"]) == {"penstock"}
    assert set(document["mqtt"]["penstock"]) == MQTT_FIGURES
    assert set(document["sqs"]) == {"penstock", "moto"}
    assert all(value > 0 for (value,) in document["sqs"]["moto"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    shown = capsys.readouterr().out
    assert "| send | messages/s | moto |" in shown
    assert "SQLite, durability full" in shown


def test_rabbitmq_is_measured_or_what_it_needs_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is installed; else the package by name, and status 1.

    A node takes ten seconds of processor time to start, and the kinds of queue differ in one word
    of the declaration: one kind is measured.
    """
    peer = "rabbitmq-quorum"
    if not missing_rabbitmq():
        document = measured(peer, tmp_path, monkeypatch)
        assert set(document["mqtt"]) == {peer}
        assert set(document["mqtt"][peer]) == MQTT_FIGURES
        return
    assert main(["--quick", "--repeats", "1", "--peers", peer]) == 1
    assert f"{peer} is left out; it needs " in capsys.readouterr().out


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's, and the Python client."""
    monkeypatch.setattr(queue_servers, "RABBITMQ", Path("/nowhere"))
    assert missing_rabbitmq() == "RabbitMQ: apt-get install rabbitmq-server"
    monkeypatch.setattr(queue_servers, "RABBITMQ", Path(__file__))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert missing_rabbitmq() == "the Python package pika: pip install -e '.[peers]'"


def test_a_rabbitmq_node_is_kept_to_its_folder_and_to_loopback(tmp_path: Path) -> None:
    """Its files, its name, its cookie and its ports are its own."""
    ports = {"amqp": 1001, "mqtt": 1002, "distribution": 1003, "epmd": 1004}
    settings = rabbitmq_settings(tmp_path, ports)
    for name in ("MNESIA_BASE", "LOG_BASE", "CONFIG_FILE", "ENABLED_PLUGINS_FILE", "PID_FILE"):
        assert settings[f"RABBITMQ_{name}"].startswith(str(tmp_path))
    assert settings["HOME"] == str(tmp_path)
    assert settings["RABBITMQ_NODENAME"] == "penstock-bench-1001@localhost"
    assert (settings["RABBITMQ_DIST_PORT"], settings["ERL_EPMD_PORT"]) == ("1003", "1004")
    config = (tmp_path / "rabbitmq.conf").read_text()
    assert "listeners.tcp.local = 127.0.0.1:1001" in config
    assert "mqtt.listeners.tcp.local = 127.0.0.1:1002" in config
    assert (tmp_path / ".erlang.cookie").stat().st_mode & 0o777 == 0o400
    assert RABBITMQ.is_absolute()


class Said:
    """A consumer process that has said something and then ended."""

    def __init__(self, *lines: dict[str, object]) -> None:
        self._lines: list[dict[str, object]] = [{"ready": True}, *lines]

    def tell(self, **_: object) -> None:
        """Take a line."""

    def answer(self) -> dict[str, object]:
        """Return the next line."""
        if not self._lines:
            raise BenchmarkError("queue_drain ended: out of memory")
        return self._lines.pop(0)

    def close(self) -> None:
        """End."""


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([0, 1, 1], "some more than once"),
        ([0, 1, 2, 2], "some more than once"),
        ([0, 2], "a consumer failed: queue_drain ended: out of memory"),
    ],
)
def test_a_repeated_or_lost_message_ends_the_measurement(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], told: str
) -> None:
    """Each of the three messages has to come once."""
    batch = {"messages": len(numbers), "sum": sum(numbers), "at": 1.0, "late": [0.0] * len(numbers)}
    monkeypatch.setattr(queue_peers, "Side", lambda *_: Said(batch))
    monkeypatch.setattr(queue_peers, "CONSUMERS", 1)
    consumers = Consumers(queue_servers.QueueServer())
    consumers.begin()
    with pytest.raises(BenchmarkError, match=told):
        consumers.take(3)
    consumers.close()
