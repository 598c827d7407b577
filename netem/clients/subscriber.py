"""A client that subscribes and writes down each PUBLISH at once.

A line each, ``PUBLISHER STREAM NUMBER QOS DUP SECONDS``: numbers as in the head of the
payload, and the monotonic second at which the client had it; at QoS 2, that of its PUBREL. If its
connection is lost, it connects again to its session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from paho.mqtt import client as mqtt

from penstock.netem.clients.client_plan import SubscriberPlan
from penstock.netem.clients.connection import connect, give_up, new_client, note, say
from penstock.netem.clients.payloads import read_head

LOOP_SECONDS: Final = 0.5


class Delivered(NamedTuple):
    """A PUBLISH as the subscriber has it.

    Attributes:
        publisher: its number.
        stream: its number.
        number: of the message.
        qos: of the PUBLISH.
        is_duplicate: its DUP flag.
        at: monotonic seconds.
    """

    publisher: int
    stream: int
    number: int
    qos: int
    is_duplicate: bool
    at: float


def read_delivered_file(file: Path) -> list[Delivered]:
    """Return what a subscriber has written, in the order of arrival; nothing where it has not."""
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


def run(plan: SubscriberPlan, await_begin: Callable[[], float]) -> None:
    """Subscribe and write down what comes until the process is ended.

    Says ``ready`` when subscribed, ``assured`` when all has come that has to (QoS 1 and 2), and
    ``complete`` when all has come.

    Args:
        plan: to what.
        await_begin: returns the monotonic second of the beginning when that is known.
    """
    subscriber = _Subscriber(plan)
    subscriber.connect()
    if plan.reads_from_seconds is not None:
        # The kernel takes what fits into its receive buffer, some 130 kB, and then nothing more: it
        # grows with what is read. A smaller one would throw away what it has offered to take.
        time.sleep(max(0.0, await_begin() + plan.reads_from_seconds - time.monotonic()))
    subscriber.read()


class Progress:
    """What has come of what is awaited.

    Args:
        plan: what is awaited.
        tell: is called with ``assured`` and ``complete``, once each.
    """

    def __init__(self, plan: SubscriberPlan, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._awaited = {(each.publisher, each.stream): each for each in plan.awaited}
        self._seen: set[tuple[int, int, int]] = set()
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
        """Count a message, which may come again."""
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
    """The connection and what came over it."""

    def __init__(self, plan: SubscriberPlan) -> None:
        self._plan = plan
        self._is_subscribed = False
        self._lines = os.open(plan.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._progress = Progress(plan, lambda word: say(word, plan.client_id))
        self._client = client = new_client(plan.client_id, plan.protocol)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message

    def connect(self) -> None:
        """Connect and subscribe."""
        plan = self._plan
        connect(
            self._client,
            plan.address,
            plan.protocol,
            plan.keep_alive_seconds,
            plan.user_properties,
        )
        while not self._is_subscribed:
            if (status := self._client.loop(LOOP_SECONDS)) != mqtt.MQTT_ERR_SUCCESS:
                give_up(f"connection lost before the subscription: {mqtt.error_string(status)}")

    def read(self) -> None:
        """Take what comes, without an end."""
        self._client.loop_forever()

    def _on_connect(
        self, client: mqtt.Client, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            give_up(f"connection refused: {reason}")
        note(f"connected, session {'' if flags.session_present else 'not '}present")
        if not flags.session_present:
            client.subscribe([(each, self._plan.qos) for each in self._plan.filters])

    def _on_subscribe(
        self, _client: mqtt.Client, _data: Any, _mid: int, reasons: Any, _properties: Any
    ) -> None:
        if failed := [str(each) for each in reasons if each.is_failure]:
            give_up(f"subscription refused: {', '.join(failed)}")
        if not self._is_subscribed:
            self._is_subscribed = True
            say("ready", self._plan.client_id)

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        at = time.monotonic()
        head = read_head(bytes(message.payload))
        if head is None:
            return
        which = f"{head.publisher} {head.stream} {head.number}"
        os.write(self._lines, f"{which} {message.qos} {int(message.dup)} {at!r}\n".encode())
        self._progress.count(head.publisher, head.stream, head.number)
