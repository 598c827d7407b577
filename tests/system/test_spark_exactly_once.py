"""``penstock spark`` is killed at its worst moments; each message is in the output once.

Every process of it is killed with SIGKILL: the program, its Java and all Python workers. A proxy
before the queue holds a chosen request, so that the moment is the same in each run.

The program and Spark's Python workers have a folder on `PYTHONPATH` whose modules have the names of
Penstock's folders and raise when they are imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from penstock.plugins.queue.client import QueueClient
from tests.helpers.gateway import ranges, running_gateway
from tests.helpers.stalling_proxy import StallingProxy, stalling_proxy

START_SECONDS = 300.0
BATCH = 1_000
REQUEST = 100

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


def put(client: QueueClient, first: int, count: int) -> list[bytes]:
    """Enqueue numbered messages; return their payloads."""
    payloads = [str(number).encode() for number in range(first, first + count)]
    messages = [("telemetry/h/m", one) for one in payloads]
    assert client.enqueue("telemetry", messages).stored == count
    return payloads


def start(url: str, folder: Path) -> subprocess.Popen[str]:
    """Start the program on what the queue holds, in the hostile folder."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "penstock.spark_bridge", "--url", url, "--queue", "telemetry"),
            *("--output", str(folder / "messages"), "--checkpoint", str(folder / "checkpoint")),
            *("--option", f"max_messages_per_batch={BATCH}"),
            *("--option", f"max_messages_per_request={REQUEST}"),
        ],
        cwd=folder / "hostile",
        env=os.environ | {"PYTHONPATH": str(folder / "hostile")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_at(proxy: StallingProxy, folder: Path, path_part: str, nth: int) -> None:
    """Run the program up to a request, then kill all of its processes."""
    proxy.stall_at(path_part, nth)
    with start(proxy.url, folder) as program:
        reached = proxy.wait_for_stall(START_SECONDS)
        processes = [psutil.Process(program.pid)]
        processes += processes[0].children(recursive=True)
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # a worker ends as its parent is gone
                process.kill()
        psutil.wait_procs(processes, START_SECONDS)
        assert reached, program.communicate()[0]
    proxy.go_on()


def newest(folder: Path, log: str) -> int:
    """Return the number of the newest micro-batch in one of the checkpoint's logs; -1 for none."""
    files = (folder / "checkpoint" / "ingest" / log).glob("[0-9]*")
    return max((int(file.name) for file in files), default=-1)


@pytest.mark.timeout(4 * START_SECONDS)
def test_a_query_killed_in_mid_batch_and_started_again_writes_each_message_once(
    tmp_path: Path, hostile: Path
) -> None:
    """No message is lost and none comes twice, for Spark and for any reader of the files."""
    with running_gateway(tmp_path) as client, stalling_proxy(client.url) as proxy:
        sent = put(client, 0, 3 * BATCH)

        kill_at(proxy, tmp_path, "/commit", nth=1)
        # A batch is written and the next one planned, but the queue was not told.
        assert (newest(tmp_path, "offsets"), newest(tmp_path, "commits")) == (1, 0)
        assert {first for first, _ in ranges(client).values()} == {0}
        sent += put(client, len(sent), 100)

        kill_at(proxy, tmp_path, "/range", nth=BATCH // REQUEST + 5)
        # In the middle of a later batch, with what came before it deleted from the queue.
        assert (newest(tmp_path, "offsets"), newest(tmp_path, "commits")) == (2, 1)
        assert 0 not in {first for first, _ in ranges(client).values()}
        assert list((tmp_path / "messages").glob("part-*"))

        with start(proxy.url, tmp_path) as program:
            output, _ = program.communicate()
        assert program.returncode == 0, output
        held = ranges(client).values()
        assert [first for first, _ in held] == [following for _, following in held]

    told = (hostile / "told").read_text()
    assert "-m penstock.spark_bridge --url" in told
    assert "-m pyspark.daemon" in told

    # Not read through Spark's own list of files: nothing else may lie there either.
    rows = ds.dataset(tmp_path / "messages", format="parquet", exclude_invalid_files=False)
    table = rows.to_table(columns=["physical_queue", "offset", "payload"])
    assert Counter(table.column("payload").to_pylist()) == Counter(sent)
    places = zip(
        *(table.column(name).to_pylist() for name in ("physical_queue", "offset")), strict=True
    )
    assert len(set(places)) == len(sent)
