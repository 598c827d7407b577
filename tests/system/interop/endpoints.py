"""The listeners of the interoperability matrix, and how each client is told of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from amqtt.client import MQTTClient

from tests.helpers.certificates import Authority
from tests.helpers.process import SECONDS

TOPIC: Final = "größe/日本/🚀"
"""Letters of two, three and four bytes of UTF-8."""

PAYLOADS: Final = {"nothing": b"", "small": bytes(range(100)), "large": bytes(range(250)) * 1200}
"""Payload by the last level of its topic: 0 B, 100 B, 300 kB."""

TRANSPORTS: Final = ("tcp", "tls", "ws", "wss")


def listeners(authority: Authority) -> dict[str, dict[str, Any]]:
    """Return the listeners of all transports; `default`, which BrokerProcess waits for, is TCP."""
    return {
        "default": {"bind": "127.0.0.1:0"},
        "tls": authority.listener_keys(),
        "ws": {"bind": "127.0.0.1:0", "type": "ws"},
        "wss": authority.listener_keys(type="ws"),
    }


@dataclass(frozen=True)
class Endpoint:
    """One listener of the broker.

    Attributes:
        transport: one of `TRANSPORTS`.
        port: on loopback.
        authority: who has issued the listener's certificate.
    """

    transport: str
    port: int
    authority: Authority

    @property
    def is_websocket(self) -> bool:
        """Whether it speaks MQTT over WebSocket."""
        return self.transport in ("ws", "wss")

    @property
    def is_encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.transport in ("tls", "wss")

    def paho(self) -> dict[str, Any]:
        """Return what paho's client has to be made with."""
        return {"transport": "websockets"} if self.is_websocket else {}

    def aiomqtt(self) -> dict[str, Any]:
        """Return what aiomqtt's client has to be made with."""
        options: dict[str, Any] = {"hostname": "127.0.0.1", "port": self.port}
        if self.is_websocket:
            options |= {"transport": "websockets", "websocket_path": "/mqtt"}
        if self.is_encrypted:
            options["tls_context"] = self.authority.client_context()
        return options

    def mosquitto(self) -> list[str]:
        """Return the options of mosquitto's clients."""
        trust = ["--cafile", self.authority.cafile] if self.is_encrypted else []
        return ["-h", "127.0.0.1", "-p", str(self.port), *trust]


@contextlib.asynccontextmanager
async def amqtt_client(endpoint: Endpoint, client_id: str) -> AsyncIterator[MQTTClient]:
    """Connect aMQTT's client, whose session stays for the next one."""
    scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(endpoint.transport, endpoint.transport)
    client = MQTTClient(client_id=client_id, config={"auto_reconnect": False})
    cafile = endpoint.authority.cafile if endpoint.is_encrypted else None
    url = f"{scheme}://127.0.0.1:{endpoint.port}/mqtt"
    async with asyncio.timeout(SECONDS):
        assert await client.connect(url, cleansession=False, cafile=cafile) == 0
        try:
            yield client
        finally:
            await client.disconnect()
