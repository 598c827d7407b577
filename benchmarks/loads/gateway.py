"""The queue's gateway as a process, for benchmarks of the queue."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from penstock.netem.runs.broker_process import ENVIRONMENT

FILE = "queue.db"
"""Of the queue, in the folder in which its gateway runs."""


@contextmanager
def gateway(
    folder: Path, name: str, queue: Mapping[str, Any], *, engine: str = "sqlite"
) -> Iterator[str]:
    """Run ``penstock queue`` in a folder; yield its URL.

    Args:
        folder: with the file of the queue, or without it yet.
        name: of its one logical queue.
        queue: the keys of that.
        engine: of the policy file.

    Raises:
        BenchmarkError: it did not start.
    """
    section = {
        "engine": engine,
        "path": FILE,
        "http": "127.0.0.1:0",
        "queues": {name: dict(queue)},
    }
    (folder / "policy.yaml").write_text(json.dumps({"plugins": {"queue": section}}))
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.plugins.queue", "-c", "policy.yaml"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=ENVIRONMENT,
    ) as process:
        try:
            told = "" if process.stderr is None else process.stderr.readline()
            found = re.search(r"listens on (http://\S+)", told)
            if found is None:
                raise BenchmarkError(f"the gateway did not start: {told}")
            yield found[1]
        finally:
            process.terminate()
