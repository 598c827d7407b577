"""The connection of a publisher or subscriber: an MQTT client that reports to the runner."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any, Final

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.netem.clients.client_plan import Protocol

PORT: Final = 1883
"""The TCP port of the brokers."""

BALANCER_PORT: Final = PORT + 2
"""The TCP port of a load balancer before the broker, on every address of its host."""

SESSION_SECONDS: Final = 86_400
"""The Session Expiry Interval, which is longer than any run."""

BULK_BYTES: Final = 32_768
"""The bytes of a large message that a subscriber reads at once: a quarter of a socket's least
buffer."""

LEAST_WAIT_SECONDS: Final = 1
MOST_WAIT_SECONDS: Final = 4
"""The least and the longest delay before a client reconnects."""


def say(*words: str) -> None:
    """Tell the runner something: write one line to standard output, in a single write."""
    os.write(1, (" ".join(words) + "\n").encode())


def note(text: str) -> None:
    """Write a line to the client's log."""
    sys.stderr.write(f"{time.monotonic():.3f} {text}\n")
    sys.stderr.flush()


def give_up(text: str) -> None:
    """End this process, from any thread, and log why."""
    note(text)
    os._exit(1)


def read_in_bulk() -> None:
    """Let clients of this process wake up for `BULK_BYTES` of a large message, not for each packet.

    The kernel wakes a reader when a number of bytes has come (SO_RCVLOWAT): it is that of what is
    missing of a message, if that is less, so that no message is read later. Without it, clients
    take half of the processor time of a run.
    """
    read = mqtt.Client.loop_read

    def loop_read(client: mqtt.Client, max_packets: int = 1) -> MQTTErrorCode:
        status = read(client, max_packets)
        sock = client.socket()
        if isinstance(sock, socket.socket):
            missing = client._in_packet["to_process"]  # noqa: SLF001 - paho tells it nowhere else
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(missing, BULK_BYTES)))
        return status

    mqtt.Client.loop_read = loop_read  # type: ignore[method-assign, assignment]


def new_client(client_id: str, protocol: Protocol, *, has_lanes: bool = False) -> mqtt.Client:
    """Return a client with a persistent session that reconnects when its connection is lost."""
    client: mqtt.Client
    if has_lanes:
        from penstock.lanes.client import Client  # noqa: PLC0415 - others need not share it

        client = Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
    elif protocol == "5":
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
    else:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
    client.reconnect_delay_set(LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS)
    client.on_disconnect = _disconnected
    client.on_socket_open = without_delay
    return client


def connect(
    client: mqtt.Client,
    address: str,
    port: int,
    protocol: Protocol,
    keep_alive_seconds: int,
    user_properties: dict[str, str],
) -> None:
    """Open the network connection and send CONNECT.

    Raises:
        OSError: the connection cannot be made.
    """
    if protocol != "5":
        client.connect(address, port, keep_alive_seconds)
        return
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_SECONDS
    if user_properties:
        properties.UserProperty = list(user_properties.items())
    client.connect(address, port, keep_alive_seconds, clean_start=False, properties=properties)


def without_delay(_client: mqtt.Client, _data: Any, sock: Any) -> None:
    """Set TCP_NODELAY, as most clients do: small packets leave at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _disconnected(
    _client: mqtt.Client, _data: Any, _flags: Any, reason: Any, _properties: Any
) -> None:
    note(f"disconnected: {reason}")
