"""The command ``penstock`` as an operator gives it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.helpers.process import SECONDS

PENSTOCK: Final = Path(sys.executable).with_name("penstock")


class Done(NamedTuple):
    """What a command has done.

    Attributes:
        status: its exit status.
        out: its standard output.
        err: its standard error.
    """

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line of its output."""
        return [line.split() for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """Its output, which is JSON."""
        assert self.status == 0, self.err
        return json.loads(self.out)


def penstock(
    *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> Done:
    """Run a command to its end."""
    done = subprocess.run(
        [PENSTOCK, *arguments],
        input=stdin,
        capture_output=True,
        timeout=SECONDS,
        env=os.environ | (environment or {}),
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
