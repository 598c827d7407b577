"""What survives ``kill -9`` of the real broker, told by real clients."""

from __future__ import annotations

import asyncio
import contextlib
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from penstock.broker.mqtt.packets import PubAck, Publish, Will
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.campaigns.faults.flows import PatientClient
from tests.helpers.paho_client import (
    MQTT_3_1_1,
    MQTT_5,
    PahoClient,
    connect_properties,
    publish_properties,
)
from tests.helpers.process import (
    SECONDS,
    BrokerProcess,
    anonymous_policy,
    limit_files,
    running_broker,
)
from tests.helpers.wire import WireClient, connected

NOBODY = ReasonCode.NO_MATCHING_SUBSCRIBERS


def durable_policy(port: int = 0, **keys: Any) -> dict[str, Any]:
    """Return a policy whose state survives the end of the process."""
    section = {"path": "sessions.db", "durability": "normal"}
    policy = anonymous_policy(persistence=section | keys, sys_interval=0)
    policy["listeners"]["default"]["bind"] = f"127.0.0.1:{port}"
    return policy


class Flow:
    """A paho client with a session that is kept, which connects again by itself.

    Attributes:
        n_acknowledged: publishes that were answered.
        got: payloads that came, by how often.
        order: payloads as they came.
    """

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion) -> None:
        self.n_acknowledged = 0
        self.got: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self._changed = threading.Condition()
        options: dict[str, Any] = {"clean_session": False} if version == MQTT_3_1_1 else {}
        self.paho = PatientClient(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.paho.max_inflight_messages_set(50)
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_publish = self._published
        self.paho.on_message = self._received
        self.paho.on_subscribe = self._subscribed
        self.is_subscribed = False
        options = {}
        if version == MQTT_5:
            properties = connect_properties(SessionExpiryInterval=3600)
            options = {"clean_start": False, "properties": properties}
        self.paho.connect("127.0.0.1", port, **options)
        self.paho.loop_start()

    def _published(self, *_: Any) -> None:
        with self._changed:
            self.n_acknowledged += 1
            self._changed.notify_all()

    def _received(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.got[bytes(message.payload)] += 1
            self.order.append(bytes(message.payload))
            self._changed.notify_all()

    def _subscribed(self, *_: Any) -> None:
        with self._changed:
            self.is_subscribed = True
            self._changed.notify_all()

    def wait(self, condition: Any, what: str) -> None:
        """Wait for something that paho's thread brings about."""
        with self._changed:
            assert self._changed.wait_for(condition, 2 * SECONDS), what

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 2."""
        self.paho.subscribe(topic_filter, 2)
        self.wait(lambda: self.is_subscribed, "SUBACK")

    def close(self) -> None:
        """Disconnect."""
        self.paho.disconnect()
        self.paho.loop_stop()


async def test_all_kinds_of_state_are_there_after_a_kill(tmp_path: Path) -> None:
    """Subscriptions, queued messages with their properties, retained messages, wills."""
    with running_broker(durable_policy(), tmp_path) as broker:
        kept = connect_properties(SessionExpiryInterval=3600)
        with PahoClient(broker.port, "s", MQTT_5) as client:
            assert client.connect(clean_start=False, properties=kept)
            assert client.subscribe("t/#", 2)
            assert client.subscribe("will/#", 1)
        with PahoClient(broker.port, "p", MQTT_5) as publisher:
            publisher.connect()
            properties = publish_properties(ContentType="text/plain", UserProperty=[("a", "b")])
            publisher.publish("t/1", b"queued", 2, properties=properties)
            publisher.publish("state", b"retained", 1, retain=True)
        async with await WireClient.dial(broker.port) as dying:
            await dying.connect("dying", will=Will("will/dying", b"gone", 1))
            await asyncio.to_thread(broker.kill)
    with running_broker(durable_policy(), tmp_path) as broker:
        assert "1 sessions, 1 messages for them, 1 retained messages restored" in broker.log
        with PahoClient(broker.port, "s", MQTT_5) as client:
            assert client.connect(clean_start=False, properties=kept)
            assert client.connack[0], "Session Present"
            told, queued = sorted((client.message(), client.message()), key=lambda m: m.qos)
            assert (queued.payload, queued.qos) == (b"queued", 2)
            assert queued.properties is not None
            found = queued.properties.json()  # type: ignore[no-untyped-call]
            assert found["ContentType"] == "text/plain"
            assert found["UserProperty"] == [("a", "b")]
            assert (told.topic, told.payload) == ("will/dying", b"gone")
            assert client.subscribe("state", 1)
            state = client.message()
            assert (state.payload, state.retain) == (b"retained", True)


async def test_a_restart_with_less_room_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """As on a smaller machine: all comes back, and the client gets no more before there is room."""
    n_messages, n_topics = 20, 3
    smaller = {"total_queued_bytes": 10_000, "retained_bytes": 2000}
    kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 3600}}
    with running_broker(durable_policy(), tmp_path) as broker:
        async with await connected(broker.port, "s", **kept) as client:
            assert await client.subscribe("t/#", 1) == 1
        async with await connected(broker.port) as publisher:
            for number in range(n_messages):
                answer = await publisher.publish("t/1", b"%04d" % number * 250)
                assert answer.reason_code == 0
            for number in range(n_topics):
                retained = Publish(f"r/{number}", bytes(900), qos=1, packet_id=1, retain=True)
                await publisher.send(retained)
                assert (await publisher.take(PubAck)).reason_code == NOBODY
        broker.kill()
    with running_broker(durable_policy() | {"limits": smaller}, tmp_path) as broker:
        restored = f"1 sessions, {n_messages} messages for them, {n_topics} retained messages"
        assert restored in broker.log
        async with await connected(broker.port) as publisher:
            assert (await publisher.publish("t/1", b"x")).reason_code == 0
            dropped = "client s: 1 messages for it dropped: broker_full"
            await asyncio.to_thread(broker.wait_for_log, dropped)
            await publisher.send(Publish("r/new", b"x", qos=1, packet_id=1, retain=True))
            assert (await publisher.take(PubAck)).reason_code == ReasonCode.QUOTA_EXCEEDED
            async with await connected(broker.port, "s", **kept) as client:
                for number in range(n_messages):
                    packet = await client.take(Publish)
                    assert packet.payload[:4] == b"%04d" % number
                    await client.send(PubAck(packet.packet_id))
                assert (await publisher.publish("t/1", b"taken")).reason_code == 0
                assert (await client.take(Publish)).payload == b"taken"
                assert await client.subscribe("r/#", 1) == 1
                topics = {(await client.take(Publish)).topic for _ in range(n_topics)}
                assert topics == {f"r/{number}" for number in range(n_topics)}


async def kept_client(port: int) -> WireClient:
    """Return the client ``s``, whose session is kept."""
    properties = {"session_expiry_interval": 3600}
    return await connected(port, "s", clean_start=False, properties=properties)


async def test_a_full_disk_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """0x97 while there is no room, a PUBACK once there is; what was acknowledged is there."""
    with running_broker(durable_policy(), tmp_path) as broker:
        async with await kept_client(broker.port) as client:
            await client.subscribe("t", 1)
        async with await connected(broker.port) as publisher, await connected(broker.port) as other:
            await publisher.publish("t", b"0")
            limit_files(broker, 1)
            await publisher.send(Publish("t", b"1", qos=1, packet_id=1))
            await asyncio.to_thread(broker.wait_for_log, "are refused")
            assert (await other.publish("t", b"refused")).reason_code == 0x97
            assert (await other.publish("elsewhere", b"")).reason_code < 0x80
            limit_files(broker)
            assert (await publisher.take(PubAck)).reason_code == 0
            assert (await other.publish("t", b"2")).reason_code == 0
        broker.kill()
    with running_broker(durable_policy(), tmp_path) as broker:
        async with await kept_client(broker.port) as client:
            assert [(await client.take(Publish)).payload for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_database_that_is_deleted_while_it_runs_is_told(tmp_path: Path) -> None:
    """No PUBACK for what would be gone with the process; with the file back, all goes on."""
    policy = durable_policy() | {"sys_interval": 0.1}
    failing = "$SYS/broker/penstock/persistence/failing"
    path, away = tmp_path / "sessions.db", tmp_path / "away"
    with running_broker(policy, tmp_path) as broker:
        async with await kept_client(broker.port) as client:
            await client.subscribe("t", 1)
        async with await connected(broker.port) as publisher, await connected(broker.port) as other:
            await publisher.publish("t", b"0")
            path.rename(away)
            await publisher.send(Publish("t", b"1", qos=1, packet_id=1))
            await asyncio.to_thread(broker.wait_for_log, "sessions.db was deleted or replaced")
            assert (await other.publish("t", b"refused")).reason_code == 0x97
            await other.subscribe(failing, 0)
            while (await other.take(Publish)).payload != b"1":
                pass
            away.rename(path)
            assert (await publisher.take(PubAck)).reason_code == 0
            while (await other.take(Publish)).payload != b"0":
                pass
        broker.kill()
    with running_broker(policy, tmp_path) as broker:
        async with await kept_client(broker.port) as client:
            assert [(await client.take(Publish)).payload for _ in range(2)] == [b"0", b"1"]


def modes_of_files(broker: BrokerProcess, folder: Path) -> dict[str, int]:
    """Return the permissions of a broker's files, also of those that have no name."""
    found = [file for file in folder.iterdir() if file.name != "policy.yaml"]
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in found}
    for opened in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            name = str(opened.readlink())
            if name.startswith(f"{folder}/"):
                modes[name] = stat.S_IMODE(opened.stat().st_mode)
    return modes


@pytest.mark.parametrize("umask", ["000", "022"])
async def test_files_that_hold_messages_are_the_brokers_alone(tmp_path: Path, umask: str) -> None:
    """From their first byte, whatever the umask; those that a former version left open, too."""
    queue = {"path": "queue.db", "queues": {"q": {"topics": ["t"]}}}
    spill = {"store": "spill", "memory_limit": 0, "directory": "."}
    policy = durable_policy()
    policy["plugins"] |= {"queue": queue, "memory": spill}
    wrapper = ("sh", "-c", f'umask {umask}; exec "$@"', "sh")
    with running_broker(policy, tmp_path, wrapper) as broker:
        async with await kept_client(broker.port) as client:
            await client.subscribe("t", 1)
        async with await connected(broker.port) as publisher:
            assert (await publisher.publish("t", bytes(100_000))).reason_code == 0
        modes = await asyncio.to_thread(modes_of_files, broker, tmp_path)
        assert {"queue.db", "queue.db-wal", "queue.db-shm", "queue.db.lock"} <= modes.keys()
        assert {"queue.db.reserve", "sessions.db", "sessions.db-wal"} <= modes.keys()
        assert any("(deleted)" in name for name in modes), "the spilled payload"
        assert set(modes.values()) == {0o600}
        broker.kill()
    (tmp_path / "queue.db").chmod(0o644)
    (tmp_path / "sessions.db-wal").chmod(0o644)
    with running_broker(policy, tmp_path, wrapper) as broker:
        modes = await asyncio.to_thread(modes_of_files, broker, tmp_path)
        assert set(modes.values()) == {0o600}
        assert "other users could read queue.db; only its owner" in broker.log
        assert "other users could read sessions.db-wal; only its owner" in broker.log


async def test_publishers_of_both_versions_lose_nothing_to_a_full_queue(tmp_path: Path) -> None:
    """Acknowledged is what comes: MQTT 3.1.1 waits for it, MQTT 5 sends what was refused again."""
    n_messages = 60
    policy = durable_policy() | {"limits": {"queued_messages": 10, "inflight_messages": 5}}
    with running_broker(policy, tmp_path) as broker:
        client = await kept_client(broker.port)
        await client.subscribe("t", 1)  # it is there, and acknowledges nothing yet
        old = Flow(broker.port, "old", MQTT_3_1_1)
        try:
            for number in range(n_messages):
                old.paho.publish("t", b"%d" % number, 1)
            old.wait(lambda: old.n_acknowledged >= 15, "as many as find room")
            async with client, await connected(broker.port) as new:
                assert (await new.publish("t", b"new")).reason_code == 0x97
                found: list[bytes] = []
                while len(found) < n_messages:
                    packet = await client.take(Publish)
                    found.append(packet.payload)
                    await client.send(PubAck(packet.packet_id))
                assert (await new.publish("t", b"new")).reason_code == 0
            old.wait(lambda: old.n_acknowledged >= n_messages, "all are acknowledged")
        finally:
            old.close()
        assert found == [b"%d" % number for number in range(n_messages)]
        assert "client s: full (limits.queued_messages: 10" in broker.log


def test_a_full_session_of_an_absent_client_stops_nobody(tmp_path: Path) -> None:
    """It cannot make room: the others get all, at once, and the log says what it does not get."""
    n_messages, n_kept = 750, 100
    policy = durable_policy() | {"limits": {"queued_messages": n_kept}}
    keeps: dict[str, Any] = {"clean_session": False}
    with running_broker(policy, tmp_path) as broker:
        with PahoClient(broker.port, "away", MQTT_3_1_1, **keeps) as away:
            assert away.connect()
            assert away.subscribe("t", 1)
        with (
            PahoClient(broker.port, "live", MQTT_3_1_1) as live,
            PahoClient(broker.port, "publisher", MQTT_3_1_1) as publisher,
        ):
            assert live.connect()
            assert live.subscribe("t", 1)
            assert publisher.connect()
            payloads = [b"%d" % number for number in range(n_messages)]
            sent = [publisher.paho.publish("t", payload, 1) for payload in payloads]
            assert live.payloads(n_messages) == payloads
            sent[-1].wait_for_publish(SECONDS)
        broker.wait_for_match(r"INFO .*client away: \d+ messages for it dropped: queue_full ")
        with PahoClient(broker.port, "away", MQTT_3_1_1, **keeps) as away:
            assert away.connect()
            assert away.payloads(n_kept) == payloads[:n_kept]
        broker.wait_for_match(
            rf"client away: messages for it dropped while it was away, {n_messages - n_kept}: "
        )


def test_a_start_without_what_was_stored_is_told(tmp_path: Path) -> None:
    """In another folder all is new; a file without a byte may be a copy that has failed."""
    policy = durable_policy()
    policy["plugins"]["queue"] = {"http": None, "queues": {"work": {"topics": ["work/#"]}}}
    databases = ("sessions.db", "penstock-queue.db")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        with running_broker(policy, folder) as broker:
            for name in databases:
                line = rf"INFO .*: {folder / name}: no database is there, a new one begins empty\n"
                broker.wait_for_match(line)
            assert broker.stop() == 0
    with running_broker(policy, tmp_path) as broker:
        assert broker.stop() == 0
        assert "begins empty" not in broker.log
    for name in databases:
        (tmp_path / name).write_bytes(b"")
    with running_broker(policy, tmp_path) as broker:
        for name in databases:
            broker.wait_for_match(rf"WARNING .*: {tmp_path / name} has no bytes: it begins empty;")
