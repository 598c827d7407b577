"""Real clients (paho) whose sessions outlive connections; they reconnect by themselves."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

V311: Final = MQTTProtocolVersion.MQTTv311
V5: Final = MQTTProtocolVersion.MQTTv5
SESSION_SECONDS: Final = 3600
RECONNECT_SECONDS: Final = 0.2
"""The time between a lost connection and the next try."""

KEEP_ALIVE_SECONDS: Final = 60
REST_SECONDS: Final = 0.5
ALIKE_MESSAGES: Final = 8
"""So many messages of one QoS follow each other, so that the broker may take them as a run."""

MOST_WAITING: Final = 100
"""The number of messages that a publisher gives to paho before it waits for acknowledgements."""


class PatientClient(paho.Client):
    """paho's client, which tries to reconnect only where a socket listens.

    With each try it forgets a step of what QoS 2 has reached: after a second one in a row, it
    publishes what it had a PUBREC for anew (`_messages_reconnect_reset_out` of paho 2.1).
    """

    def reconnect(self) -> MQTTErrorCode:
        """Wait for a listener, then connect."""
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1):
                return super().reconnect()
            time.sleep(RECONNECT_SECONDS)


class Flow:
    """A client whose session is kept; connected from its start until the block ends.

    Attributes:
        client: paho's client.
        n_connects: the number of times that the broker has accepted it.
        changed: a condition that is notified of each event of the client.
    """

    def __init__(
        self, port: int, client_id: str, version: MQTTProtocolVersion, *, window: int = 50
    ) -> None:
        """Connect.

        Args:
            port: the port of the broker on this machine.
            client_id: the Client Identifier.
            version: the version of MQTT.
            window: the number of messages towards the broker that may be unacknowledged.
        """
        self.changed = threading.Condition()
        options: dict[str, Any] = {"clean_session": False} if version == V311 else {}
        self.client = PatientClient(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **options
        )
        self.n_connects = 0
        self.client.max_inflight_messages_set(window)
        self.client.reconnect_delay_set(RECONNECT_SECONDS, RECONNECT_SECONDS)  # type: ignore[arg-type]
        self.client.on_connect = self._connected
        options = {}
        if version == V5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_SECONDS
            options = {"clean_start": False, "properties": properties}
        self.client.connect_async("127.0.0.1", port, KEEP_ALIVE_SECONDS, **options)

    def __enter__(self) -> Self:
        self.client.loop_start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until a condition on what the client has seen is true; say whether it is."""
        with self.changed:
            return bool(self.changed.wait_for(condition, seconds))

    def _connected(self, *arguments: Any) -> None:
        with self.changed:
            self.n_connects += 1
            self.connected(is_session_present=arguments[2].session_present)
            self.changed.notify_all()

    def connected(self, *, is_session_present: bool) -> None:
        """Note a CONNACK; the lock is held."""


class Publisher(Flow):
    """A publisher of numbered messages, some at QoS 1 and some at QoS 2, until told to stop.

    A payload is ``PUBLISHER QOS NUMBER``; messages of each QoS have a topic of their own. It
    publishes on a connection when all that paho sends again there is acknowledged: paho would send
    a new message before the older ones that it sends again at CONNACK.

    Attributes:
        acknowledged: the payloads that the broker has promised to deliver.
        repeated: the payloads that it has sent again, or may have, after it had lost its
            connection.
    """

    def __init__(
        self,
        port: int,
        client_id: str,
        version: MQTTProtocolVersion,
        prefix: str,
        *,
        pause_seconds: float = 0.0,
    ) -> None:
        """Make a publisher, which publishes from the start of its block on.

        Args:
            port: the port of the broker on this machine.
            client_id: the Client Identifier.
            version: the version of MQTT.
            prefix: the prefix of its topics.
            pause_seconds: the pause between two messages.
        """
        super().__init__(port, client_id, version)
        self.acknowledged: set[bytes] = set()
        self.repeated: set[bytes] = set()
        self._name = client_id
        self._prefix = prefix
        self._pause_seconds = pause_seconds
        self._unacknowledged: dict[int, bytes] = {}
        self._early: set[int] = set()
        self._sending = b""
        self._older: set[bytes] = set()
        self._is_connected = False
        self._n_published = 0
        self._is_told_to_end = False
        self.client.on_publish = self._published
        self.client.on_disconnect = self._disconnected
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.start()
        return self

    def connected(self, *, is_session_present: bool) -> None:  # noqa: ARG002
        """Note what paho sends again."""
        self._older = set(self._unacknowledged.values())
        if self._sending:
            self._older.add(self._sending)
        self.repeated.update(self._older)
        self._is_connected = True

    def _disconnected(self, *_: Any) -> None:
        with self.changed:
            self._is_connected = False

    def _published(self, *arguments: Any) -> None:
        # paho holds locks of its own here and in `publish`: none of them is asked for under ours.
        with self.changed:
            payload = self._unacknowledged.pop(arguments[2], None)
            if payload is None:
                self._early.add(arguments[2])
            else:
                self._acknowledged(payload)
            self.changed.notify_all()

    def _acknowledged(self, payload: bytes) -> None:
        self.acknowledged.add(payload)
        self._older.discard(payload)

    def _may_publish(self) -> bool:
        is_free = self._is_connected and not self._older
        return self._is_told_to_end or (is_free and len(self._unacknowledged) < MOST_WAITING)

    def _publish(self) -> None:
        while True:
            if self._pause_seconds:
                time.sleep(self._pause_seconds)
            qos = 1 + self._n_published // ALIKE_MESSAGES % 2
            payload = f"{self._name} {qos} {self._n_published}".encode()
            with self.changed:
                self.changed.wait_for(self._may_publish)
                if self._is_told_to_end:
                    return
                self._sending = payload
            info = self.client.publish(f"{self._prefix}/{self._name}/{qos}", payload, qos)
            self._n_published += 1
            with self.changed:
                self._sending = b""
                if info.mid in self._early:
                    self._early.remove(info.mid)
                    self._acknowledged(payload)
                else:
                    self._unacknowledged[info.mid] = payload

    def end(self, seconds: float) -> bool:
        """Publish no more; say whether all that was published is acknowledged within a time."""
        with self.changed:
            self._is_told_to_end = True
            self.changed.notify_all()
        self._thread.join()
        return self.wait(lambda: not self._unacknowledged, seconds)


class Subscriber(Flow):
    """A subscriber to the messages of `Publisher`s.

    Attributes:
        got: the number of deliveries of each payload.
        without_dup: the payloads that were delivered again under their old packet identifier
            without DUP. It may be a new delivery of a message that a `Publisher` has sent again.
        disordered: the messages whose first delivery was after a later one of their topic and QoS.
        is_subscribed: whether the SUBACK has arrived.
    """

    def __init__(
        self, port: int, client_id: str, version: MQTTProtocolVersion, topic_filter: str
    ) -> None:
        super().__init__(port, client_id, version)
        self.got: Counter[bytes] = Counter()
        self.without_dup: set[bytes] = set()
        self.disordered = 0
        self.is_subscribed = False
        self._newest: dict[tuple[bytes, bytes], int] = {}
        self._last_with: dict[int, bytes] = {}
        self._filter = topic_filter
        self.client.on_message = self._received
        self.client.on_subscribe = self._subscribed

    def connected(self, *, is_session_present: bool) -> None:
        """Subscribe where the broker has no session of the client."""
        if not is_session_present:
            self.client.subscribe(self._filter, 2)

    def _subscribed(self, *_: Any) -> None:
        with self.changed:
            self.is_subscribed = True
            self.changed.notify_all()

    def _received(self, _client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        payload = bytes(message.payload)
        name, qos, number = payload.split()
        with self.changed:
            if payload in self.got:
                if self._last_with.get(message.mid) == payload and not message.dup:
                    self.without_dup.add(payload)
            else:
                key = (name, qos)
                self.disordered += int(number) < self._newest.get(key, -1)
                self._newest[key] = max(int(number), self._newest.get(key, -1))
            self._last_with[message.mid] = payload
            self.got[payload] += 1
            self.changed.notify_all()

    def wait_for(self, payloads: set[bytes], idle_seconds: float) -> None:
        """Wait until all of these have come, or nothing has for a time."""
        with self.changed:
            while not payloads <= self.got.keys():
                if not self.changed.wait(idle_seconds):
                    return


def read_sys(
    port: int, below: str, is_enough: Callable[[Mapping[str, str]], bool], seconds: float
) -> dict[str, str]:
    """Return figures that a broker publishes about itself, by their topics.

    Args:
        port: the port of the broker on this machine.
        below: ``$SYS/broker/``; other topics are left out.
        is_enough: a function that says whether the figures so far are all.
        seconds: the longest wait for that, seconds.
    """
    prefix = f"$SYS/broker/{below}"
    told: dict[str, str] = {}

    def received(_client: Any, _userdata: Any, message: paho.MQTTMessage) -> None:
        told[message.topic.removeprefix(prefix)] = message.payload.decode()

    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = received
    client.connect("127.0.0.1", port)
    client.subscribe(f"{prefix}#")
    deadline = time.monotonic() + seconds
    while not is_enough(told) and time.monotonic() < deadline:
        client.loop(REST_SECONDS)
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:  # what comes behind them, such as reasons of drops
        client.loop(REST_SECONDS)
    client.disconnect()
    return told


def ledger_difference(port: int, seconds: float) -> int | None:
    """Return matched less all that it should be the sum of; None where the broker tells neither.

    Args:
        port: the port of the broker on this machine.
        seconds: the longest wait for `$SYS`, and for figures that agree, seconds.
    """
    parts = {"matched", "delivered", "inflight", "withheld", "queued", "expired", "moved"}
    deadline = time.monotonic() + seconds
    while True:
        told = read_sys(port, "penstock/ledger/", lambda told: told.keys() >= parts, seconds)
        if not told.keys() >= parts:
            return None
        of_drops = [int(n) for name, n in told.items() if name.startswith("dropped/")]
        found = 2 * int(told["matched"]) - sum(int(told[part]) for part in parts) - sum(of_drops)
        # The broker may have told its next figures meanwhile, and some of them came too late.
        if not found or time.monotonic() > deadline:
            return found
