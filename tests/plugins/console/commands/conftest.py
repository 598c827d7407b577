from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.commands import Done, penstock
from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker

ADMIN = "a-token-of-an-admin"
VIEWER = "a-token-of-a-viewer"

ALL_IS_CONGESTED = {
    "probing": {"probe_period": 0.05},
    "withholding": {"policy": "conservative", "threshold_s": 1_000, "threshold_l": 1e-9},
}
"""No path of this world has an RTT below a nanosecond: every large message is held."""


class Operated(NamedTuple):
    """A broker, and an operator with a token.

    Attributes:
        broker: the broker.
        folder: has `admin.token`, `viewer.token`, and the broker's files.
    """

    broker: BrokerProcess
    folder: Path

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run a command of an admin."""
        token = str(self.folder / "admin.token")
        where = ("--url", self.broker.console_url, "--token-file", token)
        return penstock(*arguments, *where, stdin=stdin)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """One broker for all tests of a file, each with names of its own."""
    folder = tmp_path_factory.mktemp("operated")
    (folder / "admin.token").write_text(ADMIN)
    (folder / "viewer.token").write_text(VIEWER)
    tokens = folder / "console.tokens"
    tokens.write_text(f"ada admin {ADMIN}\nvic viewer {VIEWER}\n")
    plugins = {"console": {"http": "127.0.0.1:0", "token_file": str(tokens)}, **ALL_IS_CONGESTED}
    persistence = {"path": str(folder / "sessions.db")}
    with running_broker(anonymous_policy(plugins, persistence=persistence), folder) as broker:
        yield Operated(broker, folder)
