"""Run it with `pytest` where penstock, penstock-recorder and paho-mqtt are installed."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

from paho.mqtt.publish import single
from penstock_recorder import FileSink

from penstock.broker.message import Message


class Acknowledgement:
    """Stands for a publisher that waits for its PUBACK."""

    deduplication_id = b""
    is_repeat = False

    def __init__(self) -> None:
        self.reason_code: int | None = None

    def settle(self, reason_code: int) -> None:
        """Take note of the outcome."""
        self.reason_code = reason_code


def test_a_message_is_acknowledged_once_it_is_written(tmp_path: Path) -> None:
    """The sink alone, without a broker."""
    acknowledgement = Acknowledgement()
    file = tmp_path / "messages.jsonl"

    async def publish() -> None:
        sink = FileSink(["#"])
        sink.write_to(file.open("a", encoding="utf-8"))
        sink.accept(Message("t", b"\xff", qos=1), acknowledgement)
        assert acknowledgement.reason_code is None
        await asyncio.sleep(0)
        assert (sink.counts.matched, sink.counts.stored) == (1, 1)
        sink.close()

    asyncio.run(publish())
    assert acknowledgement.reason_code == 0
    assert json.loads(file.read_text())["base64"] == "/w=="


def test_a_broker_records_what_a_client_publishes(tmp_path: Path) -> None:
    """A real broker, with a policy file, and a real client."""
    (tmp_path / "policy.yaml").write_text(
        "listeners: {default: {bind: '127.0.0.1:0'}}\n"
        "plugins:\n"
        "  recorder: {file: messages.jsonl, topics: ['sensors/#']}\n"
    )
    command = [sys.executable, "-m", "penstock.broker", "-c", "policy.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stderr is not None
        ports = (re.search(r"listening on \S+:(\d+)$", line.rstrip()) for line in broker.stderr)
        port = next(int(found[1]) for found in ports if found is not None)
        for topic, payload in (("sensors/1", "20.5"), ("other", "-"), ("sensors/2", "21")):
            single(topic, payload, qos=1, hostname="127.0.0.1", port=port)
        broker.terminate()
        broker.stderr.read()
    rows = [json.loads(line) for line in (tmp_path / "messages.jsonl").read_text().splitlines()]
    assert [(row["topic"], row["payload"]) for row in rows] == [
        ("sensors/1", "20.5"),
        ("sensors/2", "21"),
    ]
