"""The clients of a host that are on and off by schedule, as one program.

``python -m penstock.netem.clients.on_off_clients PLAN FILE HOST``: one process has all clients of a
host, each with a connection of its own: paho's client, driven by one event loop, so that no client
waits for another. It writes ``ready`` to standard output when all clients have been connected once,
reads ``begin SECONDS`` (monotonic) from standard input, follows the plan to its end, and writes
what it recorded to FILE.

A subscriber works on one message after the other, each for the time that the plan gives, and
acknowledges it then. Interrupted work resumes when the message is delivered again. The subscriber
gives up a message whose lifetime ends during the work.
"""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import sys
import traceback
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.netem.clients.connection import SESSION_SECONDS, give_up, say, without_delay
from penstock.netem.clients.on_off_plan import (
    Answered,
    Arrived,
    OnOffClientsPlan,
    OnOffPublisher,
    OnOffRecords,
    OnOffSubscriber,
    Sent,
    Worked,
)
from penstock.netem.clients.payloads import HEAD_BYTES, Head, read_head, write_payload

KEEP_ALIVE_SECONDS: Final = 3600
"""The Keep Alive, which is longer than any run, so that no client sends a PINGREQ."""


class _Run:
    """The state that the clients of a process have in common."""

    def __init__(self, plan: OnOffClientsPlan) -> None:
        self.plan = plan
        self.records = OnOffRecords()
        self.loop = asyncio.get_running_loop()
        self.begin_at = self.loop.time()

    def now(self) -> float:
        """Return the seconds after the beginning."""
        return self.loop.time() - self.begin_at

    async def until(self, at: float) -> None:
        """Wait for a time, and note by how much it was missed."""
        await asyncio.sleep(at - self.now())
        self.records.late.append(max(0.0, self.now() - at))

    async def until_quiet(self) -> None:
        """Wait until nothing has arrived, or was done, for some time: a slow machine takes it."""
        before = -1
        while before != (now := len(self.records.arrived) + len(self.records.worked)):
            before = now
            await asyncio.sleep(self.plan.quiet_seconds)


class _Client:
    """A client that is on and off."""

    def __init__(
        self, run: _Run, plan: OnOffPublisher | OnOffSubscriber, *, keeps_session: bool
    ) -> None:
        self.run = run
        self._address = plan.address
        self.is_on = False
        self.asked_at = 0.0
        self.client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2, plan.client_id, protocol=mqtt.MQTTv5, manual_ack=True
        )
        self.properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if keeps_session:
            self.properties.SessionExpiryInterval = SESSION_SECONDS
        self._keeps_session = keeps_session
        self._on = plan.on
        self._answered = asyncio.Event()
        client.on_connect = self._connected
        client.on_socket_open = self._socket_opened
        client.on_socket_close = self._socket_closed
        client.on_socket_register_write = self._wants_to_write
        client.on_socket_unregister_write = self._has_written

    async def prepare(self) -> None:
        """Connect once; stay if the first time on is the beginning."""
        await self.turn_on()
        if not self._begins_on():
            self.turn_off()

    def _begins_on(self) -> bool:
        return bool(self._on) and self._on[0][0] <= 0

    async def follow(self) -> None:
        """Be on and off as planned."""
        for begin, end in self._on:
            if begin > 0:
                await self.run.until(begin)
                await self.turn_on()
            if end == math.inf:
                return
            await self.run.until(end)
            self.turn_off()

    async def turn_on(self) -> None:
        """Connect, and wait for the broker's answer."""
        self._answered.clear()
        self.asked_at = self.run.now()
        # paho waits for the handshake of TCP.
        connect = partial(
            self.client.connect,
            self._address,
            self.run.plan.port,
            KEEP_ALIVE_SECONDS,
            clean_start=not self._keeps_session,
            properties=self.properties,
        )
        await self.run.loop.run_in_executor(None, connect)
        await self._answered.wait()
        self.is_on = True

    def turn_off(self) -> None:
        """Disconnect; the session lasts if it is kept."""
        self.is_on = False
        self.client.disconnect()
        self.client.loop_write()

    def _connected(
        self, _client: mqtt.Client, _data: Any, flags: Any, reason: Any, _properties: Any
    ) -> None:
        if reason.is_failure:
            raise ConnectionError(f"connection refused: {reason}")
        self.welcomed(is_present=flags.session_present)

    def welcomed(self, *, is_present: bool) -> None:  # noqa: ARG002 - subscribers look at it
        """Be told that the broker has accepted the connection."""
        self._answered.set()

    def _socket_opened(self, _client: mqtt.Client, _data: Any, sock: Any) -> None:
        without_delay(_client, _data, sock)
        self.run.loop.call_soon_threadsafe(self._read_from, sock)

    def _read_from(self, sock: socket.socket) -> None:
        if self.client.socket() is sock:
            self.run.loop.add_reader(sock, self.client.loop_read)

    def _socket_closed(self, _client: mqtt.Client, _data: Any, sock: Any) -> None:
        self.run.loop.remove_reader(sock)
        self.run.loop.remove_writer(sock)

    def _wants_to_write(self, _client: mqtt.Client, _data: Any, sock: Any) -> None:
        self.run.loop.call_soon_threadsafe(self._write_to, sock)

    def _write_to(self, sock: socket.socket) -> None:
        if self.client.socket() is sock:
            self.client.loop_write()
            if self.client.want_write():
                self.run.loop.add_writer(sock, self.client.loop_write)

    def _has_written(self, _client: mqtt.Client, _data: Any, sock: Any) -> None:
        self.run.loop.remove_writer(sock)


class _Publisher(_Client):
    """A publisher; see `OnOffPublisher`."""

    def __init__(self, run: _Run, number: int, plan: OnOffPublisher) -> None:
        super().__init__(run, plan, keeps_session=plan.qos > 0)
        self._number = number
        self._plan = plan
        self._filling = bytes(plan.payload_bytes - HEAD_BYTES)
        self._waiting: list[int] = []
        self._by_packet: dict[int, int] = {}
        self.client.on_publish = self._published

    async def create(self) -> None:
        """Create messages as planned."""
        for number, at in enumerate(self._plan.created):
            await self.run.until(at)
            if self.is_on:
                self._send(number)
            elif self._plan.qos:
                self._waiting.append(number)

    async def turn_on(self) -> None:
        """Connect, and send what has waited."""
        await super().turn_on()
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            self._send(number)

    def _send(self, number: int) -> None:
        plan, now = self._plan, self.run.now()
        left = plan.deadline(number) - now
        if left <= 0:
            return
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        expiry = math.inf
        if left < math.inf:
            expiry = properties.MessageExpiryInterval = math.ceil(left)
        head = Head(self._number, 0, number, self.run.begin_at + plan.created[number])
        payload = write_payload(head, self._filling)
        told = self.client.publish(plan.topic, payload, plan.qos, properties=properties)
        self._by_packet[told.mid] = number
        self.run.records.sent.append(Sent(self._number, number, now, expiry))

    def _published(
        self, _client: mqtt.Client, _data: Any, mid: int, reason: Any, _properties: Any
    ) -> None:
        number = self._by_packet.pop(mid, None)
        if number is not None and self._plan.qos:
            answer = Answered(self._number, number, self.run.now(), reason.value)
            self.run.records.answered.append(answer)


class _Work(NamedTuple):
    """The message that a subscriber works on."""

    mid: int
    qos: int
    publisher: int
    number: int


class _Subscriber(_Client):
    """A subscriber; see `OnOffSubscriber`."""

    def __init__(self, run: _Run, number: int, plan: OnOffSubscriber) -> None:
        super().__init__(run, plan, keeps_session=plan.keeps_session)
        if plan.receive_maximum is not None:
            self.properties.ReceiveMaximum = plan.receive_maximum
        self._number = number
        self._plan = plan
        self._waiting: deque[_Work] = deque()
        self._work: _Work | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._left: dict[tuple[int, int], float] = {}
        self._done: set[tuple[int, int]] = set()
        self.client.on_message = self._take
        self.client.on_subscribe = self._subscribed

    def welcomed(self, *, is_present: bool) -> None:
        """Subscribe, unless the session has its subscriptions."""
        if is_present:
            super().welcomed(is_present=True)
            return
        options = SubscribeOptions(qos=1)
        self.client.subscribe([(each, options) for each in self._plan.filters])

    def _subscribed(
        self, _client: mqtt.Client, _data: Any, _mid: int, reasons: Any, _properties: Any
    ) -> None:
        if failed := [str(each) for each in reasons if each.is_failure]:
            raise ConnectionError(f"subscription refused: {', '.join(failed)}")
        super().welcomed(is_present=False)

    def turn_off(self) -> None:
        """Disconnect; what is not done comes again, if the session is kept."""
        if self._work is not None and self._timer is not None:
            self._timer.cancel()
            key = self._work.publisher, self._work.number
            self._left[key] -= self.run.now() - self._since
            self._work = None
        self._waiting.clear()
        super().turn_off()

    def _take(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        head = read_head(bytes(message.payload))
        if head is None:
            raise ValueError(f"{message.topic}: a payload of somebody else")
        self.run.records.arrived.append(
            Arrived(
                self._number,
                head.publisher,
                head.number,
                self.run.now(),
                message.dup,
                self.asked_at,
            )
        )
        self._waiting.append(_Work(message.mid, message.qos, head.publisher, head.number))
        if self._work is None:
            self._go_on()

    def _go_on(self) -> None:
        """Take up the next message that takes time; those that take none are done at once."""
        while self._waiting:
            work = self._waiting.popleft()
            key = work.publisher, work.number
            now = self.run.now()
            plan = self.run.plan.publishers[work.publisher]
            left = self._left.setdefault(key, plan.service(work.number))
            rest = plan.deadline(work.number) - now
            if key in self._done or min(left, rest) <= 0:
                self._finish(work, is_done=left <= 0 < rest)
                continue
            self._work, self._since = work, now
            self._timer = self.run.loop.call_later(
                min(left, rest), self._end_work, work, left <= rest
            )
            return

    def _end_work(self, work: _Work, is_done: bool) -> None:  # noqa: FBT001 - of a timer
        self._work = None
        self._finish(work, is_done=is_done)
        self._go_on()

    def _finish(self, work: _Work, *, is_done: bool) -> None:
        """Acknowledge a message; it is done, or its lifetime has ended."""
        key = work.publisher, work.number
        if is_done and key not in self._done:
            self.run.records.worked.append(Worked(self._number, *key, self.run.now()))
        self._done.add(key)
        if work.qos:
            self.client.ack(work.mid, work.qos)


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return "".join(traceback.format_exception(error)) if error else str(context["message"])


async def _follow(plan: OnOffClientsPlan, file: Path, host: str) -> None:
    run = _Run(plan)
    run.loop.set_exception_handler(lambda _, context: give_up(_told(context)))
    subscribers = [
        _Subscriber(run, number, each)
        for number, each in enumerate(plan.subscribers)
        if each.host == host
    ]
    publishers = [
        _Publisher(run, number, each)
        for number, each in enumerate(plan.publishers)
        if each.host == host
    ]
    clients: list[_Client] = [*subscribers, *publishers]
    for client in clients:
        await client.prepare()
    say("ready")
    line = await run.loop.run_in_executor(None, sys.stdin.readline)
    before, run.begin_at = run.begin_at, float(line.split()[1])
    for client in clients:
        client.asked_at -= run.begin_at - before
    run.records.late.clear()
    async with asyncio.TaskGroup() as tasks:
        doing = [tasks.create_task(each.follow(), name="follow") for each in clients]
        doing += [tasks.create_task(each.create(), name="create") for each in publishers]
        await run.until(plan.end_seconds)
        await run.until_quiet()
        for task in doing:
            task.cancel()
    for client in clients:
        if client.is_on:
            client.turn_off()
    run.records.write(file)


def main(argv: list[str]) -> None:
    """Follow a plan."""
    plan, file, host = argv
    read = OnOffClientsPlan.read(Path(plan))
    gc.freeze()
    asyncio.run(_follow(read, Path(file), host))


if __name__ == "__main__":
    main(sys.argv[1:])
