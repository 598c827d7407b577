"""An application on `penstock.lanes.paho`, with records of its callbacks."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from paho.mqtt.packettypes import PacketTypes

import penstock.lanes.paho as mqtt
from penstock.lanes.large_lane import LargeLane
from penstock.plugins.console.commands.asking import Console, UnknownError
from tests.helpers.paho_client import properties
from tests.helpers.process import SECONDS, BrokerProcess

PICTURE: Final = bytes(100_000)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something holds that nobody tells of."""
    turn = threading.Event()
    for _ in range(int(SECONDS / 0.01)):
        if condition():
            return
        turn.wait(0.01)
    raise AssertionError("it does not become so")


def is_connected(broker: BrokerProcess, client_id: str) -> bool:
    """Say whether a client is connected to a broker that has a console."""
    try:
        return bool(Console(broker.console_url).client(client_id)["is_connected"])
    except UnknownError:
        return False


class Application:
    """An application that subscribes when it begins a session; it disconnects behind its block.

    Attributes:
        client: the client of the application.
        session_present: the Session Present flag of each CONNACK.
        disconnects: the reason of each `on_disconnect`.
        published: the Packet Identifier of each `on_publish`.
        threads: the threads in which its callbacks were called.
    """

    def __init__(
        self,
        client_id: str,
        port: int,
        *,
        topics: str = "#",
        expiry_seconds: int = 0,
        module: Any = mqtt,
        host: str = "127.0.0.1",
        protocol: int | None = mqtt.MQTTv5,
        **options: Any,
    ) -> None:
        """Make a client that connects in the block.

        Args:
            client_id: the Client Identifier.
            port: the port of the broker.
            topics: the topics to which it subscribes at QoS 2.
            expiry_seconds: the expiry of its session, seconds.
            module: the module of paho, or the one in its place.
            host: the host of the broker, or a Unix socket.
            protocol: the protocol of the client; None for its own choice.
            options: options of the client.
        """
        self.session_present: list[bool] = []
        self.disconnects: list[str] = []
        self.published: list[int] = []
        self.threads: set[threading.Thread] = set()
        self._address = host, port
        self._topics = topics
        self._expiry_seconds = expiry_seconds
        self._connected: queue.Queue[str] = queue.Queue()
        self._subscribed: queue.Queue[None] = queue.Queue()
        self._lost: queue.Queue[None] = queue.Queue()
        self._messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        if protocol is not None:
            options["protocol"] = protocol
        self.client = module.Client(module.CallbackAPIVersion.VERSION2, client_id, **options)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = lambda *_: self._subscribed.put(None)
        self.client.on_publish = lambda *told: self.published.append(told[2])
        self.client.on_message = self._on_message

    def _on_connect(self, client: Any, _userdata: Any, flags: Any, reason: Any, _: Any) -> None:
        self.threads.add(threading.current_thread())
        self.session_present.append(flags.session_present)
        if not reason.is_failure and not flags.session_present:
            client.subscribe(self._topics, 2)
        self._connected.put(str(reason))

    def _on_disconnect(
        self, _client: Any, _userdata: Any, _flags: Any, reason: Any, _: Any
    ) -> None:
        self.disconnects.append(str(reason))
        self._lost.put(None)

    def _on_message(self, _client: Any, _userdata: Any, message: Any) -> None:
        self.threads.add(threading.current_thread())
        self._messages.put(message)

    def connect(self) -> Self:
        """Connect, and serve the client in a thread."""
        options: dict[str, Any] = {}
        if self.client.protocol == mqtt.MQTTv5:
            expiry = {"SessionExpiryInterval": self._expiry_seconds}
            options["properties"] = properties(PacketTypes.CONNECT, **expiry)
            options["clean_start"] = not self._expiry_seconds
        self.client.connect(*self._address, **options)
        self.client.loop_start()
        return self

    def __enter__(self) -> Self:
        self.connect()
        self.wait_until_connected()
        if not self.session_present[-1]:
            self._subscribed.get(timeout=SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    @property
    def lane(self) -> LargeLane | None:
        """The large lane."""
        lane: LargeLane | None = self.client._lane
        return lane

    @property
    def is_on_two_lanes(self) -> bool:
        """Whether the large lane is up."""
        return self.lane is not None and self.lane.is_up

    def wait_until_connected(self) -> None:
        """Wait for the next CONNACK."""
        assert self._connected.get(timeout=SECONDS) == "Success"

    def wait_until_lost(self) -> None:
        """Wait for the next `on_disconnect`."""
        self._lost.get(timeout=SECONDS)

    def cut(self, lane: Any) -> None:
        """Cut the connection of the client, or of its large lane."""
        lane._sock.shutdown(socket.SHUT_RDWR)

    def message(self) -> mqtt.MQTTMessage:
        """Return the next message."""
        return self._messages.get(timeout=SECONDS)

    def payloads(self, n_messages: int) -> list[bytes]:
        """Return the payloads of the next messages, each without a picture before it."""
        return [bytes(self.message().payload).lstrip(b"\0") for _ in range(n_messages)]

    def has_more(self) -> bool:
        """Say whether there are messages that were not taken."""
        return not self._messages.empty()
