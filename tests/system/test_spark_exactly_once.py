"""``penstock spark`` writes each message exactly once, whatever is killed.

The program and Spark's Python workers have a folder on `PYTHONPATH` whose modules have the names of
Penstock's folders and raise when they are imported.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml

from benchmarks.queue_kills import QUEUE
from benchmarks.spark_kills import TRIGGER_SECONDS, Driver, run

MESSAGES = 20_000
"""Some twenty micro-batches: the three kills come within the first twelve."""

PIPELINE_MESSAGES = 12_000

HOSTILE = """
import sys
with open({told!r}, "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")
"""
"""Run at the start of each Python that has the folder on its path: tells which program it is."""


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
        written: name of a sink to its payloads, each with how often it was written.
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
