"""What the tests of the Eclipse Paho interoperability cases share."""

from __future__ import annotations

import itertools
from typing import Any, Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.broker.mqtt.packets import Disconnect, Will
from tests.helpers.paho_client import MQTT_5, PahoClient, connect_properties
from tests.helpers.wire import connected

NO_SUBSCRIBE: Final = "test/nosubscribe"
"""The topic filter that nobody may subscribe to."""

LIMITS: Final = {
    "maximum_packet_size": 40_000,
    "receive_maximum": 20,
    "maximum_keep_alive": 60,
}
"""Limits of the broker, as low as the cases need them to reach them."""

_NUMBERS = itertools.count()


def fresh(name: str) -> str:
    """Return a topic, or a Client Identifier, that no other test has."""
    return f"{name}-{next(_NUMBERS)}"


def connect(
    port: int,
    client_id: str,
    version: MQTTProtocolVersion = MQTT_5,
    *,
    expiry: int = 0,
    **options: Any,
) -> PahoClient:
    """Return a connected paho client.

    Args:
        port: of the broker.
        client_id: Client Identifier.
        version: MQTT version.
        expiry: Session Expiry Interval in seconds; more than 0 keeps the session that there is,
            for ever in MQTT 3.1.1.
        options: of paho's `connect`.
    """
    if version == MQTT_5:
        client = PahoClient(port, client_id, version)
        options.setdefault("clean_start", not expiry)
        options.setdefault("properties", connect_properties(SessionExpiryInterval=expiry))
    else:
        client = PahoClient(port, client_id, version, clean_session=not expiry)
    assert client.connect(**options)
    return client


def until(client: PahoClient, payload: bytes) -> list[MQTTMessage]:
    """Return the messages that come before one with this payload."""
    messages: list[MQTTMessage] = []
    while (message := client.message()).payload != payload:
        messages.append(message)
    return messages


async def let_pass(port: int, seconds: int) -> None:
    """Let so many seconds pass on the broker's own clock: those of a will's delay."""
    topic = fresh("clock")
    watcher = await connected(port)
    async with watcher:
        await watcher.subscribe(topic)
        will = Will(topic, properties={"will_delay_interval": seconds})
        kept = {"session_expiry_interval": seconds + 60}
        async with await connected(port, topic, will=will, properties=kept) as dying:
            await dying.send(Disconnect(reason_code=0x04))
            await dying.rest()
        await watcher.receive()
