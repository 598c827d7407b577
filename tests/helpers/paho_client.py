"""A paho client whose events are waited for."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import Any, Final, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.helpers.process import SECONDS

MQTT_3_1_1: Final = MQTTProtocolVersion.MQTTv311
MQTT_5: Final = MQTTProtocolVersion.MQTTv5


def properties(packet_type: int, **values: Any) -> Properties:
    """Return properties of a packet, by paho's names."""
    made = Properties(packet_type)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


class PahoClient:
    """One client, disconnected at the end of a ``with`` block.

    Attributes:
        paho: the client itself.
        connack: the broker's answer to the newest CONNECT: (session present, reason code).
    """

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: MQTTProtocolVersion = MQTT_5,
        *,
        host: str = "127.0.0.1",
        **options: Any,
    ) -> None:
        """Make a client that is not connected.

        Args:
            port: the port of the broker on this machine.
            client_id: the Client Identifier; "" lets the broker or the library choose.
            version: the version of MQTT.
            host: the host of the broker; with ``transport="unix"``, the file name of a Unix socket.
            options: options of paho's own client.
        """
        self._host = host
        self._port = port
        self._connected: queue.Queue[tuple[bool, ReasonCode]] = queue.Queue()
        self._disconnected: queue.Queue[ReasonCode] = queue.Queue()
        self._subscribed: queue.Queue[list[ReasonCode]] = queue.Queue()
        self._messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connack: tuple[bool, ReasonCode]
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.paho.on_connect = lambda _c, _u, flags, code, _p: self._connected.put(
            (flags.session_present, code)
        )
        self.paho.on_disconnect = lambda _c, _u, _f, code, _p: self._disconnected.put(code)
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self._subscribed.put(codes)
        self.paho.on_message = lambda _c, _u, message: self._messages.put(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def connect(
        self, username: str | None = None, password: str | None = None, **options: Any
    ) -> bool:
        """Connect; return whether the broker has accepted.

        Args:
            username: User Name, or None.
            password: Password, or None.
            options: options of paho's `connect`, such as `keepalive` or `properties`.
        """
        self.paho.username_pw_set(username, password)
        self.paho.connect(self._host, self._port, **options)
        self.paho.loop_start()
        self.connack = self._connected.get(timeout=SECONDS)
        return not self.connack[1].is_failure

    def subscribe(self, topic_filter: str, qos: int = 0, **options: Any) -> bool:
        """Subscribe; return whether the broker has granted it."""
        if "options" not in options:  # which hold a QoS themselves
            options["qos"] = qos
        self.paho.subscribe(topic_filter, **options)
        (code,) = self._subscribed.get(timeout=SECONDS)
        return not code.is_failure

    def publish(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> None:
        """Publish and wait until it is acknowledged, or sent at QoS 0."""
        sent = self.paho.publish(topic, payload, qos, **options)
        sent.wait_for_publish(SECONDS)
        assert sent.is_published(), f"{topic} was not acknowledged"

    def message(self) -> paho.MQTTMessage:
        """Return the next message."""
        return self._messages.get(timeout=SECONDS)

    def payloads(self, n_messages: int) -> list[bytes]:
        """Return the payloads of the next messages."""
        return [bytes(self.message().payload) for _ in range(n_messages)]

    def disconnected(self) -> ReasonCode:
        """Wait for the end of the connection; return its reason code."""
        return self._disconnected.get(timeout=SECONDS)

    def close(self) -> None:
        """Disconnect, or give up where the broker did not accept."""
        self.paho.disconnect()
        self.paho.loop_stop()


def publish_properties(**values: Any) -> Properties:
    """Return properties of a PUBLISH, by paho's names."""
    return properties(PacketTypes.PUBLISH, **values)


def connect_properties(**values: Any) -> Properties:
    """Return properties of a CONNECT, by paho's names."""
    return properties(PacketTypes.CONNECT, **values)
