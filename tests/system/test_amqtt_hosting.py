from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, running_broker

OWN_PLUGIN = '''
"""A plugin as aMQTT's documentation has it: configuration, authentication, topics, events."""

from dataclasses import dataclass, field
from pathlib import Path

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin


class Guard(BaseAuthPlugin, BaseTopicPlugin):
    """Lets its guests in, keeps them to their own topics, and answers questions."""

    def __init__(self, context):
        super().__init__(context)
        self.n_messages = 0

    async def authenticate(self, *, session):
        return session.username in self.config.guests

    async def topic_filtering(self, *, session=None, topic=None, action=None):
        if action == Action.RECEIVE:
            return topic != "secret"
        return topic in ("ask", "answer", "secret") or topic.startswith(session.username + "/")

    async def on_broker_post_start(self):
        await self.context.retain_message("answer", b"hello")

    async def on_broker_message_received(self, *, client_id, message):
        self.n_messages += 1
        if message.topic == "ask":
            answer = f"{client_id} {message.data.decode()} {self.n_messages}"
            await self.context.broadcast_message("answer", answer.encode())

    async def on_broker_post_shutdown(self):
        Path(self.config.log).write_text(f"{self.n_messages} messages")

    @dataclass
    class Config:
        log: str
        guests: list[str] = field(default_factory=list)
'''


Start = Callable[[str], BrokerProcess]
Connect = Callable[..., PahoClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a broker with plugins given as YAML."""
    brokers: list[BrokerProcess] = []

    def start(plugins: str) -> BrokerProcess:
        policy = f"listeners: {{default: {{bind: '127.0.0.1:0'}}}}\n{plugins}"
        brokers.append(BrokerProcess(policy, tmp_path))
        return brokers[-1]

    yield start
    for broker in brokers:
        if broker.process.poll() is None:
            broker.stop()


@pytest.fixture
def client() -> Iterator[Connect]:
    """Return a function that makes clients, all of which are closed in the end."""
    clients: list[PahoClient] = []

    def client(
        broker: BrokerProcess,
        client_id: str,
        version: MQTTProtocolVersion = MQTT_3_1_1,
        **options: Any,
    ) -> PahoClient:
        clients.append(
            PahoClient(broker.port, client_id, version, reconnect_on_failure=False, **options)
        )
        return clients[-1]

    yield client
    for one in clients:
        one.close()


def received(client: PahoClient) -> tuple[str, bytes]:
    """Return topic and payload of a client's next message."""
    message = client.message()
    return message.topic, bytes(message.payload)


def test_stock_amqtt_file_starts_the_broker(tmp_path: Path, client: Connect) -> None:
    """With the file aMQTT installs, clients of both versions exchange messages and read $SYS."""
    stock = (files("amqtt") / "scripts" / "default_broker.yaml").read_text()
    policy = stock.replace("0.0.0.0:1883", "127.0.0.1:0").replace(
        "sys_interval: 20", "sys_interval: 1"
    )
    assert policy.count("127.0.0.1:0") == 1
    assert policy.endswith("sys_interval: 1")
    with running_broker(policy, tmp_path) as broker:
        old, new = client(broker, "old"), client(broker, "new", MQTT_5)
        assert old.connect()
        assert new.connect()
        assert old.subscribe("t", 1)
        new.publish("t", b"data")
        assert received(old) == ("t", b"data")
        # Only aMQTT's plugin has this topic.
        assert new.subscribe("$SYS/broker/messages/subscriptions/count")
        assert received(new) == ("$SYS/broker/messages/subscriptions/count", b"2")
        assert broker.stop() == 0
    assert "EventLoggerPlugin: ### 'on_broker_client_connected' EVENT FIRED ###" in broker.log
    assert "ERROR" not in broker.log


def test_plugin_from_amqtts_documentation(start: Start, client: Connect, tmp_path: Path) -> None:
    """It authenticates, filters topics, hears messages, publishes, and sees the end."""
    (tmp_path / "guard.py").write_text(OWN_PLUGIN)
    log = tmp_path / "guard.log"
    broker = start(f"plugins: {{guard.Guard: {{log: '{log}', guests: [ann, bob]}}}}")
    ann, bob, eve = client(broker, "a"), client(broker, "b"), client(broker, "e")
    assert ann.connect("ann")
    assert bob.connect("bob")
    assert not eve.connect("eve")
    assert ann.subscribe("answer")
    assert received(ann) == ("answer", b"hello")
    assert ann.subscribe("secret")
    assert ann.subscribe("ann/#")
    assert not ann.subscribe("bob/#")
    bob.publish("secret", b"not to be delivered")
    bob.publish("ann/1", b"not to be published")
    bob.publish("ask", b"why")
    assert received(ann) == ("answer", b"b why 3")
    assert broker.stop() == 0
    assert log.read_text() == "3 messages"


def test_amqtts_persistence_plugin_keeps_what_it_keeps(tmp_path: Path, client: Connect) -> None:
    """`SessionDBPlugin` unchanged: subscriptions and retained messages survive `kill -9`."""
    database = tmp_path / "amqtt.db"
    policy = f"""
listeners: {{default: {{bind: '127.0.0.1:0'}}}}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin: {{allow_anonymous: true}}
  amqtt.contrib.persistence.SessionDBPlugin:
    connection: sqlite+aiosqlite:///{database}
    clear_on_shutdown: false
"""
    with running_broker(policy, tmp_path) as broker:
        kept = client(broker, "kept", clean_session=False)
        assert kept.connect("ann")
        assert kept.subscribe("t/#", 1)
        publisher = client(broker, "p")
        assert publisher.connect()
        publisher.publish("state", b"retained", retain=True)
        # The plugin stores what it is told in tasks of its own.
        wait_for_rows(database, "SELECT 1 FROM stored_messages WHERE topic = 'state'")
        wait_for_rows(database, "SELECT 1 FROM stored_sessions WHERE subscriptions LIKE '%t/#%'")
        broker.kill()
    with running_broker(policy, tmp_path) as broker:
        broker.wait_for_log("Restored 1 sessions.")  # it begins once listeners are open
        publisher = client(broker, "p")
        assert publisher.connect()
        assert publisher.subscribe("state", 1)
        assert received(publisher) == ("state", b"retained")
        publisher.publish("t/1", b"while away")
        kept = client(broker, "kept", clean_session=False)
        assert kept.connect("ann")
        assert kept.connack[0], "Session Present"
        assert received(kept) == ("t/1", b"while away")


def wait_for_rows(database: Path, query: str) -> None:
    """Wait until a query of another program's database finds something."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(database)) as own,
        ):
            if own.execute(query).fetchone():
                return
        time.sleep(0.01)
    raise AssertionError(f"nothing found by {query}")
