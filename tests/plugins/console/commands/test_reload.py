"""``penstock reload``: a running broker reads its files again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.console.commands.reload import main
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.wire import connected

TOKEN = "a-token-of-an-admin"


async def reload(*options: str) -> int:
    """Run the command beside the loop; return its status."""
    return await asyncio.to_thread(main, list(options))


async def test_a_changed_file_counts_and_a_wrong_one_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says what has changed, what needs a restart and what is wrong."""
    tokens, file = tmp_path / "tokens", tmp_path / "policy.yaml"
    tokens.write_text(f"operator admin {TOKEN}\nreader viewer a-token-of-a-viewer\n")
    for name, token in (("token", TOKEN), ("other", "a-token-of-a-viewer")):
        (tmp_path / name).write_text(token)
    policy: dict[str, Any] = anonymous_policy(
        {"console": {"http": "127.0.0.1:0", "token_file": str(tokens)}}
    )
    with running_broker(policy, tmp_path) as broker:
        options = ["--url", broker.console_url, "--token-file"]
        changed = policy | {"limits": {"payload_bytes": 3}, "persistence": {}}
        file.write_text(yaml.safe_dump(changed))
        assert await reload(*options, str(tmp_path / "token")) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"read: plugins.console.token_file {tokens}",
            "changed: limits.payload_bytes",
            "needs restart: persistence",
        ]
        async with await connected(broker.port, "c") as client:
            assert (await client.publish("t", b"long")).reason_code >= 0x80
        file.write_text(yaml.safe_dump(changed | {"limits": {"payload_bytes": 0}}))
        assert await reload(*options, str(tmp_path / "token"), "--json") == 2
        answer = json.loads(capsys.readouterr().out)
        assert list(answer["failed"]) == ["limits.payload_bytes"]
        assert await reload(*options, str(tmp_path / "token")) == 2
        told = capsys.readouterr().err.splitlines()
        assert told[0].startswith("penstock reload: limits.payload_bytes: read 0;")
        assert told[1:] == ["penstock reload: nothing has changed"]
        assert await reload(*options, str(tmp_path / "other")) == 2
        assert "403" in capsys.readouterr().err


async def test_without_a_console_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A broker without one listens to a signal."""
    with reserved_port() as port:
        assert await reload("--url", f"http://127.0.0.1:{port}") == 2
    assert "Without a console, send SIGHUP to the broker" in capsys.readouterr().err
