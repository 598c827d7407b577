"""A scaled fleet on this machine: a broker, real clients that come and go, and what arrived.

The broker is a process of its own; clients are paho's, in this process. A device keeps its messages
while it has no connection (QoS 1), or loses them (QoS 0), and sends them with the rest of their
lifetime. What one process of clients adds to latencies is milliseconds, outages are seconds.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from penstock.models.planner.fleet import Devices, Subscribers
from penstock.models.planner.scaled import LEAST_PAYLOAD_BYTES, Scaled
from penstock.netem.runs.broker_process import (
    RunningBroker,
    penstock_command,
    reserved_port,
)

SESSION_SECONDS: Final = 3600
PROMPT_SECONDS: Final = 1.0
"""Up to which a message met no outage, or a short one; a busy machine adds tenths of that."""
DRAIN_OUTAGES: Final = 5.0
"""Mean outages for which peers go on after the last message, if no lifetime ends before."""
QUIET_SECONDS: Final = 2.0
"""Without an arrival, after which nothing more is awaited."""
LOOK_SECONDS: Final = 0.05

_HEAD: Final = struct.Struct("<dI")
assert _HEAD.size <= LEAST_PAYLOAD_BYTES  # noqa: S101


class Share(NamedTuple):
    """What one subscriber got of the devices of a kind.

    Attributes:
        created: messages on its topics.
        arrived: of them.
        prompt: of them, within `PROMPT_SECONDS`.
        seconds: from creation to arrival, of all that arrived together.
    """

    created: int
    arrived: int
    prompt: int
    seconds: float


class Measured(NamedTuple):
    """What a run found.

    Attributes:
        shares: of each subscriber, by names of devices and subscribers.
        core_ratio: share of a core that the broker took while messages were created.
        late_seconds: that 99 of 100 things of the clients were done late at most: on a busy
            machine latencies are its own.
    """

    shares: dict[tuple[str, str], list[Share]]
    core_ratio: float
    late_seconds: float


@dataclass(eq=False)
class _Peer:
    """A client that is on and off by turns."""

    client_id: str
    port: int
    peer: Devices | Subscribers
    keeps_session: bool
    client: mqtt.Client = field(init=False)
    is_on: bool = False

    def __post_init__(self) -> None:
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, self.client_id, protocol=mqtt.MQTTv5)

    def turn_on(self) -> None:
        """Connect, and wait until the broker has answered."""
        answered = threading.Event()
        self.client.on_connect = lambda *_: answered.set()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        if self.keeps_session:
            properties.SessionExpiryInterval = SESSION_SECONDS
        self.client.connect(
            "127.0.0.1", self.port, clean_start=not self.keeps_session, properties=properties
        )
        self.client.loop_start()
        answered.wait()
        self.is_on = True

    def turn_off(self) -> None:
        """Disconnect."""
        self.is_on = False
        self.client.disconnect()
        self.client.loop_stop()


@dataclass(eq=False)
class _Device(_Peer):
    """A device.

    Attributes:
        topic: of its messages.
        created: when each was created, by its number.
    """

    topic: str = ""
    created: list[float] = field(default_factory=list)
    _waiting: list[int] = field(default_factory=list)

    def create(self) -> None:
        """Create a message."""
        self.created.append(time.monotonic())
        number = len(self.created) - 1
        if self.is_on:
            self._send(number)
        elif self.devices.qos:
            self._waiting.append(number)

    @property
    def devices(self) -> Devices:
        """Its kind."""
        assert isinstance(self.peer, Devices)  # noqa: S101
        return self.peer

    def turn_on(self) -> None:
        """Connect, and send what has waited."""
        super().turn_on()
        waiting, self._waiting = self._waiting, []
        for number in waiting:
            self._send(number)

    def _send(self, number: int) -> None:
        created, lifetime = self.created[number], self.devices.lifetime_seconds
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if lifetime is not None:
            left = created + lifetime - time.monotonic()
            if left <= 0:
                return
            properties.MessageExpiryInterval = max(1, round(left))
        payload = _HEAD.pack(created, number).ljust(self.devices.payload_bytes, b"\0")
        self.client.publish(self.topic, payload, self.devices.qos, properties=properties)


@dataclass(eq=False)
class _Subscriber(_Peer):
    """A subscriber.

    Attributes:
        devices: whose messages it gets, by name of their kind.
        found: seconds from creation to the first arrival, by topic and number.
    """

    devices: dict[str, list[_Device]] = field(default_factory=dict)
    found: dict[tuple[str, int], float] = field(default_factory=dict)

    def turn_on(self) -> None:
        """Connect and subscribe, also where a session was kept: it does no harm."""
        self.client.on_message = self._take
        granted = threading.Event()
        self.client.on_subscribe = lambda *_: granted.set()
        super().turn_on()
        topics = [each.topic for kind in self.devices.values() for each in kind]
        self.client.subscribe([(topic, SubscribeOptions(qos=1)) for topic in topics])
        granted.wait()

    def _take(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        created, number = _HEAD.unpack_from(message.payload)
        self.found.setdefault((message.topic, number), time.monotonic() - created)

    def share(self, kind: str) -> Share:
        """Return what it got of the devices of a kind."""
        topics = {each.topic for each in self.devices[kind]}
        arrived = [seconds for (topic, _), seconds in self.found.items() if topic in topics]
        return Share(
            sum(len(each.created) for each in self.devices[kind]),
            len(arrived),
            sum(seconds <= PROMPT_SECONDS for seconds in arrived),
            sum(arrived),
        )


class _Clock:
    """Calls functions at their times, in this thread.

    Attributes:
        late: seconds after its time at which each call began.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call a function at a time of the monotonic clock."""
        heapq.heappush(self._events, (when, next(self._order), call))

    def run_until(self, end: float) -> None:
        """Call what is due up to a time."""
        while self._events and self._events[0][0] <= end:
            when, _, call = heapq.heappop(self._events)
            time.sleep(max(0.0, when - time.monotonic()))
            self.late.append(time.monotonic() - when)
            call()
        time.sleep(max(0.0, end - time.monotonic()))


def run(scaled: Scaled, seconds: float, rng: random.Random) -> Measured:
    """Run a fleet.

    Args:
        scaled: the fleet.
        seconds: in which messages are created.
        rng: draws all times, and of which devices each subscriber gets messages.

    Raises:
        NetemError: the broker does not run.
    """
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        directory = Path(folder)
        broker = RunningBroker("plan", penstock_command(directory, _policy(port)), directory)
        try:
            broker.wait_until_listening(port)
            return _Run(scaled, port, rng).measure(broker.process.pid, seconds)
        finally:
            broker.kill()


def _policy(port: int) -> dict[str, Any]:
    anonymous = "amqtt.plugins.authentication.AnonymousAuthPlugin"
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "persistence": {"path": "sessions.db", "durability": "normal"},
        "plugins": {anonymous: {"allow_anonymous": True}, "probing": {}, "withholding": {}},
    }


class _Run:
    """One run."""

    def __init__(self, scaled: Scaled, port: int, rng: random.Random) -> None:
        fleet = scaled.fleet
        self._rng = rng
        self._clock = _Clock()
        self._devices = {
            name: [
                _Device(f"{name}-{number}", port, kind, False, topic=f"plan/{name}/{number}")
                for number in range(kind.count)
            ]
            for name, kind in fleet.devices.items()
        }
        self._subscribers = {
            name: [
                _Subscriber(
                    f"{name}-{number}",
                    port,
                    who,
                    who.keeps_session,
                    devices={
                        kind: rng.sample(self._devices[kind], scaled.picked[kind, name])
                        for kind in who.devices
                    },
                )
                for number in range(who.count)
            ]
            for name, who in fleet.subscribers.items()
        }

    def measure(self, pid: int, seconds: float) -> Measured:
        """Let messages be created, and all that can arrive do so."""
        peers = self._peers()
        for each in peers:
            each.turn_on()
        begin = time.monotonic()
        for each in peers:
            self._begin(each, begin)
        end = begin + seconds
        for kind in self._devices.values():
            for device in kind:
                self._await_message(device, begin, end)
        process = psutil.Process(pid)
        before = sum(process.cpu_times()[:2])
        self._clock.run_until(end)
        core_ratio = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - begin)
        self._clock.run_until(end + self._drain_seconds())
        for each in peers:
            if not each.is_on:
                each.turn_on()
        self._await_arrivals()
        for each in peers:
            each.turn_off()
        shares = {
            (kind, name): [each.share(kind) for each in subscribers]
            for name, subscribers in self._subscribers.items()
            for kind in subscribers[0].devices
        }
        late = sorted(self._clock.late)
        return Measured(shares, core_ratio, late[int(0.99 * len(late))] if late else 0.0)

    def _await_arrivals(self) -> None:
        """Wait until every message has arrived, or none does any more."""
        subscribers = list(itertools.chain.from_iterable(self._subscribers.values()))
        expected = sum(each.share(kind).created for each in subscribers for kind in each.devices)
        n_before, changed_at = -1, time.monotonic()
        while n_before < expected and time.monotonic() - changed_at < QUIET_SECONDS:
            n_now = sum(len(each.found) for each in subscribers)
            if n_now != n_before:
                n_before, changed_at = n_now, time.monotonic()
            time.sleep(LOOK_SECONDS)

    def _peers(self) -> Sequence[_Peer]:
        return [
            *itertools.chain.from_iterable(self._subscribers.values()),
            *itertools.chain.from_iterable(self._devices.values()),
        ]

    def _drain_seconds(self) -> float:
        outages = [each.peer.off_seconds or 0.0 for each in self._peers()]
        lifetimes = [kind[0].devices.lifetime_seconds for kind in self._devices.values()]
        longest = DRAIN_OUTAGES * max(outages) + 1
        known = [each for each in lifetimes if each is not None]
        return min(longest, max(known) + 1) if len(known) == len(lifetimes) else longest

    def _begin(self, each: _Peer, now: float) -> None:
        """Let a peer be on or off as it would be at any time."""
        on_seconds, off_seconds = each.peer.on_seconds, each.peer.off_seconds
        if on_seconds is None or off_seconds is None:
            return
        if self._rng.random() < off_seconds / (on_seconds + off_seconds):
            each.turn_off()
        self._await_change(each, now, on_seconds, off_seconds)

    def _await_change(self, each: _Peer, now: float, on_seconds: float, off_seconds: float) -> None:
        when = now + self._rng.expovariate(1 / (on_seconds if each.is_on else off_seconds))

        def change() -> None:
            each.turn_off() if each.is_on else each.turn_on()
            self._await_change(each, when, on_seconds, off_seconds)

        self._clock.at(when, change)

    def _await_message(self, device: _Device, now: float, end: float) -> None:
        when = now + self._rng.expovariate(device.devices.messages_per_second)

        def create() -> None:
            device.create()
            self._await_message(device, when, end)

        if when < end:
            self._clock.at(when, create)
