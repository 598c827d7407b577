"""A client that publishes each message when it is due.

Each stream has a connection of its own, so that a large message does not delay a small one. The
publisher writes a line to its file for each event:

* ``p STREAM NUMBER PACKET_ID SECONDS``: a message was given to its connection,
* ``a STREAM PACKET_ID SECONDS``: its PUBACK or PUBCOMP arrived. The two lines of a message may
  stand in either order.

Seconds are monotonic.

A stream of small messages continues after its last message, with messages that are not recorded.
Without them, the broker would get no further measurement of a link at the end of the traffic, just
when the link is good again.

With `PublisherPlan.sounds`, each stream publishes short messages before the beginning, with which
subscribers find out that edge brokers on the way have subscribed for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from paho.mqtt import client as mqtt

from penstock.netem.clients.client_plan import PublisherPlan, StreamPlan
from penstock.netem.clients.connection import PORT, connect, give_up, new_client, say
from penstock.netem.clients.payloads import HEAD_BYTES, SOUNDING, Head, write_payload

KEEP_ALIVE_SECONDS: Final = 60

SOUNDING_SECONDS: Final = 0.5
"""The time between two test messages."""

SMALL_BYTES: Final = 10_000
"""Streams with messages up to this size continue after the traffic (threshold_s of paper 002)."""


class Published(NamedTuple):
    """A message from its publisher's view.

    Attributes:
        published_at: the time at which it was given to the connection, monotonic seconds.
        acknowledged_at: the time of its PUBACK or PUBCOMP, monotonic seconds; None if none arrived.
    """

    stream: int
    number: int
    published_at: float
    acknowledged_at: float | None


def read_published(lines: Iterable[str]) -> list[Published]:
    """Return the messages of a publisher's file, in the order in which they were published."""
    published: list[tuple[int, int, float]] = []
    acknowledged: dict[int, float] = {}
    waiting: dict[tuple[int, int], int] = {}
    early: dict[tuple[int, int], float] = {}
    for line in lines:
        kind, *words = line.split()
        if kind == "p":
            stream, number, packet_id = map(int, words[:3])
            place = len(published)
            published.append((stream, number, float(words[3])))
            if (at := early.pop((stream, packet_id), None)) is not None:
                acknowledged[place] = at
            elif packet_id:
                waiting[stream, packet_id] = place
        else:
            key = int(words[0]), int(words[1])
            if key in waiting:
                acknowledged[waiting.pop(key)] = float(words[2])
            else:
                early[key] = float(words[2])
    return [Published(*each, acknowledged.get(place)) for place, each in enumerate(published)]


def run(plan: PublisherPlan, await_begin: Callable[[], float]) -> None:
    """Publish all messages, then receive acknowledgements until the process is ended.

    The runner is told ``ready`` on connection, and ``published`` after the last message.
    """
    threading.excepthook = lambda failed: give_up(f"{failed.exc_type}: {failed.exc_value}")
    lines = os.open(plan.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    streams = [_Stream(plan, stream, lines) for stream in plan.streams]
    for each in streams:
        each.connected.wait()
    say("ready", plan.client_id)
    has_begun = threading.Event()
    for each in streams if plan.sounds else ():
        threading.Thread(target=each.sound, args=(has_begun,), daemon=True).start()
    begin_at = await_begin()
    has_begun.set()
    for each in streams:
        threading.Thread(target=each.publish, args=(begin_at,), daemon=True).start()
    for each in streams:
        each.published.wait()
    say("published", plan.client_id)
    threading.Event().wait()


class _Stream:
    """A stream and its connection.

    Attributes:
        connected: an event that is set when the broker has accepted the connection.
        published: an event that is set when the last message has been given to the connection.
    """

    def __init__(self, publisher: PublisherPlan, plan: StreamPlan, lines: int) -> None:
        self.connected = threading.Event()
        self.published = threading.Event()
        self._publisher = publisher.number
        self._plan = plan
        self._lines = lines
        self._client = new_client(plan.client_id, publisher.protocol)
        self._client.on_connect = self._on_connect
        self._client.on_publish = self._on_publish
        connect(self._client, publisher.address, PORT, publisher.protocol, KEEP_ALIVE_SECONDS, {})
        self._client.loop_start()

    def sound(self, has_begun: threading.Event) -> None:
        """Publish soundings until the beginning is known."""
        plan = self._plan
        sounding = write_payload(Head(self._publisher, plan.number, SOUNDING, 0.0), b"")
        while not has_begun.is_set():
            self._client.publish(plan.topic, sounding, plan.qos)
            has_begun.wait(SOUNDING_SECONDS)

    def publish(self, begin_at: float) -> None:
        """Publish each message when it is due."""
        plan = self._plan
        filling = os.urandom(plan.payload_bytes - HEAD_BYTES)
        for number, seconds in enumerate(plan.times.due_seconds()):
            due_at = begin_at + seconds
            time.sleep(max(0.0, due_at - time.monotonic()))
            payload = write_payload(Head(self._publisher, plan.number, number, due_at), filling)
            at = time.monotonic()
            told = self._client.publish(plan.topic, payload, plan.qos)
            # paho returns a packet id at QoS 0 too, which is never acknowledged.
            packet_id = told.mid if plan.qos else 0
            self._write(f"p {plan.number} {number} {packet_id} {at!r}\n")
        self.published.set()
        while plan.payload_bytes <= SMALL_BYTES:
            time.sleep(plan.times.period_seconds)
            self._client.publish(plan.topic, bytes(plan.payload_bytes), plan.qos)

    def _write(self, line: str) -> None:
        os.write(self._lines, line.encode())

    def _on_connect(
        self, _client: mqtt.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            give_up(f"connection of {self._plan.client_id} refused: {reason}")
        self.connected.set()

    def _on_publish(
        self, _client: mqtt.Client, _data: Any, mid: int, _reason: Any, _properties: Any
    ) -> None:
        if self._plan.qos:
            self._write(f"a {self._plan.number} {mid} {time.monotonic()!r}\n")


def read_published_file(file: Path) -> list[Published]:
    """Return the messages of a publisher's file; none if the file does not exist."""
    if not file.exists():
        return []
    with file.open() as lines:
        return read_published(lines)
