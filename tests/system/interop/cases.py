"""What the tests of the Eclipse Paho interoperability cases share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.broker.mqtt.packets import Disconnect, Will
from tests.helpers.cluster import Service, balanced_brokers
from tests.helpers.paho_client import MQTT_5, PahoClient, connect_properties
from tests.helpers.process import anonymous_policy, running_broker
from tests.helpers.wire import connected

NO_SUBSCRIBE: Final = "test/nosubscribe"
"""The topic filter that nobody may subscribe to."""

LIMITS: Final = {"maximum_packet_size": 40_000, "receive_maximum": 20, "maximum_keep_alive": 60}
"""Limits of the broker, as low as the cases need them to reach them."""

_GUARD: Final = f'''
"""Refuses subscriptions to one topic filter, as a plugin of aMQTT."""

from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin


class Guard(BaseTopicPlugin):
    async def topic_filtering(self, *, session=None, topic=None, action=None):
        return action != Action.SUBSCRIBE or topic != "{NO_SUBSCRIBE}"
'''

_NODES: Final = ("a", "b", "c")
KINDS: Final = ("one", "cluster")
"""One broker; or three behind a load balancer, which sends each connection to the next one."""


@contextmanager
def running(
    kind: str, folder: Path, plugins: Mapping[str, Any] | None = None, **keys: Any
) -> Iterator[Service]:
    """Run what is of one of `KINDS` for a block.

    Args:
        kind: of it.
        folder: of its files.
        plugins: of each broker.
        keys: further keys of its policy.
    """
    if kind == "cluster":
        with balanced_brokers(folder, *_NODES, plugins=plugins, **keys) as service:
            yield service
        return
    with running_broker(anonymous_policy(plugins, **keys), folder) as broker:
        yield Service(broker.port)
        assert broker.stop() == 0
        assert "ERROR" not in broker.log
        assert "Traceback" not in broker.log


@contextmanager
def running_cases(kind: str, folder: Path) -> Iterator[Service]:
    """Run what the cases ask for, of one of `KINDS`, for a block."""
    for name in ("", *_NODES):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "guard.py").write_text(_GUARD)
    keys = {"limits": LIMITS, "mqtt": {"reveal_refusals": False}}
    with running(kind, folder, {"guard.Guard": {}}, **keys) as service:
        yield service


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
