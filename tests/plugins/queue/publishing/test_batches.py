"""Batches that are staged and published within a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.server import Server
from penstock.plugins.queue.config import PublishingConfig
from penstock.plugins.queue.publishing import batches as batches_module
from penstock.plugins.queue.publishing.batches import (
    WINDOW_ROWS,
    Batches,
    NoBrokerError,
    StageFullError,
    end_relays,
)
from penstock.plugins.queue.publishing.row_publisher import RowPublisher, relay_id
from penstock.plugins.queue.publishing.rows import StagedRow, new_row
from penstock.plugins.queue.publishing.stage_file import (
    BatchKey,
    Publication,
    StageError,
    StageFile,
    StageKey,
)
from tests.broker.network.test_in_process import local_clients
from tests.broker.serving import port_of, serving, until
from tests.helpers.process import SECONDS
from tests.helpers.wire import WireClient, connected

LOGGER = logging.getLogger("penstock.queue")
BATCH = BatchKey("", "query", 0)


class Wall:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        """Return seconds since 1970."""
        return self.now


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried soon."""
    monkeypatch.setattr(batches_module, "AGAIN_SECONDS", 0.01)


@contextlib.asynccontextmanager
async def publishing(
    server: Server, folder: Path, *, wall: Wall | None = None, **keys: Any
) -> AsyncIterator[Batches]:
    """Begin with a file in a folder, as a start of the broker does."""
    given = {"path": str(folder / "stage.db")} | keys
    config = validate_config(PublishingConfig, given, "policy.yaml", "plugins.queue.publishing")
    clients = local_clients(server)
    batches = Batches(config, "normal", clients, LOGGER, time.monotonic, wall or Wall())
    await batches.open()
    await batches.begin()
    try:
        yield batches
    finally:
        await batches.close()


def row(payload: str, topic: str = "a", qos: int = 1, **properties: Any) -> StagedRow:
    """Return a row."""
    return new_row(topic, payload.encode(), qos, retain=False, properties=properties)


async def stage(batches: Batches, *rows: StagedRow, name: str = "a", writer: str = "w") -> None:
    """Stage rows of one part of a batch."""
    await batches.stage(StageKey("", writer, name), 0, rows)


async def publish(
    batches: Batches, *rows: StagedRow, batch: BatchKey = BATCH, writer: str = "w"
) -> Publication:
    """Publish rows as a batch of one part."""
    await stage(batches, *rows, writer=writer)
    await batches.commit(batch, writer, [("a", len(rows))])
    return await done(batches, batch)


async def done(batches: Batches, batch: BatchKey = BATCH) -> Publication:
    """Return a batch that is finished."""
    one, obstacle = await batches.wait(batch, SECONDS)
    assert one.is_finished, obstacle
    return one


async def payloads(client: WireClient, n_messages: int) -> list[str]:
    """Return the payloads of the next messages."""
    return [(await client.message()).payload.decode() for _ in range(n_messages)]


@contextlib.asynccontextmanager
async def subscriber(server: Server, qos: int = 2) -> AsyncIterator[WireClient]:
    """Run a client that has subscribed to everything."""
    async with await connected(port_of(server), "device") as client:
        await client.subscribe("#", qos)
        yield client


async def test_rows_leave_as_they_are_asked_for(tmp_path: Path) -> None:
    """With their QoS, properties and RETAIN, and nothing that the broker's own side has added."""
    properties: dict[str, Any] = {
        "content_type": "x",
        "response_topic": "answers",
        "correlation_data": b"\0\xff",
        "user_property": [("a", "b")],
    }
    retained = new_row("c", b"3", 1, retain=True, properties={"message_expiry_interval": 60})
    async with serving() as server, publishing(server, tmp_path) as batches:
        async with subscriber(server) as device:
            rows = [row("1", qos=2, **properties), row("2", "b", qos=0), retained]
            found = await publish(batches, *rows)
            assert (found.n_rows, found.unpublished) == (3, {})
            assert batches.counts.published_rows == 3
            assert batches.counts.without_subscriber == 0
            messages = {
                packet.topic: packet for packet in [await device.message() for _ in range(3)]
            }
            assert {topic: packet.qos for topic, packet in messages.items()} == {
                "a": 2,
                "b": 0,
                "c": 1,
            }
            assert messages["a"].properties == properties
            assert messages["b"].properties == {}
            assert messages["c"].properties["message_expiry_interval"] in (59, 60)
        async with await connected(port_of(server), "late") as late:
            await late.subscribe("c", 2)
            packet = await late.message()
            assert (packet.payload, packet.retain, packet.qos) == (b"3", True, 1)


async def test_parts_follow_each_other_and_rows_keep_their_order(tmp_path: Path) -> None:
    """Over several windows and chunks."""
    n_rows = WINDOW_ROWS + 20
    async with (
        serving() as server,
        publishing(server, tmp_path) as batches,
        subscriber(server, qos=1) as device,
    ):
        for name in ("b", "a"):
            rows = [row(f"{name}{number}") for number in range(n_rows)]
            await batches.stage(StageKey("", "w", name), 0, rows[:5])
            await batches.stage(StageKey("", "w", name), 1, rows[5:])
        await batches.commit(BATCH, "w", [("a", n_rows), ("b", n_rows)])
        expected = [f"{name}{number}" for name in "ab" for number in range(n_rows)]
        assert await payloads(device, 2 * n_rows) == expected
        await done(batches)


async def test_a_repeated_commit_publishes_nothing(tmp_path: Path) -> None:
    """Also with another split of the batch, and of an older batch."""
    async with serving() as server, publishing(server, tmp_path) as batches:
        async with subscriber(server) as device:
            await publish(batches, row("1"), row("2"), batch=BATCH._replace(number=7))
            again = await publish(batches, row("1"), batch=BATCH._replace(number=7), writer="again")
            assert (again.n_rows, again.is_finished) == (2, True)
            await publish(batches, row("0"), batch=BATCH._replace(number=3), writer="again")
            await publish(batches, row("3"), batch=BATCH._replace(number=8))
            assert await payloads(device, 3) == ["1", "2", "3"]
        counts, held = batches.counts, batches.held()
        assert (counts.published_batches, counts.repeated_batches) == (2, 2)
        assert (held["rows"], held["stages"], held["publications"]) == (0, 0, 0)


async def test_what_no_commit_names_is_not_published(tmp_path: Path) -> None:
    """The attempt of a task that was not the first one, and what was given up."""
    async with serving() as server, publishing(server, tmp_path) as batches:
        async with subscriber(server) as device:
            await stage(batches, row("lost"), name="attempt-0")
            await stage(batches, row("won"), name="attempt-1")
            await batches.commit(BATCH, "w", [("attempt-1", 1)])
            await done(batches)
            await stage(batches, row("given up"))
            assert await batches.drop("", "w") == 1
            await publish(batches, row("next"), batch=BATCH._replace(number=1))
            assert await payloads(device, 2) == ["won", "next"]
        assert batches.counts.given_up_stages == 2


async def test_a_window_that_was_not_noted_comes_once_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker knows its packet identifiers: as after a kill behind the last PUBREC."""
    note = StageFile.advance
    failures = iter([StageError("the disk is slow")])

    def advance(*args: Any) -> Publication:
        for error in failures:
            raise error
        return note(*args)

    monkeypatch.setattr(StageFile, "advance", advance)
    async with serving() as server, publishing(server, tmp_path) as batches:
        async with subscriber(server) as device:
            await publish(batches, row("1"), row("2", qos=2), row("3", qos=0))
            await publish(batches, row("end"), batch=BATCH._replace(number=1))
            assert sorted(await payloads(device, 4)) == ["1", "2", "3", "end"]
        assert batches.counts.published_rows == 4


async def test_a_window_that_was_not_released_is_released_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packet identifiers would be taken for repeats when they come again."""
    reached = asyncio.Event()

    async def killed(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with serving() as server, publishing(server, tmp_path) as batches:
        with monkeypatch.context() as patched:
            patched.setattr(RowPublisher, "release", killed)
            await stage(batches, row("1"), row("2"))
            await batches.commit(BATCH, "w", [("a", 2)])
            async with asyncio.timeout(SECONDS):
                await reached.wait()
            session = server.core.sessions.get(relay_id(""))
            assert session is not None
            assert len(session.incoming) == 2
            await batches.close()
        async with publishing(server, tmp_path) as again:
            await again.commit(BATCH, "w", [("a", 2)])
            await done(again)
            assert not session.incoming
            assert again.counts.published_rows == 0


async def test_rows_wait_in_their_order_while_a_subscriber_has_no_room(tmp_path: Path) -> None:
    """They are not refused: each comes once, when there is room."""
    limits = {"queued_messages": 1, "inflight_messages": 1}
    async with (
        serving(limits=limits) as server,
        publishing(server, tmp_path) as batches,
        subscriber(server) as device,
    ):
        rows = [row(str(number), qos=2) for number in range(6)]
        await stage(batches, *rows)
        await batches.commit(BATCH, "w", [("a", 6)])
        await until(lambda: server.core.room.n_held)
        one, _ = await batches.wait(BATCH, 0)
        assert not one.is_finished
        assert await payloads(device, 6) == [str(number) for number in range(6)]
        await done(batches)


async def test_an_expired_row_is_counted_and_not_published(tmp_path: Path) -> None:
    """Its time goes on from the staging."""
    wall = Wall()
    async with serving() as server, publishing(server, tmp_path, wall=wall) as batches:
        async with subscriber(server) as device:
            await stage(batches, row("late", message_expiry_interval=10), row("in time"))
            wall.now += 11
            await batches.commit(BATCH, "w", [("a", 2)])
            assert (await done(batches)).unpublished == {"expired": 1}
            assert await payloads(device, 1) == ["in time"]
        assert batches.counts.unpublished_rows == {"expired": 1}


def acl(folder: Path, text: str) -> dict[str, Any]:
    """Return the plugins of a broker with an ACL file."""
    (folder / "acl").write_text(text)
    return {"access": {"allow_anonymous": True, "acl_file": str(folder / "acl")}}


async def test_a_relay_is_judged_as_the_user_of_its_token(tmp_path: Path) -> None:
    """Before a row is staged, and by the rules of that moment when the broker has restarted."""
    plugins = acl(tmp_path, "user importer\ntopic write commands/#\n")
    async with serving(plugins=plugins) as server, publishing(server, tmp_path) as batches:
        assert await batches.problem("importer", row("x", "commands/1")) == ""
        told = "not authorized to publish to this topic"
        assert await batches.problem("importer", row("x", "telemetry/1")) == told
        assert await batches.problem("", row("x", "commands/1")) == told
        await batches.stage(StageKey("importer", "w", "a"), 0, [row("x", "commands/1")])
        await batches.close()
        (tmp_path / "acl").write_text("user importer\ntopic write other/#\n")
    key = BatchKey("importer", "query", 0)
    async with serving(plugins=plugins) as server, publishing(server, tmp_path) as batches:
        await batches.commit(key, "w", [("a", 1)])
        assert (await done(batches, key)).unpublished == {"refused": 1}


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (row("x" * 101), "payload of 101 bytes; allowed: at most 100"),
        (row("x", "a/" * 9), "topic of 10 levels; allowed: at most 5"),
        (row("x", "$SYS/broker/connection/x/state"), "topics that begin with $SYS"),
        (row("x", qos=2), "PUBLISH: QoS 2; allowed: at most 1"),
        (row("x", content_type="x" * 300), "properties of PUBLISH of "),
        (row("y"), ""),
    ],
)
async def test_a_row_that_the_broker_would_refuse_is_told(
    tmp_path: Path, one: StagedRow, told: str
) -> None:
    """By its limits and options, as any client's message."""
    limits = {"payload_bytes": 100, "topic_levels": 5, "properties_bytes": 256}
    keys: dict[str, Any] = {"limits": limits, "mqtt": {"maximum_qos": 1}}
    async with serving(**keys) as server, publishing(server, tmp_path) as batches:
        assert told in await batches.problem("", one)
        if not told:  # QoS 1, though the relay itself publishes at QoS 2
            async with subscriber(server, qos=1) as device:
                await publish(batches, one)
                assert await payloads(device, 1) == ["y"]


async def test_a_full_stage_refuses_until_a_batch_was_published(tmp_path: Path) -> None:
    """By rows and by bytes."""
    async with serving() as server, publishing(server, tmp_path, max_rows=2) as batches:
        await stage(batches, row("1"), row("2"))
        with pytest.raises(
            StageFullError, match=r"read 1 more beside 2; allowed: 2 \(publishing\.max_rows\)"
        ):
            await stage(batches, row("3"), name="b")
        await batches.commit(BATCH, "w", [("a", 2)])
        await done(batches)
        await stage(batches, row("3"), name="b")
        assert batches.counts.refused == {"stage_full": 1}
    async with serving() as server, publishing(server, tmp_path, max_bytes=500) as batches:
        with pytest.raises(StageFullError, match=r"publishing\.max_bytes"):
            await stage(batches, row("x" * 500), name="c")


async def test_a_stage_that_nobody_commits_expires(tmp_path: Path) -> None:
    """It is counted and told."""
    wall = Wall()
    keys: dict[str, Any] = {"max_age_seconds": 0.04}
    async with serving() as server, publishing(server, tmp_path, wall=wall, **keys) as batches:
        await stage(batches, row("1"))
        wall.now += 1
        await until(lambda: batches.counts.expired_stages == 1)
        await until(lambda: batches.held()["rows"] == 0)


async def test_a_lost_connection_is_made_again(tmp_path: Path) -> None:
    """What was published before is not published again."""
    async with (
        serving() as server,
        publishing(server, tmp_path) as batches,
        subscriber(server) as device,
    ):
        await publish(batches, row("1"))
        batches._relays[""].disconnect()
        await publish(batches, row("2"), batch=BATCH._replace(number=1))
        assert await payloads(device, 2) == ["1", "2"]


async def test_a_new_file_does_not_take_the_packet_identifiers_of_an_old_one(
    tmp_path: Path,
) -> None:
    """The session of the relay begins anew where the file knows no rows of it."""
    async with serving() as server:
        async with publishing(server, tmp_path) as batches:
            await publish(batches, row("1"))
            session = server.core.sessions.get(relay_id(""))
        (tmp_path / "new").mkdir()
        async with publishing(server, tmp_path / "new") as batches, subscriber(server) as device:
            await publish(batches, row("1"))
            assert server.core.sessions.get(relay_id("")) is not session
            assert await payloads(device, 1) == ["1"]
        assert list(end_relays(local_clients(server))) == [relay_id("")]


async def test_nothing_is_published_without_a_broker(tmp_path: Path) -> None:
    """A gateway alone refuses."""
    config = PublishingConfig(path=str(tmp_path / "stage.db"))
    batches = Batches(config, "normal", None, LOGGER, time.monotonic, Wall())
    await batches.open()
    with pytest.raises(NoBrokerError, match="this is a gateway alone"):
        await batches.problem("", row("1"))
    with pytest.raises(NoBrokerError):
        await batches.commit(BATCH, "w", [("a", 1)])
    await batches.close()
