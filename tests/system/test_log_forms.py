"""The forms of the log of a real broker, changed while it runs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.process import BrokerProcess, anonymous_policy, running_broker
from tests.helpers.sidecar import before, running_sidecar
from tests.helpers.wire import connected
from tests.system.test_console import send
from tests.system.test_reload import ask_to_reload

TAKEOVERS = 3
"""So many of one client id are told."""


async def fight(broker: BrokerProcess, client_id: str) -> str:
    """Let clients take each other's session; return the line of the log about it."""
    async with AsyncExitStack() as clients:
        for _ in range(TAKEOVERS + 1):
            await clients.enter_async_context(await connected(broker.port, client_id))
        return (await asyncio.to_thread(broker.lines_with, f"client {client_id}: its", 1))[0]


def clear(broker: BrokerProcess, topic: str) -> str:
    """Try to clear a retained message that is not there; return the audit line."""
    assert send(broker, "DELETE", f"/api/retained/{topic}")[0] == 404
    return broker.lines_with(f"DELETE /api/retained/{topic}", 1)[0]


def fields(form: str, line: str) -> dict[str, Any]:
    """Read a line as a program does."""
    if form == "json":
        found: dict[str, Any] = json.loads(line)
        return found
    return dict(pair.split("=", 1) for pair in shlex.split(line))


async def test_each_form_tells_who_fights_and_who_acts(tmp_path: Path) -> None:
    """One line each; in the forms for programs, both addresses and the operator's are fields."""
    console = {"console": {"http": "127.0.0.1:0", "anonymous": "admin"}}
    policy = anonymous_policy(console)
    addresses = r"127\.0\.0\.1:\d+ and 127\.0\.0\.1:\d+"
    with running_broker(policy, tmp_path) as broker:
        line = await fight(broker, "text")
        assert re.search(rf"WARNING penstock: client text: .*, of {addresses}", line)
        assert " audit: user (no login) from 127.0.0.1: DELETE " in await asyncio.to_thread(
            clear, broker, "text"
        )
        for n_reloads, form in enumerate(("keyvalue", "json"), 1):
            ask_to_reload(broker, tmp_path, policy | {"log": {"format": form}})
            await asyncio.to_thread(broker.lines_with, "changed: log.format", n_reloads)
            found = fields(form, await fight(broker, form))
            assert (found["level"], found["event"]) == ("warning", "two_clients_with_one_id")
            assert found["client_id"] == form
            assert re.match(addresses, found["address"])
            found = fields(form, await asyncio.to_thread(clear, broker, form))
            assert (found["event"], found["user"]) == ("audit", "(no login)")
            assert (found["address"], found["outcome"][:3]) == ("127.0.0.1", "404")
            assert found["action"] == f"DELETE /api/retained/{form}"
        async with await connected(broker.port, "twin") as client:
            await client.send_bytes(b"\xf0\x00")
            line = (await asyncio.to_thread(broker.lines_with, "client twin (", 1))[0]
        found = fields("json", line)
        assert (found["event"], found["client_id"]) == ("closed", "twin")
        assert found["listener"] == "default"
        assert found["reason"]


async def test_a_proxy_has_the_same_forms(tmp_path: Path) -> None:
    """By its own file; a client that goes has its name and address as fields."""
    with running_broker(anonymous_policy(), tmp_path) as broker:
        keys = before(broker.port)
        with running_sidecar(keys, tmp_path) as proxy:
            log = {"level": "debug", "format": "json"}
            (tmp_path / "proxy.yaml").write_text(yaml.safe_dump(keys | {"log": log}))
            proxy.process.send_signal(signal.SIGHUP)
            (line,) = await asyncio.to_thread(proxy.lines_with, "reloaded: ", 1)
            assert "log.format" in fields("json", line)["message"]
            (await connected(proxy.port, "pump")).close()
            (line,) = await asyncio.to_thread(proxy.lines_with, '"event": "ended"', 1)
    found = fields("json", line)
    assert (found["client_id"], found["listener"]) == ("pump", "default")
    assert found["address"].startswith("127.0.0.1:")
    assert found["reason"]
