from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml

from tests.campaigns import spark_kills
from tests.campaigns.faults.case import Finding
from tests.campaigns.queue_kills import QUEUE
from tests.campaigns.spark_kills import (
    QUICK_KILLS,
    TRIGGER_SECONDS,
    VICTIMS,
    Driver,
    Place,
    drawn,
    judge,
    main,
    run,
)

RIGHT: list[tuple[Place, bytes]] = [(("load", 0, 0), b"0"), (("load", 1, 0), b"1")]


def broken(rows: list[tuple[Place, bytes]]) -> dict[str, float]:
    """Return the values of promises that two messages' rows break."""
    return {each.name: each.value for each in judge(rows, 2) if each.is_met is False}


def test_each_message_once_breaks_nothing() -> None:
    """In any order."""
    assert broken(RIGHT[::-1]) == {}


@pytest.mark.parametrize(
    ("rows", "promises"),
    [
        (RIGHT[:1], {"messages lost": 1}),
        ([*RIGHT, (("load", 1, 1), b"1")], {"messages written again": 1}),
        ([*RIGHT, RIGHT[0]], {"messages written again": 1, "rows of a place that has another": 1}),
        ([*RIGHT, (("load", 1, 1), b"2")], {"rows that nobody published": 1}),
    ],
)
def test_each_broken_promise_is_found(
    rows: list[tuple[Place, bytes]], promises: dict[str, float]
) -> None:
    """One row too much, or too few."""
    assert broken(rows) == promises


@pytest.mark.parametrize("seed", range(3))
def test_a_quick_run_kills_each_kind_of_victim(seed: int) -> None:
    """Whatever the seed; in an order that the seed says."""
    assert sorted(drawn(QUICK_KILLS, seed)) == sorted(VICTIMS)
    assert drawn(7, seed)[:QUICK_KILLS] == drawn(QUICK_KILLS, seed)


def test_a_broken_promise_ends_the_program_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the first line; the file has every number."""
    asked = []

    def pretended(count: int, victims: list[str], seed: int, *, engine: str) -> list[Finding]:
        asked.append((count, "redis" in victims, len(victims), seed, engine))
        return judge(RIGHT[:1], 2)

    monkeypatch.setattr(spark_kills, "run", pretended)
    file = tmp_path / "found.json"
    assert main(["--quick", "--seed", "7", "--json", str(file)]) == 1
    assert main(["--messages", "9", "--kills", "0"]) == 1
    assert main(["--messages", "9", "--kills", "5", "--engine", "redis"]) == 1
    assert asked == [
        (20_000, False, 5, 7, "sqlite"),
        (9, False, 0, 1, "sqlite"),
        (9, True, 5, 1, "redis"),
    ]
    assert capsys.readouterr().out.startswith("promises broken: sqlite: messages lost\n")
    assert json.loads(file.read_text())["found"]["sqlite"]["messages lost"] == 1


MESSAGES = 20_000
"""The number of messages, for some twenty micro-batches: the three kills are within the first
twelve."""

PIPELINE_MESSAGES = 12_000

HOSTILE = """
import sys
with open({told!r}, "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")
"""
"""A program that each Python with the folder on its path runs at its start, and that records
which program it is."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder whose modules raise on import; its file `told` has a line for each Python."""
    folder = tmp_path / "hostile"
    for name in ("edge_proxy", "models", "netem", "plugins", "spark_bridge"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    (folder / "broker.py").write_text("raise SystemExit('the wrong broker')\n")
    (folder / "sitecustomize.py").write_text(HOSTILE.format(told=str(folder / "told")))
    return folder


@pytest.mark.timeout(1_200)
def test_each_message_is_written_once_whatever_is_killed(hostile: Path) -> None:
    """The driver, a broker that a gateway replaces, and a worker, at random moments.

    No message is lost and none comes twice, for Spark and for any reader of the files.
    """
    environment = os.environ | {"PYTHONPATH": str(hostile)}
    findings = run(MESSAGES, ["driver", "server", "worker"], 1, environment=environment)
    assert not [each for each in findings if each.is_met is False], findings
    found = {each.name: each.value for each in findings}
    assert found["rows"] == MESSAGES
    assert found["starts of the driver"] >= 2
    told = (hostile / "told").read_text()
    assert "-m penstock.spark_bridge --url" in told
    assert "-m pyspark.daemon" in told


class PipelineDriver(Driver):
    """A pipeline of three sinks: all messages, some of them, and those that are no JSON objects.

    Attributes:
        written: the payloads of each sink, each with the number of times that it was written.
    """

    def __init__(
        self, url: str, folder: Path, environment: Mapping[str, str], options: Sequence[str]
    ) -> None:
        super().__init__(url, folder, environment, options)
        self.written: dict[str, Counter[bytes]] = {}
        sinks = {
            "messages": {"group": "spark", "options": {"path": str(folder / "messages")}},
            "some": {"options": {"path": str(folder / "some")}},
            "quarantined": {"options": {"path": str(folder / "quarantined")}},
        }
        pipeline = {
            "name": "kills",
            "storage": str(folder / "storage"),
            "source": {"url": url, "queue": QUEUE}
            | dict(one.split("=", 1) for one in self.options),
            "decode": {"format": "json", "schema": "a INT"},
            "views": {"some": "SELECT * FROM messages WHERE payload LIKE '%7'"},
            "sinks": sinks,
        }
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
        self.checkpoint = folder / "storage" / "checkpoints" / "messages"
        self.command = [
            *(sys.executable, "-m", "penstock.spark_bridge", "run", "pipeline.yaml"),
            *("--trigger", f"{TRIGGER_SECONDS}", "--short-run"),
        ]

    def end(self) -> int:
        """Have it read what is left and end; take every file of each sink."""
        status = super().end()
        for name in ("messages", "some", "quarantined"):
            table = ds.dataset(
                self.folder / name, format="parquet", exclude_invalid_files=False
            ).to_table(["payload"])
            self.written[name] = Counter(table.column("payload").to_pylist())
        return status


@pytest.mark.timeout(1_200)
def test_each_message_is_written_once_to_each_sink_of_a_pipeline() -> None:
    """Between the sinks, too: none of their queries is at the place of the others."""
    drivers: list[PipelineDriver] = []

    def make(
        url: str, folder: Path, environment: Mapping[str, str], options: Sequence[str]
    ) -> Driver:
        drivers.append(PipelineDriver(url, folder, environment, options))
        return drivers[0]

    findings = run(PIPELINE_MESSAGES, ["driver", "java", "driver"], 1, make_driver=make)
    assert not [each for each in findings if each.is_met is False], findings
    payloads = Counter(str(number).encode() for number in range(PIPELINE_MESSAGES))
    some = Counter(payload for payload in payloads if payload.endswith(b"7"))
    (driver,) = drivers
    assert driver.n_starts >= 3
    assert driver.written == {"messages": payloads, "quarantined": payloads, "some": some}
