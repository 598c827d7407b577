"""A client that subscribes and records each PUBLISH at once.

Each PUBLISH makes a line, ``PUBLISHER STREAM NUMBER QOS DUP SECONDS``: the numbers are those of the
payload's head, and the seconds are the monotonic time at which the client received the PUBLISH, or
at QoS 2 its PUBREL. The client reconnects to its session when its connection is lost. A subscriber
may have several connections; what any of them delivers is recorded alike.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from paho.mqtt import client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.netem.clients.client_plan import LanePlan, SubscriberPlan
from penstock.netem.clients.connection import connect, give_up, new_client, note, read_in_bulk, say
from penstock.netem.clients.payloads import SOUNDING, read_head

LOOP_SECONDS: Final = 0.5

SIZE_PROPERTY: Final = "penstock-size"
"""The User Property of a SUBSCRIBE that names a size class. The broker's own module would make each
client's process larger."""


class Delivered(NamedTuple):
    """A PUBLISH as the subscriber received it.

    Attributes:
        at: the time at which it was read, monotonic seconds.
    """

    publisher: int
    stream: int
    number: int
    qos: int
    is_duplicate: bool
    at: float


def read_delivered_file(file: Path) -> list[Delivered]:
    """Return a subscriber's records in order of arrival; none if its file does not exist."""
    if not file.exists():
        return []
    delivered = []
    with file.open() as lines:
        for line in lines:
            publisher, stream, number, qos, dup, at = line.split()
            delivered.append(
                Delivered(int(publisher), int(stream), int(number), int(qos), dup == "1", float(at))
            )
    return delivered


def run(plan: SubscriberPlan) -> None:
    """Subscribe and record messages until the process is ended.

    The runner is told ``ready`` when the client has subscribed, ``reached`` when a sounding of each
    expected stream has arrived, ``assured`` when all messages of QoS 1 and 2 have arrived, and
    ``complete`` when all messages have arrived.
    """
    read_in_bulk()
    subscriber = _Subscriber(plan)
    subscriber.connect()
    subscriber.read()


class Progress:
    """The progress of the expected messages.

    Args:
        plan: the expected messages.
        tell: a function that is called with ``reached``, ``assured`` and ``complete``, once each.
    """

    def __init__(self, plan: SubscriberPlan, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._awaited = {(each.publisher, each.stream): each for each in plan.awaited}
        self._seen: set[tuple[int, int, int]] = set()
        self._silent = set(self._awaited)
        self._rest = {
            is_promised: sum(
                each.messages for each in plan.awaited if each.is_promised is is_promised
            )
            for is_promised in (True, False)
        }
        if not self._rest[True]:
            tell("assured")
        if not any(self._rest.values()):
            tell("complete")

    def count(self, publisher: int, stream: int, number: int) -> None:
        """Count a message; a duplicate is counted once."""
        if number == SOUNDING:
            if (publisher, stream) in self._silent:
                self._silent.remove((publisher, stream))
                if not self._silent:
                    self._tell("reached")
            return
        awaited = self._awaited.get((publisher, stream))
        if awaited is None or (publisher, stream, number) in self._seen:
            return
        self._seen.add((publisher, stream, number))
        self._rest[awaited.is_promised] -= 1
        if awaited.is_promised and not self._rest[True]:
            self._tell("assured")
        if not any(self._rest.values()):
            self._tell("complete")


class _Subscriber:
    """The connections and the messages that they delivered."""

    def __init__(self, plan: SubscriberPlan) -> None:
        self._plan = plan
        self._lines = os.open(plan.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._progress = Progress(plan, lambda word: say(word, plan.client_id))
        self._counting = threading.Lock()
        self._lanes = [_Lane(plan, lane, self._on_message) for lane in plan.lanes]

    def connect(self) -> None:
        """Connect and subscribe."""
        for lane in self._lanes:
            lane.connect()
        say("ready", self._plan.client_id)

    def read(self) -> None:
        """Receive messages; never return."""
        threading.excepthook = lambda failed: give_up(f"{failed.exc_type}: {failed.exc_value}")
        first, *others = self._lanes
        for lane in others:
            threading.Thread(target=lane.read, daemon=True).start()
        first.read()

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        at = time.monotonic()
        head = read_head(bytes(message.payload))
        if head is None:
            return
        if head.number != SOUNDING:
            which = f"{head.publisher} {head.stream} {head.number}"
            os.write(self._lines, f"{which} {message.qos} {int(message.dup)} {at!r}\n".encode())
        with self._counting:
            self._progress.count(head.publisher, head.stream, head.number)


class _Lane:
    """One connection of a subscriber."""

    def __init__(
        self,
        subscriber: SubscriberPlan,
        plan: LanePlan,
        on_message: Callable[[mqtt.Client, Any, mqtt.MQTTMessage], None],
    ) -> None:
        self._subscriber = subscriber
        self._plan = plan
        self._is_subscribed = False
        self._client = client = new_client(
            plan.client_id, subscriber.protocol, has_lanes=plan.has_lanes
        )
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = on_message

    def connect(self) -> None:
        """Connect and subscribe."""
        subscriber = self._subscriber
        connect(
            self._client,
            subscriber.address,
            subscriber.port,
            subscriber.protocol,
            subscriber.keep_alive_seconds,
            subscriber.user_properties,
        )
        while not self._is_subscribed:
            if (status := self._client.loop(LOOP_SECONDS)) != mqtt.MQTT_ERR_SUCCESS:
                give_up(f"connection lost before the subscription: {mqtt.error_string(status)}")

    def read(self) -> None:
        """Receive messages; never return."""
        self._client.loop_forever()

    def _on_connect(
        self, client: mqtt.Client, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            give_up(f"connection refused: {reason}")
        note(f"connected, session {'' if flags.session_present else 'not '}present")
        if not flags.session_present:
            filters = [(each, self._subscriber.qos) for each in self._plan.filters]
            client.subscribe(filters, properties=_subscribe_properties(self._plan.sizes))

    def _on_subscribe(
        self, _client: mqtt.Client, _data: Any, _mid: int, reasons: Any, _properties: Any
    ) -> None:
        if failed := [str(each) for each in reasons if each.is_failure]:
            give_up(f"subscription refused: {', '.join(failed)}")
        self._is_subscribed = True


def _subscribe_properties(sizes: str | None) -> Properties | None:
    """Return the properties of a SUBSCRIBE to one size class; None for both."""
    if sizes is None:
        return None
    properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    properties.UserProperty = [(SIZE_PROPERTY, sizes)]
    return properties
