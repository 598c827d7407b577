"""The listeners of the interoperability matrix, and how each client is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

TOPIC: Final = "größe/日本/🚀"
"""Letters of two, three and four bytes of UTF-8."""

PAYLOADS: Final = {"nothing": b"", "small": bytes(range(100)), "large": bytes(range(250)) * 1200}
"""Payload by the last level of its topic: 0 B, 100 B, 300 kB."""


@dataclass(frozen=True)
class Endpoint:
    """One listener of the broker.

    Attributes:
        port: on loopback.
        is_websocket: it speaks MQTT over WebSocket.
    """

    port: int
    is_websocket: bool = False

    def paho(self) -> dict[str, Any]:
        """Return what paho's client has to be made with."""
        return {"transport": "websockets"} if self.is_websocket else {}

    def aiomqtt(self) -> dict[str, Any]:
        """Return what aiomqtt's client has to be made with."""
        options: dict[str, Any] = {"hostname": "127.0.0.1", "port": self.port}
        if self.is_websocket:
            options["transport"] = "websockets"
        return options

    def mosquitto(self) -> list[str]:
        """Return the options of mosquitto's clients."""
        return ["-h", "127.0.0.1", "-p", str(self.port)]
