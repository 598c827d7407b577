"""``penstock cluster`` without a broker."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.plugins.cluster.__main__ import _drain, main
from penstock.plugins.cluster.engine import ClusterEngine
from penstock.plugins.redis.server import RedisServer
from tests.helpers.redis_server import shared_redis

LOGGER = logging.getLogger("penstock.cluster")
INFO = {"version": "1.2", "since": 0, "host": "here", "policy": {"limits": "1"}}


@pytest.fixture
def prefix() -> str:
    """Return keys of this test alone."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def policy(tmp_path: Path, prefix: str) -> str:
    """Return a policy file with a cluster."""
    redis = {"server": f"127.0.0.1:{shared_redis()}", "prefix": prefix}
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump({"cluster": {"name": "c", "redis": redis}}))
    return str(file)


def joined(prefix: str, *names: str) -> None:
    """Have nodes join the cluster; one whose name is `gone` has stopped beating."""

    async def join() -> None:
        for name in names:
            server = RedisServer(port=shared_redis(), prefix=prefix)
            engine = ClusterEngine(server, "c", name, LOGGER)
            await engine.open()
            await engine.join(name)
            policy = {"limits": name[0]}
            await engine.announce(json.dumps(INFO | {"policy": policy}))
            await engine.change([("x", 1), ("y", 1)], 1)
            await engine.put(name, engine.epoch, b"12345")
            if name == "gone":
                key = f"{engine.base}:alive:{name}"
                await engine.calls.routes.call(key, "DEL", key)
            await engine.close()

    asyncio.run(join())


def test_status_shows_who_lives_and_what_waits(
    policy: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also that the policy files differ."""
    joined(prefix, "a", "gone")
    assert main(["status", "-c", policy]) == 0
    title, one, other, told = capsys.readouterr().out.splitlines()
    assert title.split() == [
        *("node", "state", "version", "since", "host", "clients", "filters", "inbox", "console"),
    ]
    assert one.split()[:3] == ["a", "lives", "1.2"]
    assert other.split()[:2] == ["gone", "silent"]
    assert other.split()[-5:] == ["-", "2", "5", "B", "-"]
    assert "differ" in told
    assert main(["status", "-c", policy, "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["lives", "silent"]


def test_forget_is_for_nodes_that_are_gone(
    policy: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that lives is not forgotten, and a name that nobody has is told."""
    joined(prefix, "a", "gone")
    for name, told in (("a", "node a: it lives"), ("b", "read 'b'; allowed: a member: a, gone")):
        assert main(["forget", name, "-c", policy, "-y"]) == 2
        assert told in capsys.readouterr().err
    assert main(["forget", "gone", "-c", policy, "-y"]) == 0
    assert main(["status", "-c", policy, "--json"]) == 0
    out = capsys.readouterr().out
    assert [row["node"] for row in json.loads(out[out.index("[") :])] == ["a"]


def test_drain_is_for_nodes_that_live(
    policy: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that do are named."""
    joined(prefix, "a", "gone")
    for name in ("gone", "b"):
        assert main(["drain", name, "-c", policy, "-y"]) == 2
        assert f"read '{name}'; allowed: one that lives: a\n" in capsys.readouterr().err


def test_drain_of_a_node_that_dies_meanwhile_ends(
    policy: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though nobody is there to evict it."""
    joined(prefix, "a")  # and never beats
    assert main(["drain", "a", "-c", policy, "-y"]) == 2
    assert "node a: it has died before it had left" in capsys.readouterr().err


def test_drain_where_the_engine_stores_nothing(
    policy: str, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why."""
    joined(prefix, "a")

    def refused(self: ClusterEngine, *_: object) -> asyncio.Future[Any]:
        return self.command(self.base, "XADD", ":epochs", "*", "a", "b")  # of another kind

    monkeypatch.setattr(ClusterEngine, "tell", refused)
    assert main(["drain", "a", "-c", policy, "-y"]) == 2
    assert "the Redis server refuses: WRONGTYPE" in capsys.readouterr().err


async def test_drain_of_a_node_that_is_about_to_have_joined(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once it can be told anything."""
    server = RedisServer(port=shared_redis(), prefix=prefix)
    command, node = (ClusterEngine(server, "c", name, LOGGER) for name in ("", "a"))
    told: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()

    def tell(*note: Any) -> asyncio.Future[Any]:
        call = ClusterEngine.tell(command, *note)
        told.put_nowait(call)
        return call

    monkeypatch.setattr(command, "tell", tell)
    await command.open()
    await node.open()
    await node.join("token")
    notes = node.node_key("a", node.epoch), ":notes"
    await node.command(notes[0], "DEL", notes[1])
    draining = asyncio.create_task(_drain("a", 0, command))
    assert await (await told.get()) is None
    await node.command(notes[0], "XADD", notes[1], "*", "", "")
    async with asyncio.timeout(30):
        while await (await told.get()) is None:
            pass
    await node.leave()
    assert await draining == "a has left the cluster"
    await command.close()
    await node.close()


def test_a_file_without_a_cluster_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key that is missing; so is an engine that is not there."""
    file = tmp_path / "policy.yaml"
    file.write_text("plugins: {}\n")
    assert main(["status", "-c", str(file)]) == 2
    assert "cluster: read nothing" in capsys.readouterr().err
    file.write_text("cluster: {name: c, redis: {server: '127.0.0.1:1'}}\n")
    assert main(["status", "-c", str(file)]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
