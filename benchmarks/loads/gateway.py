"""The queue's gateway as a process, for benchmarks of the queue."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.errors import BenchmarkError
from penstock.netem.runs.broker_process import ENVIRONMENT

FILE = "queue.db"
"""The queue's database, a name in the folder in which its gateway runs."""


class Gateway(NamedTuple):
    """A gateway that runs.

    Attributes:
        urls: the URLs of its APIs, in the order ``http``, ``sqs``.
    """

    pid: int
    urls: list[str]


def section(name: str, queue: Mapping[str, Any], *, engine: str = "sqlite") -> dict[str, Any]:
    """Return the section of the plugin with one logical queue and the HTTP API; see `gateway`."""
    return {"engine": engine, "path": FILE, "http": "127.0.0.1:0", "queues": {name: dict(queue)}}


@contextmanager
def running_gateway(folder: Path, plugin: Mapping[str, Any]) -> Iterator[Gateway]:
    """Run ``penstock queue`` in a folder.

    Raises:
        BenchmarkError: it did not start.
    """
    (folder / "policy.yaml").write_text(json.dumps({"plugins": {"queue": plugin}}))
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
    ) as process:
        try:
            urls: list[str] = []
            told = ""
            while len(urls) < len({"http", "sqs"} & set(plugin)):
                line = "" if process.stderr is None else process.stderr.readline()
                if not line:
                    raise BenchmarkError(f"the gateway did not start: {told}")
                told += line
                urls += re.findall(r"listens on (http://\S+)", line)
            yield Gateway(process.pid, urls)
        finally:
            process.terminate()


@contextmanager
def gateway(
    folder: Path, name: str, queue: Mapping[str, Any], *, engine: str = "sqlite"
) -> Iterator[str]:
    """Run ``penstock queue`` in a folder; yield its URL.

    Raises:
        BenchmarkError: it did not start.
    """
    with running_gateway(folder, section(name, queue, engine=engine)) as running:
        yield running.urls[0]
