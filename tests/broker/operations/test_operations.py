from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.extensions import Plugin, PluginContext
from penstock.broker.mqtt.packets import Disconnect, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.operations.operations import BrokerOperations
from penstock.broker.operations.program import Program
from penstock.broker.operations_contract import ClientRow, RetainedRow, SubscriptionRow, TopicRow
from tests.broker.serving import operations_of, port_of, serving
from tests.helpers.gates import SwitchGate
from tests.helpers.virtual import VirtualBroker, VirtualClient
from tests.helpers.wire import connected

LARGE = b"x" * 200
STAYS = {"session_expiry_interval": 100}


def operations_on(broker: VirtualBroker, **around: Any) -> BrokerOperations:
    """Return what operators see and do of a broker on a virtual clock."""
    operations = BrokerOperations(lambda: broker.now)
    operations.attach(broker.core, Program(take_turn=broker.driver.take_turn, **around))
    return operations


def holding(n_messages: int = 2) -> tuple[VirtualBroker, VirtualClient, BrokerOperations]:
    """Return a broker that holds large messages of QoS 1 for `s`, each with a small one behind."""
    broker = VirtualBroker(gate=SwitchGate(look_again_after=1000))
    client = broker.connect("s", clean_start=False, properties=STAYS)
    client.subscribe("#", 1)
    publisher = broker.connect("p")
    for number in range(n_messages):
        publisher.publish(f"t/{number}", LARGE, qos=1)
        publisher.publish(f"t/{number}", b"small", qos=1)
    assert broker.session("s").outbox.n_withheld == 2 * n_messages
    return broker, client, operations_on(broker)


def test_a_row_says_who_is_connected_from_where_and_what_waits() -> None:
    """Address, version and since when, for a list of thousands."""
    broker, _, operations = holding(1)
    broker.connect("old", version=4, username="joe")
    broker.session("s").link.rtt_latest = 0.25
    broker.advance(10)
    row = operations.row("s")
    assert row == ClientRow(
        "s", None, "", "default", "5.0", True, 10.0, 0.25, 2, 1, 0, 205, 0, 0, 0
    )
    old = operations.row("old")
    assert old is not None
    assert (old.username, old.version, old.is_connected) == ("joe", "3.1.1", True)
    assert broker.session("old").is_unused  # to look at a client costs it nothing
    assert operations.row("unknown") is None


def test_a_client_that_is_away_has_a_row_without_a_connection() -> None:
    """Its RTT was that of the last connection."""
    broker, client, operations = holding(1)
    broker.session("s").link.rtt_latest = 0.25
    client.lose()
    row = operations.row("s")
    assert row is not None
    assert (row.is_connected, row.connected_seconds, row.address, row.rtt) == (
        False,
        None,
        "",
        None,
    )


def test_held_messages_are_released_without_the_gate() -> None:
    """Each leaves, with what waits behind it, in its order; later ones are held again."""
    broker, client, operations = holding()
    assert operations.release_held("s") == 4
    broker.advance(0)
    assert [len(payload) for payload in client.acknowledge()] == [200, 5, 200, 5]
    session = broker.session("s")
    session.check_invariants()
    ledger = session.settle_direct()
    assert (ledger.delivered, ledger.released_total, ledger.dropped) == (4, 2, {})
    decisions = broker.core.outbox_rules.record.decisions
    assert decisions["released", "operator"] == 2
    broker.connect("q").publish("t/0", LARGE, qos=1)
    assert session.outbox.n_withheld == 1
    assert operations.release_held("unknown") == 0


def test_held_messages_of_a_client_that_is_away_leave_when_it_is_back() -> None:
    """The operator has decided about them."""
    broker, client, operations = holding()
    client.lose()
    assert operations.release_held("s") == 4
    back = broker.connect("s", clean_start=False, properties=STAYS)
    assert len(back.take_all(Publish)) == 4
    broker.session("s").check_invariants()


def test_held_messages_are_dropped_for_a_reason_of_their_own() -> None:
    """The ledger balances, what was not held stays, and the memory is free."""
    broker, client, operations = holding()
    assert operations.drop_held("s") == 4
    session = broker.session("s")
    session.check_invariants()
    assert session.settle_direct().dropped == {"operator": 4}
    assert session.outbox.n_bytes == 0
    assert broker.core.outbox_rules.record.decisions["gone", "operator"] == 2
    broker.connect("q").publish("t/0", b"later", qos=1)
    assert client.payloads() == [b"later"]
    assert operations.drop_held("s") == operations.drop_held("unknown") == 0


def test_publishers_that_wait_for_room_go_on_when_held_messages_are_dropped() -> None:
    """An MQTT 3.1.1 client cannot be told that there is no room."""
    from penstock.broker.config.limits import Limits  # noqa: PLC0415

    gate = SwitchGate(look_again_after=1000)
    broker = VirtualBroker(Limits(queued_messages=2), gate=gate)
    broker.connect("s", clean_start=False, properties=STAYS).subscribe("#", 1)
    publisher = broker.connect("p", version=4)
    for number in range(3):
        publisher.publish(f"t/{number}", LARGE, qos=1, packet_id=number + 1)
    assert broker.core.room.n_held == 1
    assert operations_on(broker).drop_held("s") == 2
    broker.advance(1)
    assert broker.core.room.n_held == 0
    broker.session("s").check_invariants()


def test_a_session_is_ended_with_all_that_waits() -> None:
    """Connected or not; what it was to get is accounted for."""
    broker, client, operations = holding()
    assert operations.end_session("s")
    assert client.take(Disconnect).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    assert client.is_lost
    assert broker.core.sessions.get("s") is None
    ledger = broker.core.ledger()
    assert ledger.dropped == {"session_ended": 4}
    assert ledger.outstanding() == 0
    broker.connect("away", clean_start=False, properties=STAYS).lose()
    assert operations.end_session("away")
    assert not operations.end_session("away")
    assert broker.core.tree.n_subscriptions == 0


def test_the_sessions_of_uplinks_are_left_alone() -> None:
    """Without its session, an uplink could not go on; what is held for it may be released."""
    operations = operations_on(VirtualBroker())
    told = "one of the broker's own; allowed: others"
    with pytest.raises(PenstockError, match=told):
        operations.disconnect("$uplink/c/up", "")
    with pytest.raises(PenstockError, match=told):
        operations.end_session("$uplink/c/up")
    assert operations.release_held("$uplink/c/up") == 0


async def test_topics_show_what_fills_the_memory() -> None:
    """By topic and size, the number of messages, their bytes, and since when the oldest waits."""
    broker, _, operations = holding()
    broker.advance(30)
    rows = sorted(await operations.topics())
    assert rows[:2] == [
        TopicRow("t/0", "large", 1, 200, 30.0),
        TopicRow("t/0", "small", 1, 5, 30.0),
    ]
    assert len(rows) == 4


async def test_subscriptions_are_listed_of_one_client_or_all() -> None:
    """With the share and the size class, which are no part of the topic filter."""
    broker = VirtualBroker()
    sizes = {"user_property": [("penstock-size", "small")]}
    broker.connect("a").subscribe("a/+", 1, properties=sizes)
    broker.connect("b").subscribe("$share/workers/b/#", 2)
    broker.connect("c")
    operations = operations_on(broker)
    shared = SubscriptionRow("b", "b/#", 2, "workers", None)
    assert await operations.subscriptions("b") == [shared]
    assert sorted(await operations.subscriptions()) == [
        SubscriptionRow("a", "a/+", 1, "", "small"),
        shared,
    ]
    assert await operations.subscriptions("unknown") == []


async def test_retained_messages_are_browsed_and_cleared() -> None:
    """Subscribers are sent the clear, and the topic has none any more."""
    broker = VirtualBroker()
    publisher = broker.connect("p")
    properties = {"content_type": "text/plain", "message_expiry_interval": 60}
    publisher.publish("a/b", b"on", retain=True, properties=properties)
    publisher.publish("c", b"off", retain=True)
    subscriber = broker.connect("s")
    subscriber.subscribe("a/#")
    assert subscriber.payloads() == [b"on"]
    broker.advance(10)
    operations = operations_on(broker)
    (row,) = await operations.retained("a/+")
    assert row == RetainedRow("a/b", 2, 0, "p", 10.0, 50.0)
    assert {one.topic for one in await operations.retained()} == {"a/b", "c"}
    found = operations.retained_message("a/b")
    assert found is not None
    assert (found.payload, found.properties["content_type"]) == (b"on", "text/plain")
    assert operations.clear_retained("a/b")
    assert subscriber.payloads() == [b""]
    assert operations.retained_message("a/b") is None
    assert not operations.clear_retained("a/b")
    with pytest.raises(PenstockError, match="allowed: # alone, as the last level"):
        await operations.retained("a/#/b")


async def test_a_client_is_disconnected_and_told_why() -> None:
    """Over the network; it may come back, as it is not banned."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        operations = operations_of(server)
        assert operations.disconnect("c", "you send too much")
        packet = await client.take(Disconnect)
        assert packet.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert packet.properties["reason_string"] == "you send too much"
        assert await client.receive() is None
        assert not operations.disconnect("c", "")
        assert not operations.disconnect("unknown", "")
        async with await connected(port_of(server), "c"):
            assert operations.client_ids() == ["c"]


@pytest.mark.parametrize(("kind", "value"), [("client_id", "c"), ("username", "joe")])
async def test_a_banned_client_leaves_and_cannot_come_back_before_its_time(
    kind: Any, value: str
) -> None:
    """Others stay. MQTT 5 clients are told (0x8A), and each refusal is counted."""
    async with serving() as server, await connected(port_of(server), "other") as other:
        operations, port = operations_of(server), port_of(server)
        async with await connected(port, "c", username="joe", password=b"") as client:
            assert await operations.ban(kind, value, 100, "it floods", by="ann") == 1
            assert (await client.take(Disconnect)).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        async with await _dialled(port) as again:
            connack = await again.connect("c", username="joe", password=b"")
            assert connack.reason_code == ReasonCode.BANNED
        assert server.core.counters.connections_refused == {"banned": 1}
        (ban,) = operations.bans()
        assert (ban.kind, ban.value, ban.reason, ban.by) == (kind, value, "it floods", "ann")
        await server.reload()
        assert operations.bans()
        assert operations.unban(kind, value)
        assert not operations.unban(kind, value)
        async with await _dialled(port) as again:
            assert (await again.connect("c", username="joe", password=b"")).reason_code == 0
        assert await other.subscribe("t") == 0


async def test_a_banned_address_is_refused_as_soon_as_it_is_known() -> None:
    """All of its clients leave, and CONNECT is not looked at."""
    async with serving() as server, await connected(port_of(server), "c") as client:
        operations, port = operations_of(server), port_of(server)
        assert await operations.ban("address", "::ffff:127.0.0.1", 100, "") == 1
        assert (await client.take(Disconnect)).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        async with await _dialled(port) as again:
            assert (await again.connect("d")).reason_code == ReasonCode.BANNED
        assert operations.unban("address", "127.0.0.1")
        async with await _dialled(port) as again:
            assert (await again.connect("d")).reason_code == 0


async def _dialled(port: int) -> Any:
    from tests.helpers.wire import WireClient  # noqa: PLC0415

    return await WireClient.dial(port)


async def test_a_broker_that_serves_has_no_problems() -> None:
    """Its listeners are open, its database writes and its plugins answer; else it says what not."""

    class Ill(Plugin):
        """A plugin that cannot serve."""

        async def problem(self) -> str:
            """Say why."""
            return "the engine does not answer"

    async with serving() as server:
        assert await operations_of(server).problems() == {}
        server._listeners.close()
    broker = VirtualBroker()
    plugin = Ill(None, PluginContext(logging.getLogger("test"), "", lambda: 0.0))
    operations = operations_on(broker, plugins={"queue": plugin}, is_listening=lambda: False)
    assert await operations.problems() == {
        "listeners": "not all of them are open",
        "queue": "the engine does not answer",
    }


async def test_a_database_that_takes_no_commits_is_a_problem(tmp_path: Path) -> None:
    """A load balancer sends clients elsewhere meanwhile."""
    async with serving(persistence={"path": str(tmp_path / "s.db")}) as server:
        assert server.core.journal is not None
        server.core.journal.is_failing = True
        assert await operations_of(server).problems() == {
            "persistence": "the database takes no commits"
        }
        server.core.journal.is_failing = False


async def test_a_backup_of_a_running_broker_is_a_database_to_begin_with(tmp_path: Path) -> None:
    """It is put where the policy file has its database; sessions and messages are in it."""
    path = tmp_path / "sessions.db"
    async with serving(persistence={"path": str(path)}) as server:
        operations = operations_of(server)
        async with await connected(
            port_of(server), "s", clean_start=False, properties=STAYS
        ) as client:
            await client.subscribe("t", 1)
        async with await connected(port_of(server), "p") as publisher:
            await publisher.publish("t", b"kept")
        copy = tmp_path / "backup"
        assert await operations.backup(str(copy)) > 0
        with pytest.raises(PenstockError, match="File exists; allowed: a new directory"):
            await operations.backup(str(copy))
    path.unlink()
    (copy / "sessions.db").rename(path)
    async with (
        serving(persistence={"path": str(path)}) as server,
        await connected(port_of(server), "s", clean_start=False, properties=STAYS) as client,
    ):
        assert (await client.take(Publish)).payload == b"kept"


class _FullDisk(Plugin):
    """A plugin that cannot be copied."""

    def __init__(self) -> None:
        """Have no keys."""

    async def backup(self, folder: str) -> int:
        """Write a part."""
        (Path(folder) / "part").write_text("x")
        raise PenstockError("no room")


async def test_of_a_backup_that_fails_nothing_is_left(tmp_path: Path) -> None:
    """It could be taken for a whole one, and the next one is written to the same place."""
    operations = operations_on(VirtualBroker(), plugins={"x": _FullDisk()})
    with pytest.raises(PenstockError, match="no room"):
        await operations.backup(str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


async def test_a_backup_without_anything_durable_is_refused(tmp_path: Path) -> None:
    """An empty directory would look like one; nor can it be where no directory is."""
    async with serving() as server:
        with pytest.raises(PenstockError, match="read nothing that is durable; allowed"):
            await operations_of(server).backup(str(tmp_path / "new"))
        assert not (tmp_path / "new").exists()
        with pytest.raises(PenstockError, match="No such file"):
            await operations_of(server).backup(str(tmp_path / "no" / "new"))


async def test_the_level_of_the_log_is_changed_while_the_broker_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients that come and go are told at once."""
    root = logging.getLogger()
    level = root.level
    try:
        async with serving() as server:
            operations = operations_of(server)
            operations.set_log_level("warning")
            assert operations.log_level == "warning"
            operations.set_log_level("debug")
            async with await connected(port_of(server), "c"):
                assert any("client c: connected" in line for line in caplog.messages)
            with pytest.raises(PenstockError, match="read 'loud'; allowed: debug, info"):
                operations.set_log_level("loud")
    finally:
        root.setLevel(level)


def test_what_an_operator_does_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    """With the client and what came of it. Who has asked for it is in the console's audit line."""
    caplog.set_level(logging.DEBUG, "test")
    _, _, operations = holding(1)
    operations.release_held("s")
    operations.disconnect("s", "maintenance")
    assert [line for line in caplog.messages if line.startswith("by an operator")] == [
        "by an operator: client s: 2 held messages released",
        "by an operator: client s: disconnected: maintenance",
    ]


async def test_a_backup_has_the_queues_beside_the_sessions(tmp_path: Path) -> None:
    """And what a plugin keeps on the disk besides; a copy is a database that opens."""
    queue = {
        "engine": "sqlite",
        "path": str(tmp_path / "q.db"),
        "http": "127.0.0.1:0",
        "queues": {"work": {"topics": ["work/#"]}},
        "publishing": {"path": str(tmp_path / "p.db")},
    }
    parts = {"spool": str(tmp_path / "parts.db"), "assemble": ["#"]}
    async with (
        serving(
            persistence={"path": str(tmp_path / "s.db")}, plugins={"queue": queue, "parts": parts}
        ) as server,
        await connected(port_of(server), "p") as publisher,
    ):
        await publisher.publish("work/1", b"x")
        await operations_of(server).backup(str(tmp_path / "copy"))
    names = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert names == ["parts.db", "publishing.db", "queue.db", "sessions.db"]
    for name in names:
        with closing(sqlite3.connect(tmp_path / "copy" / name)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
