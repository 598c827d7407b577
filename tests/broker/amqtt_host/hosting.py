"""A broker without sockets that hosts aMQTT plugins, and clients for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin

from penstock.broker.amqtt_host.host import AmqttHost
from penstock.broker.config.policy import Policy, parse_policy
from penstock.broker.fast_paths.door import connection_class, core_class
from penstock.broker.mqtt.packets import ConnAck, Connect, Packet, Publish
from penstock.broker.mqtt.reader import read_packet
from penstock.broker.mqtt.receive_buffer import read_remaining_length
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.sessions.session import pump

ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
FILE = "amqtt.plugins.authentication.FileAuthPlugin"
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
TABOO = "amqtt.plugins.topic_checking.TopicTabooPlugin"
SYS = "amqtt.plugins.sys.broker.BrokerSysPlugin"
EVENT_LOGGER = "amqtt.plugins.logging_amqtt.EventLoggerPlugin"
PACKET_LOGGER = "amqtt.plugins.logging_amqtt.PacketLoggerPlugin"


def named(cls: type[Any]) -> str:
    """Return the dotted path under which a policy file names a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def policy_of(plugins: Mapping[str, Any] | None, **keys: Any) -> Policy:
    """Return a policy with these plugins; None for aMQTT's default list."""
    document = dict(keys)
    if plugins is not None:
        document["plugins"] = dict(plugins)
    return parse_policy(document, "policy.yaml")


class Broker:
    """A core with a host, on a clock that stands still."""

    def __init__(self, plugins: Mapping[str, Any] | None, **keys: Any) -> None:
        policy = policy_of(plugins, **keys)
        self.now = 0.0
        self.host = AmqttHost(policy, clock=lambda: self.now)
        self.tasks: list[asyncio.Task[None]] = []
        self.core = core_class()(
            policy.limits,
            logger=logging.getLogger("penstock"),
            wake=lambda: None,
            spawn=self._spawn,
            options=policy.mqtt,
            new_client_id=lambda: "assigned",
            access=self.host,
            callbacks=self.host.callbacks,
        )
        self.host.attach(self.core)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def plugin(self, cls: type[Any]) -> Any:
        """Return the plugin of a class."""
        return next(p for p in self.host.manager.plugins if type(p) is cls)

    async def connect(self, client_id: str = "c", **keys: Any) -> Client:
        """Return a client whose CONNECT was answered."""
        client = Client(self)
        keys = {"protocol_version": 4} | keys
        await client.send(Connect(client_id=client_id, **keys))
        return client


class Client:
    """One connection, with its packets as objects."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = 4
        self.connection = connection_class(broker.core)(
            broker.core, broker.now, remote_address="192.0.2.1", remote_port=999
        )

    async def send(self, packet: Packet) -> None:
        """Send a packet and wait until it is handled."""
        if isinstance(packet, Connect):
            self._version = packet.protocol_version
        self.connection.receive_data(write_packet(packet, self._version), self._broker.now)
        while self.connection.client.suspended is not None:
            await self.connection.client.suspended
            self.connection.resume(self._broker.now)

    def received(self) -> list[Packet]:
        """Return what has come since the last call."""
        pump(self.connection.client, 0, self._broker.now)
        data = b"".join(self.connection.outgoing.data_to_send())
        packets = []
        position = 0
        while position < len(data):
            start, length = read_remaining_length(data, position)
            body = data[start : start + length]
            packets.append(read_packet(data[position], body, self._version))
            position = start + length
        return packets

    def published(self) -> list[tuple[str, bytes]]:
        """Return topic and payload of the messages that have come since the last call."""
        return [(p.topic, p.payload) for p in self.received() if isinstance(p, Publish)]

    @property
    def is_connected(self) -> bool:
        """Whether CONNECT was accepted and the connection has not ended."""
        return self.connection.client.is_open

    def return_code(self) -> int:
        """Return the reason code of the CONNACK that has come."""
        return next(p.reason_code for p in self.received() if isinstance(p, ConnAck))

    def lose(self) -> None:
        """End the network connection without DISCONNECT."""
        self.connection.connection_lost(self._broker.now)


class Recorder(BasePlugin[Any]):
    """Notes every event with what it is told; its handlers cannot wait."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.events: list[tuple[str, dict[str, Any]]] = []

    def names(self) -> list[str]:
        """Return the names of the events so far."""
        return [name for name, _ in self.events]

    def told(self, name: str) -> dict[str, Any]:
        """Return what the newest event of a name told."""
        return next(told for event, told in reversed(self.events) if event == name)

    async def on_broker_pre_start(self) -> None:
        """Note the event."""
        self.events.append(("pre_start", {}))

    async def on_broker_post_start(self) -> None:
        """Note the event."""
        self.events.append(("post_start", {}))

    async def on_broker_pre_shutdown(self) -> None:
        """Note the event."""
        self.events.append(("pre_shutdown", {}))

    async def on_broker_post_shutdown(self) -> None:
        """Note the event."""
        self.events.append(("post_shutdown", {}))

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        """Note the event."""
        told = {"client_id": client_id, "client_session": client_session}
        self.events.append(("connected", told))

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Any) -> None:
        """Note the event."""
        told = {"client_id": client_id, "client_session": client_session}
        self.events.append(("disconnected", told))

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        """Note the event."""
        self.events.append(("subscribed", {"client_id": client_id, "topic": topic, "qos": qos}))

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        """Note the event."""
        self.events.append(("unsubscribed", {"client_id": client_id, "topic": topic}))

    async def on_broker_message_received(self, *, client_id: str, message: Any) -> None:
        """Note the event."""
        self.events.append(("received", {"client_id": client_id, "message": message}))

    async def on_broker_message_broadcast(self, *, client_id: str, message: Any) -> None:
        """Note the event."""
        self.events.append(("broadcast", {"client_id": client_id, "message": message}))

    async def on_broker_retained_message(
        self, *, client_id: str | None, retained_message: Any
    ) -> None:
        """Note the event."""
        told = {"client_id": client_id, "retained_message": retained_message}
        self.events.append(("retained", told))

    async def close(self) -> None:
        """Note the call."""
        self.events.append(("close", {}))


class PacketRecorder(BasePlugin[Any]):
    """Notes the packets that come and go."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.packets: list[tuple[str, Any, Any]] = []

    async def on_mqtt_packet_received(self, *, packet: Any, session: Any = None) -> None:
        """Note the event."""
        self.packets.append(("in", packet, session))

    async def on_mqtt_packet_sent(self, *, packet: Any, session: Any = None) -> None:
        """Note the event."""
        self.packets.append(("out", packet, session))


class Broken(BasePlugin[Any]):
    """Fails at an event, at once."""

    async def on_broker_client_connected(self, **_told: Any) -> None:
        """Fail."""
        raise RuntimeError("broken at once")


class BrokenLater(BasePlugin[Any]):
    """Fails at an event, after a wait."""

    async def on_broker_client_connected(self, **_told: Any) -> None:
        """Wait and fail."""
        await asyncio.sleep(0)
        raise RuntimeError("broken later")


class SaysNone(BaseAuthPlugin):
    """Cannot tell whether a client may connect."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Abstain."""
        del session
        return None


class SaysNo(BaseAuthPlugin):
    """Lets nobody connect."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Refuse."""
        del session
        return False


class Raises(BaseAuthPlugin):
    """Fails when it is asked."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Fail."""
        raise RuntimeError(session.client_id)


class AsksElsewhere(BaseAuthPlugin, BaseTopicPlugin):
    """Lets users through whose name begins with ``good``, after a wait."""

    async def authenticate(self, *, session: Any) -> bool | None:
        """Wait and answer."""
        await asyncio.sleep(0)
        session.attributes["asked"] = session.attributes.get("asked", 0) + 1
        return bool(session.username and session.username.startswith("good"))

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Any = None
    ) -> bool | None:
        """Wait and answer: topics belong to the user they begin with."""
        del action
        await asyncio.sleep(0)
        return bool(topic and topic.startswith(session.username))
