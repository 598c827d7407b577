"""How long does it take from a machine with Python to a page that one has logged in to?

The steps of the README in a new clone, virtual environment and folder: `pip install`, without pip's
cache, `penstock init`, `penstock broker`, and the login with the password that was shown. Ports are
free ones, as others may run here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.errors import BenchmarkError
from benchmarks.program import FiguresFile, Program, doubts, running_command, tell
from penstock.netem.figures.figure_file import Table, begin, check_writable, write_figure_file
from penstock.netem.runs.broker_process import reserved_port

ROOT: Final = Path(__file__).resolve().parents[1]
WAIT_SECONDS: Final = 60.0
STEPS: Final = (
    "a virtual environment",
    "`pip install .`",
    "`penstock init`",
    "the page, logged in",
)


def login(url: str, password: str) -> None:
    """Log in as a browser does, and read the page and who one is; wait for the broker first.

    Raises:
        BenchmarkError: the broker does not answer, or refuses.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).close()  # noqa: S310 (ours)
            break
        except (urllib.error.URLError, ConnectionError) as error:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{url}: {error}") from error
            time.sleep(0.02)
    body = json.dumps({"username": "admin", "password": password}).encode()
    headers = {"Content-Type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    request = urllib.request.Request(f"{url}/api/login", body, headers)  # noqa: S310 (ours)
    opener.open(request, timeout=5).close()
    opener.open(url, timeout=5).close()
    with opener.open(f"{url}/api/me", timeout=5) as answer:
        if json.load(answer)["role"] != "admin":
            raise BenchmarkError("the user that penstock init has made is no admin")


@contextmanager
def started(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a broker for a block."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def run_steps(folder: Path, environment: Mapping[str, str]) -> list[float]:
    """Return the moments at which `STEPS` have ended, seconds from the first one's begin.

    Raises:
        BenchmarkError: a step fails.
    """
    bin_folder = folder / "venv" / "bin"

    def do(*command: str | Path) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchmarkError(f"{' '.join(words)}: {done.stderr[-400:]}")
        return done.stdout

    do("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", "checkout")
    began = time.monotonic()
    moments = []
    do(sys.executable, "-m", "venv", folder / "venv")
    moments.append(time.monotonic() - began)
    do(bin_folder / "pip", "install", "--no-cache-dir", "./checkout")
    moments.append(time.monotonic() - began)
    shown = do(bin_folder / "penstock", "init")
    moments.append(time.monotonic() - began)
    password = re.search(r"^Password +(\S+)", shown, re.MULTILINE)
    if password is None:
        raise BenchmarkError(f"penstock init shows no password: {shown}")
    policy = folder / "policy.yaml"
    with reserved_port() as mqtt, reserved_port() as console:
        text = re.sub(r"bind: \S+:1883", f"bind: 127.0.0.1:{mqtt}", policy.read_text())
        policy.write_text(text.replace("127.0.0.1:8081", f"127.0.0.1:{console}"))
        command = [str(bin_folder / "penstock"), "broker", "-c", policy.name]
        with started(command, folder, environment):
            login(f"http://127.0.0.1:{console}", password[1])
            moments.append(time.monotonic() - began)
    return moments


def first_minute(figures: FiguresFile = None) -> None:
    """Measure the time from a machine with Python to a page that one has logged in to."""
    if figures is not None:
        check_writable(figures)
    origin = replace(begin(running_command()), doubts=doubts())
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        moments = run_steps(Path(folder), environment)
    rows = [[step, f"{seconds:.1f} s"] for step, seconds in zip(STEPS, moments, strict=True)]
    table = Table(["reached", "after"], rows)
    tell([str(table)], {"origin": str(origin)})
    if figures is not None:
        write_figure_file(figures, origin, {"steps": table})


main: Final = Program(first_minute, "python -m benchmarks.first_minute")


if __name__ == "__main__":
    sys.exit(main())
