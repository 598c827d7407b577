"""The journal on its SQLite file, in a server on real sockets."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.durable import commits
from penstock.broker.durable import persistence as persistence_module
from penstock.broker.durable.database import DatabaseError
from penstock.broker.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from tests.broker.serving import make_server, port_of, serving, until
from tests.helpers.wire import WireClient, connected

REFUSE = """CREATE TRIGGER full BEFORE INSERT ON message
    BEGIN SELECT RAISE(ABORT, 'full'); END"""
"""Makes SQLite refuse every batch with a message, as a full disk does."""


def persistence(folder: Path, **keys: Any) -> dict[str, Any]:
    """Return the policy's section."""
    return {"path": str(folder / "s.db"), "durability": "normal"} | keys


async def kept_client(port: int) -> WireClient:
    """Return the client ``s``, whose session is kept."""
    return await connected(
        port, client_id="s", clean_start=False, properties={"session_expiry_interval": 3600}
    )


@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_a_restart_brings_back_what_was_acknowledged(tmp_path: Path, durability: str) -> None:
    """A subscription and what came for it, through a stop and a start."""
    section = persistence(tmp_path, durability=durability)
    async with serving(persistence=section) as server:
        async with await kept_client(port_of(server)) as client:
            await client.subscribe("t/#", 1)
        async with await connected(port_of(server)) as publisher:
            for number in range(10):
                await publisher.publish(f"t/{number}", b"%d" % number)
    async with serving(persistence=section) as server:
        assert server.core.ledger().matched == 10
        async with await kept_client(port_of(server)) as client:
            got = [await client.take(Publish) for _ in range(10)]
    assert [packet.payload for packet in got] == [b"%d" % number for number in range(10)]


async def test_what_only_a_commit_can_answer_waits_for_no_other_change(tmp_path: Path) -> None:
    """CONNACK, SUBACK and each step of QoS 2 begin a commit, however long first changes wait."""
    async with serving(persistence=persistence(tmp_path)) as server:
        state = server._state
        assert state is not None
        object.__setattr__(state._config, "commit_wait_seconds", 3600.0)
        async with (
            await kept_client(port_of(server)) as client,
            await connected(
                port_of(server),
                client_id="p",
                clean_start=False,
                properties={"session_expiry_interval": 3600},
            ) as publisher,
        ):
            await client.subscribe("t", 2)
            for packet_id in range(1, 4):
                await publisher.send(Publish("t", b"", qos=2, packet_id=packet_id))
                assert await publisher.take(PubRec) == PubRec(packet_id)
                await publisher.send(PubRel(packet_id))
                assert await publisher.take(PubComp) == PubComp(packet_id)
                got = await client.take(Publish)
                await client.send(PubRec(got.packet_id))
                assert await client.take(PubRel) == PubRel(got.packet_id)
                await client.send(PubComp(got.packet_id))


@pytest.mark.parametrize("keys", [{}, {"persistence": {"durability": "memory"}}], ids=str)
async def test_memory_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    """Nor has the core a journal."""
    monkeypatch.chdir(tmp_path)
    async with serving(**keys) as server:
        assert server.core.journal is None
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 (nothing waits for it)


async def test_a_disk_that_refuses_is_said_and_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits is answered once the disk takes the commit; who comes meanwhile is refused."""
    async with serving(persistence=persistence(tmp_path)) as server:
        async with await kept_client(port_of(server)) as client:
            await client.subscribe("t/#", 1)
        journal = server.core.journal
        assert journal is not None
        await until(lambda: journal.is_settled)
        async with await connected(port_of(server)) as publisher:
            with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
                other.execute(REFUSE)
                await publisher.send(Publish("t/1", b"waits", qos=1, packet_id=1))
                await until(lambda: journal.is_failing)
                await publisher.send(Publish("t/1", b"refused", qos=1, packet_id=2))
                await until(lambda: server.core.counters.publish_refused)
                other.execute("DROP TRIGGER full")
            assert await publisher.take(PubAck) == PubAck(1)
            assert (await publisher.take(PubAck)).reason_code == 0x97
            await publisher.publish("t/2", b"taken")
    assert "full (SQLITE_CONSTRAINT_TRIGGER)" in caplog.text
    assert "the disk takes commits again" in caplog.text
    async with (
        serving(persistence=persistence(tmp_path)) as server,
        await kept_client(port_of(server)) as client,
    ):
        assert (await client.take(Publish)).payload == b"waits"
        assert (await client.take(Publish)).payload == b"taken"


async def test_what_no_client_waits_for_goes_with_what_one_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a connection has no commit of its own where a message comes soon."""
    monkeypatch.setattr(commits, "UNAWAITED_SECONDS", 3600.0)
    async with serving(persistence=persistence(tmp_path)) as server:
        async with await kept_client(port_of(server)) as client:
            await client.subscribe("t/#", 1)
        state = server._state
        assert state is not None
        journal = state.journal
        session = server.core.sessions.get("s")
        assert session is not None
        await until(lambda: not session.is_connected and state._unawaited_timer is not None)
        assert not journal.is_settled
        number = journal.number
        async with await connected(port_of(server)) as publisher:
            await publisher.publish("t/1", b"waits")
        assert journal.number == number + 1
        assert journal.is_settled


async def test_what_no_client_waits_for_is_committed_by_itself(tmp_path: Path) -> None:
    """If nobody waits for anything, after a while."""
    async with serving(persistence=persistence(tmp_path)) as server:
        async with await kept_client(port_of(server)):
            journal, session = server.core.journal, server.core.sessions.get("s")
        assert journal is not None
        assert session is not None
        await until(lambda: not session.is_connected and journal.is_settled)
        with closing(sqlite3.connect(tmp_path / "s.db")) as other:
            ((lost_at,),) = other.execute("SELECT lost_at FROM session")
        assert lost_at is not None


async def test_a_disk_without_room_is_said_and_looked_at_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has to be committed for that, and no client waits for it."""
    monkeypatch.setattr(persistence_module, "RETRY_SECONDS", 0.01)
    keys = {"persistence": persistence(tmp_path)}
    async with serving(**keys) as server, await connected(port_of(server)) as publisher:
        async with await kept_client(port_of(server)) as client:
            await client.subscribe("t/#", 1)
        state = server._state
        assert isinstance(state, persistence_module.PersistentState)
        journal, database = state.journal, state._database
        session = server.core.sessions.get("s")
        assert session is not None
        await until(lambda: not session.is_connected and journal.is_settled)
        monkeypatch.setattr(commits, "UNAWAITED_SECONDS", 3600.0)
        database.room_bytes = 0
        journal.measured(0)
        assert (await publisher.publish("t/1", b"refused")).reason_code == 0x97
        await until(lambda: not journal.is_full)
        assert (await publisher.publish("t/1", b"taken")).reason_code == 0
    assert "s.db has no room for messages" in caplog.text
    assert "the disk has room for messages again" in caplog.text


async def test_rows_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """With the file's name and what can be done; the file is free again."""
    async with (
        serving(persistence=persistence(tmp_path)) as server,
        await kept_client(port_of(server)) as client,
    ):
        await client.subscribe("t/#", 1)
    with closing(sqlite3.connect(tmp_path / "s.db")) as other:
        other.execute("INSERT INTO delivery VALUES (99, 98, 97, 1, 0, NULL, 0, 0, '')")
        other.commit()
    server = make_server(persistence=persistence(tmp_path))
    with pytest.raises(DatabaseError, match="move the file away"):
        await server.start()
    with closing(sqlite3.connect(tmp_path / "s.db")) as other:
        other.execute("DELETE FROM delivery")
        other.commit()
    async with serving(persistence=persistence(tmp_path)) as server:
        assert len(server.core.sessions) == 1


async def test_a_stop_does_not_wait_for_who_goes_on_publishing(tmp_path: Path) -> None:
    """What has come is committed and answered; a publisher without end holds nothing up."""
    server = make_server(persistence=persistence(tmp_path))
    await server.start()
    async with await kept_client(port_of(server)) as client:
        await client.subscribe("t/#", 1)
    acknowledged = 0

    async def publish_without_end() -> None:
        nonlocal acknowledged
        async with await connected(port_of(server)) as publisher:
            while True:
                await publisher.send(*(Publish("t/1", b"x", qos=1, packet_id=n) for n in (1, 2)))
                for _ in range(2):
                    if not isinstance(await publisher.receive(), PubAck):
                        return
                    acknowledged += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish_without_end())
        await until(lambda: acknowledged > 100)
        await server.stop()
    async with serving(persistence=persistence(tmp_path)) as server:
        assert server.core.ledger().matched >= acknowledged
