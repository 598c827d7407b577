"""What fuzzing has found worth keeping is run again, and each fuzzer for a few seconds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import codec_target, connection_target

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": codec_target.run,
    "connection": connection_target.run,
}


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Let nothing be logged: each input is a fault of a peer."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def corpus(name: str) -> list[bytes]:
    """Return the inputs that are kept for a target, one in each line as hexadecimal digits."""
    return [bytes.fromhex(line) for line in (FOLDER / f"{name}.txt").read_text().split()]


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_stays_mended(name: str) -> None:
    """Inputs that together reach what long runs have reached break no rule."""
    for data in corpus(name):
        try:
            TARGETS[name](data)
        except Exception as error:
            error.add_note(f"input: {data.hex()}")
            raise


@pytest.mark.parametrize(("name", "n_runs"), [("codec", 4000), ("connection", 82)])
def test_a_short_run_finds_nothing(name: str, n_runs: int, tmp_path: Path) -> None:
    """Coverage-guided, from some of the kept inputs on; by hand it may run for hours.

    The runs include those of the seeds, which instrumented code makes dear.
    """
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for number, data in enumerate(corpus(name)[::8]):
        (seeds / str(number)).write_bytes(data)
    program = [sys.executable, str(FOLDER / f"fuzz_{name}.py"), f"-runs={n_runs}"]
    done = subprocess.run(
        [*program, "-seed=1", "-timeout=60", "-max_len=600", "-len_control=0", str(seeds)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
