from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.netem.runs.withheld_watch import (
    Noticed,
    WithheldInterval,
    WithheldLook,
    intervals,
    read_looks_file,
)

ROOT = Path(__file__).resolve().parents[3]


def test_an_interval_lasts_from_the_first_look_to_the_one_that_sees_nothing() -> None:
    """With the most that was held at a time; another client's is another's."""
    looks = [
        WithheldLook("sub", 1.0, 0.8, 1, 1),
        WithheldLook("other", 1.0, 0.8, 4, 4),
        WithheldLook("sub", 1.2, 1.0, 3, 3),
        WithheldLook("sub", 1.4, 1.2, 0, 3),
        WithheldLook("other", 1.4, 1.2, 4, 4),
    ]
    assert list(intervals(looks)) == [
        WithheldInterval("sub", 1.0, 1.4, 3),
        WithheldInterval("other", 1.0, 1.4, 4),
    ]


def test_what_happened_between_two_looks_is_not_missed() -> None:
    """The broker counts what it has withheld; it was between the one look and the other."""
    looks = [WithheldLook("sub", 1.0, 0.8, 0, 2), WithheldLook("sub", 9.0, 8.8, 0, 3)]
    assert list(intervals(looks)) == [
        WithheldInterval("sub", 0.8, 1.0, 2),
        WithheldInterval("sub", 8.8, 9.0, 1),
    ]


def test_looks_without_news_are_left_out() -> None:
    """A line for each fifth of a second in which nothing is withheld would tell nothing."""
    noticed = Noticed()
    assert noticed.notice("sub", 1.0, 0, 0) is None
    assert noticed.notice("sub", 1.2, 0, 0) is None
    assert noticed.notice("sub", 1.4, 1, 1) == WithheldLook("sub", 1.4, 1.2, 1, 1)
    assert noticed.notice("sub", 1.6, 1, 1) == WithheldLook("sub", 1.6, 1.4, 1, 1)
    assert noticed.notice("sub", 1.8, 0, 1) == WithheldLook("sub", 1.8, 1.6, 0, 1)
    assert noticed.notice("sub", 2.0, 0, 1) is None
    assert noticed.notice("sub", 2.2, 0, 2) == WithheldLook("sub", 2.2, 2.0, 0, 2)


def test_looks_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Also those of a client whose id has a space."""
    file = tmp_path / "withheld"
    assert read_looks_file(file) == []
    file.write_text("sub 1 1.25 1.0 2 3\n")
    assert read_looks_file(file) == [WithheldLook("sub 1", 1.25, 1.0, 2, 3)]


class Console(http.server.BaseHTTPRequestHandler):
    """Answers as the console does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Every known client has one message withheld."""
        path, _, query = self.path.partition("?")
        known = [f"sub-{n}" for n in range(1, 21)]
        answer: Any
        if path == "/api/clients":
            after = query.rpartition("=")[2]
            answer = {
                "clients": [row(each) for each in known if (each > after)],
                "next": "sub-5" if not after else None,
            }
        else:
            answer = report(path.rpartition("/")[2])
            if answer["client_id"] not in known:
                answer = None
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def report(client_id: str) -> dict[str, Any]:
    """Return what the console says of a client that matters here."""
    return {"client_id": client_id, "withholding": {"withheld": 1, "withheld_total": 1}}


def row(client_id: str) -> dict[str, Any]:
    """Return the same in a list of clients."""
    return {"client_id": client_id, "withheld": 1, "withheld_total": 1}


@pytest.fixture
def console() -> Iterator[str]:
    """HOST:PORT of a console."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Console) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("n_clients", [1, 12])
def test_few_are_asked_for_by_name_and_many_are_found_in_the_list(
    console: str, n_clients: int, tmp_path: Path
) -> None:
    """Each of them that the broker knows is written down; one that it does not know is not."""
    file = tmp_path / "withheld"
    wanted = [f"sub-{n}" for n in range(1, n_clients + 1)]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.netem.runs.withheld_watch",
            console,
            "0.05",
            str(file),
            *wanted,
            "nobody",
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        while len(read_looks_file(file) if file.exists() else []) < 2 * n_clients:
            assert process.poll() is None
        process.terminate()
    assert {look.client_id for look in read_looks_file(file)} == set(wanted)
