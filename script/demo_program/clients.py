"""The demo's MQTT clients, on paho: a publisher, subscribers, and a reader of `$SYS`.

Each client has a network thread of paho's. All take the time from one clock, so the latency of a
message is its arrival less its publication.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Any, Final

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from script.demo_program.errors import DemoError

CONNECT_SECONDS: Final = 60.0
KEEP_ALIVE_SECONDS: Final = 60

TELEMETRY: Final = "telemetry"
PICTURES: Final = "pictures"
LEDGER_ROOT: Final = "$SYS/broker/penstock/"


class Client:
    """A connected client.

    Attributes:
        lost: the reason why the connection was lost, or "".
    """

    def __init__(
        self,
        name: str,
        port: int,
        *,
        version: MQTTProtocolVersion,
        make: type[mqtt.Client] = mqtt.Client,
    ) -> None:
        """Connect to a port of loopback.

        Raises:
            DemoError: the broker does not take it.
        """
        self.name = name
        self.lost = ""
        self._connected = threading.Event()
        self._subscribed = threading.Event()
        self._is_closing = False
        self._client = make(CallbackAPIVersion.VERSION2, name, protocol=version)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._prepare(self._client)
        try:
            self._client.connect("127.0.0.1", port, KEEP_ALIVE_SECONDS)
        except OSError as error:
            raise DemoError(f"{name}: no connection to port {port}: {error}") from error
        self._client.loop_start()
        if not self._connected.wait(CONNECT_SECONDS):
            raise DemoError(f"{name}: no CONNACK from port {port} in {CONNECT_SECONDS:.0f} s")

    def _prepare(self, client: mqtt.Client) -> None:
        """Set callbacks before anything is received."""

    def _on_connect(
        self, _client: mqtt.Client, _data: Any, _flags: Any, reason_code: Any, _properties: Any
    ) -> None:
        if reason_code.is_failure:
            self.lost = f"refused: {reason_code}"
        else:
            self._connected.set()

    def _on_disconnect(
        self, _client: mqtt.Client, _data: Any, _flags: Any, reason_code: Any, _properties: Any
    ) -> None:
        if not self._is_closing:
            self.lost = str(reason_code)

    def subscribe(self, *topic_filters: str, qos: int = 1) -> None:
        """Subscribe, and wait until the broker has done so.

        Raises:
            DemoError: it did not answer.
        """
        self._client.subscribe([(topic_filter, qos) for topic_filter in topic_filters])
        if not self._subscribed.wait(CONNECT_SECONDS):
            raise DemoError(f"{self.name}: no SUBACK in {CONNECT_SECONDS:.0f} s")

    def close(self) -> None:
        """Disconnect and end the thread."""
        self._is_closing = True
        self._client.disconnect()
        self._client.loop_stop()


class Publisher(Client):
    """A publisher at QoS 1, which records the times of publications and the acknowledged messages.

    Attributes:
        small_at: the time of publication of each small message, monotonic seconds, by its number.
        pictures_at: the time of publication of each picture, by topic.
    """

    def __init__(self, name: str, port: int) -> None:
        self.small_at: dict[int, float] = {}
        self.pictures_at: dict[str, float] = {}
        self._packet_ids: dict[int | str, int] = {}
        self._answers: dict[int, bool] = {}
        super().__init__(name, port, version=MQTTProtocolVersion.MQTTv5)

    def _prepare(self, client: mqtt.Client) -> None:
        client.on_publish = self._on_publish

    def _on_publish(
        self, _client: mqtt.Client, _data: Any, packet_id: int, reason_code: Any, _properties: Any
    ) -> None:
        self._answers[packet_id] = not reason_code.is_failure

    def publish_small(self, number: int, topic: str, payload: bytes) -> None:
        """Publish a small message."""
        self.small_at[number] = time.monotonic()
        self._packet_ids[number] = self._client.publish(topic, payload, qos=1).mid

    def publish_picture(self, topic: str, payload: bytes) -> None:
        """Publish a picture."""
        self.pictures_at[topic] = time.monotonic()
        self._packet_ids[topic] = self._client.publish(topic, payload, qos=1).mid

    def acknowledged(self) -> set[int | str]:
        """Return the messages that the broker has taken over, by number or topic."""
        answers = self._answers
        return {key for key, packet_id in self._packet_ids.items() if answers.get(packet_id)}

    @property
    def n_acknowledged(self) -> int:
        """The number of messages that the broker has answered."""
        return len(self._answers)


class Subscriber(Client):
    """A subscriber at QoS 1, which records the time of each arrival.

    Attributes:
        small: the (number, monotonic seconds of arrival) of each small message, in order of
            arrival.
        pictures: the (topic, SHA-256 of the payload, monotonic seconds of arrival) of each picture.
        strange: the topics of messages that are neither.
        out_of_order: the small messages that arrived after a later one of their topic.
    """

    def __init__(
        self,
        name: str,
        port: int,
        *,
        version: MQTTProtocolVersion,
        make: type[mqtt.Client] = mqtt.Client,
    ) -> None:
        self.small: list[tuple[int, float]] = []
        self.pictures: list[tuple[str, str, float]] = []
        self.strange: list[str] = []
        self.out_of_order = 0
        self._newest: dict[str, int] = {}
        super().__init__(name, port, version=version, make=make)
        self.subscribe(f"{TELEMETRY}/#", f"{PICTURES}/#")

    def _prepare(self, client: mqtt.Client) -> None:
        client.on_message = self._on_message

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        arrived_at = time.monotonic()
        topic = message.topic
        if topic.startswith(f"{PICTURES}/"):
            digest = hashlib.sha256(message.payload).hexdigest()
            self.pictures.append((topic, digest, arrived_at))
            return
        number = read_number(message.payload)
        if number is None:
            self.strange.append(topic)
            return
        if number < self._newest.get(topic, 0):
            self.out_of_order += 1
        self._newest[topic] = number
        self.small.append((number, arrived_at))

    @property
    def n_received(self) -> int:
        """The number of messages that arrived."""
        return len(self.small) + len(self.pictures)


def read_number(payload: bytes | bytearray) -> int | None:
    """Return the number of a small message; None where it is none of the demo's."""
    try:
        number = json.loads(payload)["n"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


class FiguresReader(Client):
    """A client that keeps a broker's newest figures of `$SYS/broker/penstock`."""

    def __init__(self, name: str, port: int) -> None:
        self._figures: dict[str, str] = {}
        self._lock = threading.Lock()
        super().__init__(name, port, version=MQTTProtocolVersion.MQTTv5)
        self.subscribe(f"{LEDGER_ROOT}#", qos=0)

    def _prepare(self, client: mqtt.Client) -> None:
        client.on_message = self._on_message

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            name = message.topic.removeprefix(LEDGER_ROOT)
            self._figures[name] = message.payload.decode()

    def figures(self) -> dict[str, int]:
        """Return the figures by their topic below `$SYS/broker/penstock/`."""
        with self._lock:
            return {name: int(value) for name, value in self._figures.items() if value.isdigit()}
