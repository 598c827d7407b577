"""Clients by versions, transports and QoS, against one broker with all its listeners."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import aiomqtt
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTProtocolVersion

from tests.helpers.certificates import Authority
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient, connect_properties
from tests.helpers.process import SECONDS, anonymous_policy, running_broker
from tests.system.interop.cases import fresh
from tests.system.interop.endpoints import (
    PAYLOADS,
    TOPIC,
    TRANSPORTS,
    Endpoint,
    amqtt_client,
    listeners,
)

V: Final = {"3.1": MQTTProtocolVersion.MQTTv31, "3.1.1": MQTT_3_1_1, "5": MQTT_5}
CELLS: Final = pytest.mark.parametrize("qos", [0, 1, 2], ids=["qos0", "qos1", "qos2"])
VERSIONS: Final = pytest.mark.parametrize("version", V)
EVERY_TRANSPORT: Final = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    """Return every listener of one broker, by its name."""
    folder = tmp_path_factory.mktemp("matrix")
    authority = Authority(folder)
    policy = anonymous_policy(listeners=listeners(authority))
    with running_broker(policy, folder) as running:
        for transport in TRANSPORTS[1:]:
            running.wait_for_log(f"listener {transport}: listening")
        ports = running.ports
        ports["tcp"] = ports["default"]
        yield {name: Endpoint(name, ports[name], authority) for name in TRANSPORTS}
        assert running.stop() == 0
        assert "ERROR" not in running.log
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def publisher(endpoints: dict[str, Endpoint]) -> Iterator[PahoClient]:
    """Return a client that publishes while others are away."""
    with PahoClient(endpoints["tcp"].port) as client:
        assert client.connect()
        yield client


def expected(base: str, qos: int, *, retain: bool) -> list[tuple[str, bytes, int, bool]]:
    """Return what a subscriber is to see of all payloads, sorted by topic."""
    return sorted((f"{base}/{name}", data, qos, retain) for name, data in PAYLOADS.items())


# -- paho -------------------------------------------------------------------------------------


def paho_client(endpoint: Endpoint, client_id: str, version: MQTTProtocolVersion) -> PahoClient:
    """Return a connected client whose session stays for the next one."""
    options = endpoint.paho()
    if version != MQTT_5:
        options["clean_session"] = False
    client = PahoClient(endpoint.port, client_id, version, **options)
    if endpoint.is_encrypted:
        client.paho.tls_set_context(endpoint.authority.client_context())
    kept: dict[str, Any] = {}
    if version == MQTT_5:
        kept = {"clean_start": False, "properties": connect_properties(SessionExpiryInterval=60)}
    assert client.connect(**kept)
    return client


def seen(messages: list[Any]) -> list[tuple[str, bytes, int, bool]]:
    """Return what came, sorted by topic."""
    return sorted((str(m.topic), bytes(m.payload), m.qos, bool(m.retain)) for m in messages)


def from_paho(client: PahoClient) -> list[tuple[str, bytes, int, bool]]:
    """Return one message for each payload."""
    messages: list[MQTTMessage] = [client.message() for _ in PAYLOADS]
    return seen(messages)


@EVERY_TRANSPORT
@VERSIONS
@CELLS
def test_paho(
    endpoints: dict[str, Endpoint], publisher: PahoClient, transport: str, version: str, qos: int
) -> None:
    """Retained, live and kept messages come exactly as they were published."""
    name = fresh(f"paho {transport} {version}")
    base = f"{TOPIC}/{name}"
    with paho_client(endpoints[transport], name, V[version]) as client:
        for level, payload in PAYLOADS.items():
            client.publish(f"{base}/{level}", payload or b"-", qos, retain=True)
        assert client.subscribe(f"{base}/#", qos)
        retained = {**PAYLOADS, "nothing": b"-"}
        assert from_paho(client) == sorted(
            (f"{base}/{level}", payload, qos, True) for level, payload in retained.items()
        )
        for level, payload in PAYLOADS.items():
            client.publish(f"{base}/{level}", payload, qos)
        assert from_paho(client) == expected(base, qos, retain=False)
    if qos:
        for level, payload in PAYLOADS.items():
            publisher.publish(f"{base}/{level}", payload, qos)
        with paho_client(endpoints[transport], name, V[version]) as client:
            assert client.connack[0] or version == "3.1"  # which has no Session Present
            assert from_paho(client) == expected(base, qos, retain=False)


# -- aiomqtt ----------------------------------------------------------------------------------


def aiomqtt_client(endpoint: Endpoint, client_id: str, version: str) -> aiomqtt.Client:
    """Return a client whose session stays for the next one, to be entered."""
    options = endpoint.aiomqtt()
    if version == "5":
        expiry = connect_properties(SessionExpiryInterval=60)
        options |= {"clean_start": False, "properties": expiry}
    else:
        options["clean_session"] = False
    protocol = aiomqtt.ProtocolVersion(int(V[version]))
    return aiomqtt.Client(identifier=client_id, protocol=protocol, timeout=SECONDS, **options)


async def from_aiomqtt(client: aiomqtt.Client) -> list[tuple[str, bytes, int, bool]]:
    """Return one message for each payload."""
    async with asyncio.timeout(SECONDS):
        return seen([await anext(client.messages) for _ in PAYLOADS])


@EVERY_TRANSPORT
@VERSIONS
@CELLS
async def test_aiomqtt(
    endpoints: dict[str, Endpoint], publisher: PahoClient, transport: str, version: str, qos: int
) -> None:
    """Retained, live and kept messages come exactly as they were published."""
    name = fresh(f"aiomqtt {transport} {version}")
    base = f"{TOPIC}/{name}"
    async with aiomqtt_client(endpoints[transport], name, version) as client:
        for level, payload in PAYLOADS.items():
            await client.publish(f"{base}/{level}", payload or b"-", qos, retain=True)
        await client.subscribe(f"{base}/#", qos)
        retained = {**PAYLOADS, "nothing": b"-"}
        assert await from_aiomqtt(client) == sorted(
            (f"{base}/{level}", payload, qos, True) for level, payload in retained.items()
        )
        for level, payload in PAYLOADS.items():
            await client.publish(f"{base}/{level}", payload, qos)
        assert await from_aiomqtt(client) == expected(base, qos, retain=False)
    if qos:
        for level, payload in PAYLOADS.items():
            publisher.publish(f"{base}/{level}", payload, qos)
        async with aiomqtt_client(endpoints[transport], name, version) as client:
            assert await from_aiomqtt(client) == expected(base, qos, retain=False)


# -- aMQTT's client ---------------------------------------------------------------------------


async def from_amqtt(client: MQTTClient) -> list[tuple[str, bytes, int]]:
    """Return one message for each payload, sorted by topic."""
    messages = [await client.deliver_message() for _ in PAYLOADS]
    return sorted((m.topic, bytes(m.data), m.qos or 0) for m in messages if m is not None)


@EVERY_TRANSPORT
@CELLS
async def test_amqtt(
    endpoints: dict[str, Endpoint], publisher: PahoClient, transport: str, qos: int
) -> None:
    """Live and kept messages come exactly as they were published; it speaks MQTT 3.1.1 alone."""
    name = fresh(f"amqtt {transport}")
    base = f"{TOPIC}/{name}"
    wanted = sorted((f"{base}/{level}", payload, qos) for level, payload in PAYLOADS.items())
    async with amqtt_client(endpoints[transport], name) as client:
        assert await client.subscribe([(f"{base}/#", qos)]) == [qos]
        for level, payload in PAYLOADS.items():
            await client.publish(f"{base}/{level}", payload, qos)
        assert await from_amqtt(client) == wanted
    if qos:
        for level, payload in PAYLOADS.items():
            publisher.publish(f"{base}/{level}", payload, qos)
        async with amqtt_client(endpoints[transport], name) as client:
            assert await from_amqtt(client) == wanted


# -- mosquitto's tools ------------------------------------------------------------------------


class Tools:
    """mosquitto_pub and mosquitto_sub of one cell.

    Attributes:
        options: of both.
        base: begins every topic.
    """

    def __init__(self, endpoint: Endpoint, version: str, qos: int, base: str) -> None:
        self.options = [*endpoint.mosquitto(), "-V", version.replace(".", ""), "-q", str(qos)]
        self.base = base

    def publish(self, payloads: dict[str, bytes], *options: str) -> None:
        """Publish all payloads at a time; return when they are acknowledged."""
        started = []
        for level, payload in payloads.items():
            topic = f"{self.base}/{level}"
            how = "-s" if payload else "-n"
            command = ["mosquitto_pub", *self.options, "-t", topic, how, *options]
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
            started.append(process)
            assert process.stdin is not None
            process.stdin.write(payload)
            process.stdin.close()
        assert [process.wait(SECONDS) for process in started] == [0] * len(started)

    def subscriber(
        self, n_messages: int, *options: str, topic_filter: str
    ) -> subprocess.Popen[str]:
        """Start mosquitto_sub, which ends after so many messages."""
        command = ["mosquitto_sub", *self.options, "-t", topic_filter, "-F", "%t %q %r %x"]
        command += ["-C", str(n_messages), "-W", str(int(SECONDS)), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read(process: subprocess.Popen[str], n_lines: int) -> list[tuple[str, bytes, int, bool]]:
    """Return what a subscriber has printed, sorted by topic."""
    assert process.stdout is not None
    rows = []
    for _ in range(n_lines):
        begin, qos, retain, data = process.stdout.readline().rstrip("\n").rsplit(" ", 3)
        rows.append((begin, bytes.fromhex(data), int(qos), retain == "1"))
    return sorted(rows)


@pytest.mark.parametrize("transport", ["tcp", "tls"])
@VERSIONS
@CELLS
def test_mosquitto(
    endpoints: dict[str, Endpoint], publisher: PahoClient, transport: str, version: str, qos: int
) -> None:
    """Retained, live and kept messages come exactly as they were published."""
    name = fresh(f"mosquitto {transport} {version}")
    base = f"{TOPIC}/{name}"
    tools = Tools(endpoints[transport], version, qos, base)
    session = ["-i", name, "-c", *(["-x", "60"] if version == "5" else [])]
    retained = {**PAYLOADS, "nothing": b"-"}
    tools.publish(retained, "-r")
    n_each = len(PAYLOADS)
    with tools.subscriber(2 * n_each, *session, topic_filter=f"{base}/#") as subscriber:
        assert read(subscriber, n_each) == sorted(
            (f"{base}/{level}", payload, qos, True) for level, payload in retained.items()
        )
        tools.publish(PAYLOADS)
        assert read(subscriber, n_each) == expected(base, qos, retain=False)
        assert subscriber.wait(SECONDS) == 0
    if qos:
        for level, payload in PAYLOADS.items():
            publisher.publish(f"{base}/{level}", payload, qos)
        with tools.subscriber(n_each, *session, topic_filter="none") as subscriber:
            assert read(subscriber, n_each) == expected(base, qos, retain=False)
