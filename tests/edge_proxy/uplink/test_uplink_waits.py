"""An uplink between ends of which one takes less than the other sends."""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.errors import PenstockError
from penstock.broker.mqtt.packets import (
    ConnAck,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
)
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.reports.client_reports import report, subject_of
from penstock.broker.server import Server
from penstock.broker.sessions.broker_state import CoreSinks
from penstock.netem.runs.broker_process import reserved_port
from tests.broker.durable.test_persistence import REFUSE
from tests.broker.serving import port_of, serving, until
from tests.edge_proxy.uplink.test_uplink import (
    asked,
    deliver,
    site,
    stands,
    take_message,
    uplink_of,
)
from tests.helpers.scripted import Peer, ScriptedBroker
from tests.helpers.sinks import HoldingSink
from tests.helpers.wire import connected

LASTING: dict[str, Any] = {"properties": {"session_expiry_interval": 3600}}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("way", ["down", "up"])
async def test_what_passes_waits_for_room_and_nobody_misses_it(way: str, qos: int) -> None:
    """A client that is away with a full queue costs the others on its side no message."""
    keys = {"limits": {"queued_messages": 2, "queue_full_seconds": None}}
    is_down = way == "down"
    async with (
        serving(**({} if is_down else keys)) as cloud,
        site(port_of(cloud), policy=keys if is_down else {}) as edge,
    ):
        taker, giver = (edge, cloud) if is_down else (cloud, edge)
        away = await connected(port_of(taker), "away", **LASTING)
        await away.subscribe(f"{way}/#", 1)
        away.close()
        session = taker.core.sessions.get("away")
        assert session is not None
        await until(lambda: not session.is_connected and asked(cloud) == ["down/#"])
        async with (
            await connected(port_of(taker), "near") as near,
            await connected(port_of(giver), "far") as far,
        ):
            await near.subscribe(f"{way}/#", 1)
            for n in range(6):
                await deliver(far, Publish(f"{way}/a", b"%d" % n, qos=qos, packet_id=n + 1))
            assert [(await take_message(near)).payload for _ in range(2)] == [b"0", b"1"]
            await until(lambda: taker.core.room.n_held)
            back = await connected(port_of(taker), "away", clean_start=False, **LASTING)
            for client, first in ((back, 0), (near, 2)):
                got = [(await take_message(client)).payload for _ in range(first, 6)]
                assert got == [b"%d" % n for n in range(first, 6)]
            back.close()
        counts = uplink_of(edge).counts
        assert (counts.up_dropped, counts.down_dropped) == ({}, {})


async def test_what_comes_down_waits_for_the_disk(tmp_path: Path) -> None:
    """A disk that refuses costs the site no message that the cloud had stored."""
    path = tmp_path / "edge.db"
    async with (
        serving() as cloud,
        site(port_of(cloud), policy={"persistence": {"path": str(path)}}) as edge,
        await connected(port_of(edge), "near", **LASTING) as near,
        await connected(port_of(cloud), "far") as far,
    ):
        await near.subscribe("down/#", 1)
        await until(lambda: asked(cloud) == ["down/#"])
        journal = edge.core.journal
        assert journal is not None
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            await until(lambda: journal.is_settled)
            other.execute(REFUSE)
            near.close()
            await deliver(far, Publish("down/a", b"first", qos=1, packet_id=1))
            await until(lambda: journal.is_failing)
            await deliver(far, Publish("down/a", b"second", qos=1, packet_id=2))
            await until(lambda: edge.core.room.n_held)
            other.execute("DROP TRIGGER full")
        await until(lambda: not edge.core.room.n_held)
        async with await connected(port_of(edge), "near", clean_start=False, **LASTING) as back:
            got = [(await take_message(back)).payload for _ in range(2)]
        assert got == [b"first", b"second"]
        assert uplink_of(edge).counts.down_dropped == {}


async def test_a_site_that_takes_nothing_is_no_silence_of_the_cloud() -> None:
    """What the cloud says is not read meanwhile; the kernel watches over the connection."""
    async with serving() as cloud, site(port_of(cloud), keep_alive_seconds=40) as edge:
        await stands(edge)
        link = uplink_of(edge)._connection
        assert link is not None
        link._down.pause_writing()  # as the site's broker has it done
        link.cloud.received_at -= 100
        link._look()
        assert not link.ended.done()
        link._down.resume_writing()
        link.cloud.received_at -= 100
        link._look()
        assert link.ended.done()


async def test_a_message_that_the_cloud_does_not_take_and_cannot_refuse_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In MQTT 3.1.1 the connection ends at it; with `maximum_packet_size`, it is not tried."""
    async with (
        serving(limits={"maximum_packet_size": 1000}) as cloud,
        await connected(port_of(cloud), "far") as far,
    ):
        await far.subscribe("up/#", 1)
        for keys in ({}, {"maximum_packet_size": 1000}):
            async with site(port_of(cloud), version="3.1.1", **keys) as edge:
                async with await connected(port_of(edge), "near") as near:
                    await deliver(near, Publish("up/a", b"x" * 2000, qos=1, packet_id=1))
                    await deliver(near, Publish("up/a", b"small", qos=1, packet_id=2))
                assert (await take_message(far)).payload == b"small"
                counts = uplink_of(edge).counts
                assert counts.up_dropped == {"too_large" if keys else "refused": 1}
                assert bool(counts.failures) == (not keys)
        assert "at the message of topic 'up/a' (2000 bytes, QoS 1 or 2): its access" in caplog.text


@pytest.mark.parametrize(
    ("when_full", "dropped", "left"),
    [
        ("drop_oldest", "pushed_out", [b"2", b"3", b"4"]),
        ("drop_newest", "broker_full", [b"0", b"1", b"2"]),
    ],
)
async def test_a_backlog_that_fills_the_whole_broker_refuses_no_publisher(
    when_full: str, dropped: str, left: list[bytes]
) -> None:
    """The limits of all together are those of the uplink, too: it loses messages at them."""
    with reserved_port() as port:
        policy = {"limits": {"total_queued_messages": 3}}
        async with (
            site(port, backlog={"when_full": when_full}, policy=policy) as edge,
            await connected(port_of(edge), "near") as near,
        ):
            for n in range(5):
                await deliver(near, Publish("up/a", b"%d" % n, qos=1, packet_id=1))
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            assert [delivery.message.payload for delivery in session.outbox.waiting()] == left
            assert session.ledger.dropped == {dropped: 2}


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_a_queue_of_the_site_fails_to_store_comes_again(
    qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk was full after it had said that there is room."""
    async with (
        serving() as cloud,
        site(port_of(cloud)) as edge,
        await connected(port_of(edge), "near") as near,
        await connected(port_of(cloud), "far") as far,
    ):
        sink = HoldingSink("down/#")
        routes = CoreSinks()
        routes.attach(edge.core)
        routes.add(sink)
        await near.subscribe("down/#", 1)
        await until(lambda: asked(cloud) == ["down/#"])
        await deliver(far, Publish("down/a", b"x", qos=qos, packet_id=1))
        await until(lambda: bool(sink.receipts))
        sink.settle(ReasonCode.QUOTA_EXCEEDED)
        await until(lambda: bool(sink.receipts))
        assert [message.payload for message in sink.messages] == [b"x", b"x"]
        sink.settle()
        session = cloud.core.sessions.get("berlin-cloud")
        assert session is not None
        await until(lambda: not session.inflight)
        assert (await take_message(near)).payload == b"x"
        await deliver(far, Publish("down/b", b"y", qos=0))
        assert (await take_message(near)).payload == b"y"
        assert uplink_of(edge).counts.down_dropped == {}
        assert "the site's own broker: quota exceeded (0x97) (not stored by sink)" in caplog.text


def why_away(server: Server) -> str:
    """Return why an uplink is not connected, as the report of its client says."""
    session = server.core.sessions.get(uplink_of(server).up_id)
    assert session is not None
    return report(subject_of(session), 0.0).why_away


async def test_the_report_says_why_an_uplink_is_not_connected() -> None:
    """For how long, the cause, and when it tries again; or what it waits for."""
    reconnect = {"min_seconds": 3600, "max_seconds": 3600}
    with reserved_port() as port:
        async with site(port, reconnect=reconnect) as edge:
            await until(lambda: uplink_of(edge).counts.failures)
            found = re.fullmatch(
                rf"for \d+ s: 127\.0\.0\.1:{port}: connection refused; "
                r"the next attempt in (\d+)\.\d s",
                why_away(edge),
            )
            assert found
            assert 1_790 < int(found[1]) <= 3_600
    async with serving() as cloud:
        async with site(port_of(cloud)) as edge:
            await stands(edge)
            assert not why_away(edge)
        start = {"when": "on_demand", "threshold_messages": 2}
        async with site(port_of(cloud), start=start) as edge:
            waits = "s: it connects when 2 messages wait to go up"
            await until(lambda: why_away(edge).endswith(waits))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        start["threshold_messages"] = 1
        async with site(port, start=start) as edge, await connected(port_of(edge), "near") as near:
            await until(
                lambda: why_away(edge).endswith("s: it connects when 1 message waits to go up")
            )
            await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
            await until(lambda: why_away(edge).endswith(f"s: connecting to 127.0.0.1:{port}"))


async def test_an_uplink_that_is_held_connects_never() -> None:
    """What is to go up waits."""
    start = {"when": "never"}
    async with serving() as cloud, site(port_of(cloud), start=start) as edge:
        async with await connected(port_of(edge), "near") as near:
            await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
        await until(lambda: why_away(edge).endswith("s: it is held: start.when is never"))
        assert not uplink_of(edge).counts.connections


async def take_qos_1(peer: Peer) -> Publish:
    """Return one message of QoS 1 of an uplink, and answer what comes before it."""
    while not isinstance(packet := await peer.receive(), Publish) or packet.qos != 1:
        if isinstance(packet, PingReq):
            peer.send(PingResp())
        elif isinstance(packet, Subscribe):
            peer.send(SubAck(packet.packet_id, (1,) * len(packet.subscriptions)))
    return packet


async def ends_after_message(peer: Peer, code: int | None = None) -> None:
    """Acknowledge one message of an uplink, and close the connection, after a DISCONNECT or not."""
    peer.send(PubAck((await take_qos_1(peer)).packet_id))
    if code is not None:
        peer.send(Disconnect(code))
    await peer.close()


@contextlib.asynccontextmanager
async def an_uplink_with_messages(n_messages: int) -> AsyncIterator[tuple[ScriptedBroker, Server]]:
    """Yield the cloud and a site, whose uplink is about to connect, with messages that wait."""
    reconnect = {"min_seconds": 0.01, "max_seconds": 60.0}
    keys = {"reconnect": reconnect, "lanes": None, "clear_retained": False}
    async with (
        ScriptedBroker() as cloud,
        site(cloud.port, **keys) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        for n in range(n_messages):
            await deliver(near, Publish("up/a", b"%d" % n, qos=1, packet_id=1))
        await (await cloud.accepted()).receive()  # the session is ended first
        yield cloud, edge


async def test_a_link_that_is_cut_again_and_again_is_tried_again_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A connection on which a message has passed is a success, however short it was."""
    async with an_uplink_with_messages(12) as (cloud, edge):
        for _ in range(8):
            await ends_after_message(await cloud.accepted())
        await until(lambda: uplink_of(edge).counts.failures == {"closed": 8})
        waits = re.findall(r"the next attempt in (\d+\.\d) s", caplog.text)
        assert waits == ["0.0"] * 8
        assert "another client has the client id" not in caplog.text


async def test_waits_grow_where_the_cloud_disconnects_an_uplink_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though messages have passed: brokers have many words for another client of the same id."""
    async with an_uplink_with_messages(5) as (cloud, edge):
        for _ in range(5):
            await ends_after_message(await cloud.accepted(), ReasonCode.ADMINISTRATIVE_ACTION)
        await until(lambda: uplink_of(edge).counts.failures == {"disconnected": 5})
        assert uplink_of(edge)._retries._n_failures == 5
        assert caplog.text.count("another client has the client id") == 1


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_broker_that_crashes_behind_a_load_balancer_gets_its_message_again(
    version: str,
) -> None:
    """The balancer closes connections at CONNECT meanwhile: an end of another kind."""
    async with (
        ScriptedBroker() as cloud,
        site(cloud.port, version=version, lanes=None, clear_retained=False, down=[]) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await deliver(near, Publish("up/a", b"", qos=1, packet_id=1))
        await (await cloud.accepted()).receive()  # the session is ended first
        for _ in range(4):
            peer = await cloud.accepted()
            await take_qos_1(peer)
            await peer.close()
            peer = await cloud.connected()
            peer.version = 5 if version == "5" else 4
            await peer.receive()
            await peer.close()
        await ends_after_message(await cloud.accepted())
        assert uplink_of(edge).counts.up_dropped == {}


@pytest.mark.parametrize(
    ("backlog", "reason"),
    [
        ({"messages": 2}, "pushed_out (the backlog that its uplink may have)"),
        ({"messages": 2, "when_full": "drop_newest"}, "queue_full (the backlog that its uplink"),
        ({"max_age_seconds": 0.1}, "too_old (the max_age_seconds of its uplink's backlog)"),
    ],
)
async def test_a_lost_backlog_is_a_warning(
    backlog: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a while with a count, and once when the uplink is back; not for each message."""
    n_messages = 20
    with reserved_port() as port:
        async with (
            site(port, backlog=backlog) as edge,
            await connected(port_of(edge), "near") as near,
        ):
            for n in range(n_messages):
                await deliver(near, Publish("up/a", b"%d" % n, qos=1, packet_id=1))
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            n_lost = n_messages - backlog.get("messages", 0)
            await until(lambda: sum(session.ledger.dropped.values()) == n_lost)
            async with serving(listeners={"default": {"bind": f"127.0.0.1:{port}"}}):
                await stands(edge)
        told = [one for one in caplog.records if "messages for it dropped" in one.getMessage()]
        assert {one.levelname for one in told} == {"WARNING"}
        assert reason in told[0].getMessage()
        assert f"dropped while it was away, {n_lost}: " in told[-1].getMessage()
        assert len(told) == 2


async def test_a_backlog_may_refuse_publishers_and_lose_nothing() -> None:
    """MQTT 5 is told; a message of 3.1.1 waits unacknowledged until the cloud is there."""
    keys = {"backlog": {"messages": 3, "when_full": "refuse"}, "lanes": None}
    policy = {"limits": {"queue_full_seconds": 0.01}}
    with reserved_port() as port:
        async with (
            site(port, policy=policy, **keys) as edge,
            await connected(port_of(edge), "near") as near,
            await connected(port_of(edge), "old", 4) as old,
        ):
            for n in range(3):
                await deliver(near, Publish("up/a", b"%d" % n, qos=1, packet_id=1))
            for _ in range(3):
                await near.send(Publish("up/a", b"refused", qos=1, packet_id=1))
                assert (await near.take(PubAck)).reason_code == ReasonCode.QUOTA_EXCEEDED
            await old.send(Publish("up/a", b"3", qos=1, packet_id=1))
            await until(lambda: edge.core.room.n_held)
            cloud_policy = {"listeners": {"default": {"bind": f"127.0.0.1:{port}"}}}
            async with serving(**cloud_policy), await connected(port, "far") as far:
                await far.subscribe("up/#", 1)
                got = [(await take_message(far)).payload for _ in range(4)]
                assert got == [b"0", b"1", b"2", b"3"]
                assert (await old.take(PubAck)).reason_code == 0
            session = edge.core.sessions.get("$uplink/cloud/up")
            assert session is not None
            assert session.ledger.dropped == {}


async def test_what_comes_down_needs_no_room_in_the_backlog_of_its_own_uplink() -> None:
    """The cloud may acknowledge nothing until its own messages are acknowledged."""
    keys: dict[str, Any] = {
        "backlog": {"messages": 1, "when_full": "refuse"},
        "down": [{"filter": "up/#", "when": "always"}],
        "lanes": None,
        "clear_retained": False,
    }
    async with (
        ScriptedBroker() as cloud,
        site(cloud.port, **keys) as edge,
        await connected(port_of(edge), "near") as near,
    ):
        await deliver(near, Publish("up/a", b"x", qos=1, packet_id=1))
        await near.send(Publish("up/a", b"x", qos=1, packet_id=1))
        assert (await near.take(PubAck)).reason_code == ReasonCode.QUOTA_EXCEEDED
        await (await cloud.accepted()).receive()  # the session is ended first
        peer = await cloud.connected()
        await peer.receive()
        peer.send(ConnAck(properties={"receive_maximum": 1}))
        await take_qos_1(peer)
        while uplink_of(edge).n_waiting < 2:
            await near.send(Publish("up/a", b"x", qos=1, packet_id=1))
            await near.take(PubAck)
        peer.send(Publish("up/back", b"x", qos=1, packet_id=5))
        while not isinstance(await peer.receive(), PubAck):
            pass


async def test_a_backlog_refuses_only_where_the_broker_does() -> None:
    """The start says which key is wrong."""
    policy = {"limits": {"queue_full": "drop_newest"}}
    with reserved_port() as port, pytest.raises(PenstockError, match=r"limits\.queue_full: drop_n"):
        async with site(port, policy=policy, backlog={"when_full": "refuse"}):
            pass
