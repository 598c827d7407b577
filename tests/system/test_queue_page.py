"""The pages of the queue: their examples, run in order against a gateway with their policy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.gateway import gateway_of
from tests.helpers.process import SECONDS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("how-to/queue.md", "reference/queue.md", "how-to/queue-server.md")
"""The first has the policy."""

BLOCK = re.compile(r"^```(yaml|python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SHELL = """
set -euo pipefail
penstock() { "$PYTHON" -m penstock "$@" --url "$URL"; }
curl() { command curl --fail-with-body "$@"; }
"""
"""Before each block of commands: the program is this one, and a failure ends the block."""


def test_examples_of_the_pages_do_what_the_pages_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is copied from a page works, in the order of the pages."""
    with reserved_port() as port:
        text = "".join((DOCS / page).read_text() for page in PAGES)
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
        blocks = BLOCK.findall(text)
        policy = tmp_path / "policy.yaml"
        policy.write_text(next(body for language, body in blocks if language == "yaml"))
        with gateway_of(policy) as client:
            client.enqueue("pictures", [(f"pictures/{n}", bytes(1_000)) for n in range(3)])
            for language, body in blocks:
                if language == "python":
                    exec(compile(body, "page", "exec"), {})  # noqa: S102 (the pages' own)
                elif language == "sh":
                    run = subprocess.run(
                        ["bash", "-c", SHELL + body],
                        cwd=tmp_path,
                        env=os.environ | {"PYTHON": sys.executable, "URL": client.url},
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        check=False,
                        timeout=SECONDS,
                    )
                    assert run.returncode == 0, run.stdout + run.stderr
            assert (tmp_path / "copy.db").stat().st_size
    printed = capsys.readouterr().out
    assert "1000 bytes\n" in printed
    assert "2 stored\n" in printed
    assert "messages of physical queue 0\n" in printed
