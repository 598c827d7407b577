"""A plugin's store in the place of the database, in a server on real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.durable import commits
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.extensions import LocalClients, Mail, Plugin, SessionOwner, SessionStore
from penstock.broker.mqtt.packets import PubAck, Publish, SubAck, Subscribe, SubscriptionRequest
from penstock.broker.server import Server
from penstock.broker.session_rows import Changes, MessageRow
from tests.broker.serving import make_server, operations_of, port_of, serving, until
from tests.helpers.access import Access
from tests.helpers.wire import WireClient, connected


class Owner(SessionOwner):
    """Keeps all that outlives its connection, and never resumes it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def keeps(self, client_id: str, expiry_interval: float | None) -> bool:
        """Keep it."""
        del client_id
        return expiry_interval != 0

    def unloaded(self, client_id: str) -> None:
        """Take note."""
        self.told.append(f"unloaded {client_id}")


class Store(SessionStore):
    """Has every batch, unless it refuses."""

    def __init__(self) -> None:
        self.batches: list[Changes] = []
        self.is_refusing = False
        self.is_closed = False
        self.drained_clients: list[str] = []

    def drained(self, client_id: str) -> None:
        """Take note."""
        self.drained_clients.append(client_id)

    async def write(self, batch: Changes) -> None:
        """Take a batch."""
        await asyncio.sleep(0)
        assert not self.is_closed
        if self.is_refusing:
            raise PenstockError("the engine is away")
        self.batches.append(batch)

    def rows(self, kind: str) -> list[Any]:
        """Return all rows of a kind."""
        return [row for batch in self.batches for row in getattr(batch, kind)]


class Keeper(Plugin):
    """Brings both."""

    @checked_dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    class Config:
        """No key."""

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.owner, self.store = Owner(), Store()
        self.session_owner, self.session_store = self.owner, self.store

    @property
    def clients(self) -> LocalClients:
        """The broker's clients."""
        assert self.context.local_clients is not None
        return self.context.local_clients

    async def close(self) -> None:
        """Take nothing more."""
        self.store.is_closed = True


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Install the plugin, and return the policy's keys for it."""
    folder = tmp_path / "keeper-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: keeper\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[penstock.plugins]\nkeeper = {__name__}:Keeper\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"keeper": {}}


def keeper_of(server: Server) -> Keeper:
    """Return the server's plugin."""
    (keeper,) = server._plugins.plugins
    assert isinstance(keeper, Keeper)
    return keeper


async def kept_client(server: Server) -> WireClient:
    """Return the client ``s``, whose session is kept."""
    return await connected(
        port_of(server), client_id="s", properties={"session_expiry_interval": 3600}
    )


async def test_the_store_has_what_a_session_has(plugins: dict[str, Any]) -> None:
    """From its begin until it is unloaded; an acknowledged message is gone."""
    async with serving(plugins=plugins) as server:
        keeper = keeper_of(server)
        store, owner = keeper.store, keeper.owner
        async with await kept_client(server) as client:
            (session,) = store.rows("sessions")
            assert (session.client_id, session.lost_at) == ("s", None)
            await client.subscribe("t", 1)
            (granted,) = store.rows("subscriptions")
            assert granted[:3] == (session.row, "t", 1)
            await until(lambda: "s" in store.drained_clients)
            row = keeper.clients.take_rows(2)
            found = [
                Mail(MessageRow(row + n, "t", b"x", 1 - n, False, 0.0, None, None, ""))
                for n in range(2)
            ]
            taken, forgotten = await keeper.clients.deliver("s", found)
            assert forgotten is None
            assert taken is not None
            assert (taken.row, taken.session, taken.qos) == (row, session.row, 1)
            got = await client.take(Publish)
            await client.send(PubAck(got.packet_id))
            await until(lambda: list(store.rows("gone_deliveries")) == [row])
        await until(lambda: "unloaded s" in owner.told)
        assert store.rows("sessions")[-1].lost_at is not None
        assert await keeper.clients.deliver("s", found) == ()
        assert not store.rows("messages")


async def test_access_control_is_asked_who_may_receive_what_waits(plugins: dict[str, Any]) -> None:
    """The owner may forget what the client may not receive."""
    access = Access(publish=False, subscribe=False)
    access.refused.add(("receive", "secret"))
    async with serving(plugins=plugins) as server, await kept_client(server) as client:
        keeper = keeper_of(server)
        await client.subscribe("#", 1)
        server.core.access = access
        row = keeper.clients.take_rows(2)
        found = [
            Mail(MessageRow(row + n, topic, b"x", 1, False, 0.0, None, None, ""))
            for n, topic in enumerate(("secret", "t"))
        ]
        refused, taken = await keeper.clients.deliver("s", found)
        assert refused is None
        assert taken is not None
        assert (await client.take(Publish)).topic == "t"


async def test_a_store_that_refuses_is_asked_again(
    plugins: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has taken what changed, the client is not told that it is safe."""
    monkeypatch.setattr(commits, "RETRY_SECONDS", 0.01)
    async with serving(plugins=plugins) as server, await kept_client(server) as client:
        store, journal = keeper_of(server).store, server.core.journal
        assert journal is not None
        store.is_refusing = True
        await client.send(Subscribe(1, (SubscriptionRequest("t", 1),)))
        await until(lambda: journal.is_failing)
        problems = await operations_of(server).problems()
        assert problems["persistence"] == "the session store takes no commits"
        async with await connected(port_of(server)) as publisher:  # nothing of it is to be stored
            await publisher.send(Publish("t", b"x", qos=1, retain=True, packet_id=1))
            assert (await publisher.take(PubAck)).reason_code < 0x80
        store.is_refusing = False
        assert (await client.take(SubAck)).reason_codes == (1,)
        assert store.rows("subscriptions")
    assert "the engine is away; until it is written, publishes" in caplog.text
    assert "the session store takes commits again" in caplog.text


async def test_a_stop_writes_the_end_of_connections(plugins: dict[str, Any]) -> None:
    """The plugin is closed after that."""
    async with serving(plugins=plugins) as server:
        keeper = keeper_of(server)
        client = await kept_client(server)
        await server.stop()
        client.close()
    assert keeper.store.is_closed
    assert keeper.store.rows("sessions")[-1].lost_at is not None


async def test_sessions_are_kept_in_one_place(plugins: dict[str, Any], tmp_path: Path) -> None:
    """A database beside the plugin is refused, by a start and by a check."""
    persistence = {"path": str(tmp_path / "s.db")}
    with pytest.raises(ConfigError, match=r"no such key beside plugins\.keeper"):
        await make_server(plugins=plugins, persistence=persistence).start()
    found = await make_server(plugins=plugins, persistence=persistence).check()
    assert "no such key beside plugins.keeper" in found.problems["persistence"]
