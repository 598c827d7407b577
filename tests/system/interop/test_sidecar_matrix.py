"""Clients by versions, transports and QoS, through the sidecar to brokers of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiomqtt
import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.netem.runs.broker_process import RunningBroker, amqtt_command, reserved_port
from tests.helpers.certificates import Authority
from tests.helpers.mosquitto import running_mosquitto
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient
from tests.helpers.process import SECONDS, anonymous_policy
from tests.helpers.sidecar import running_sidecar
from tests.system.interop.cases import fresh
from tests.system.interop.endpoints import TRANSPORTS, Endpoint, amqtt_client, listeners

VERSIONS: Final = {"3.1": MQTTProtocolVersion.MQTTv31, "3.1.1": MQTT_3_1_1, "5": MQTT_5}
CELLS: Final = [
    *(pytest.param("mosquitto", version, id=f"mosquitto-{version}") for version in VERSIONS),
    pytest.param("amqtt", "3.1.1", id="amqtt-3.1.1"),
]
"""Brokers with the versions that they speak."""

PAYLOADS: Final = [b"at most once", b"\x00at least once\xff", bytes(range(250)) * 80]
"""By QoS: the last one is large for a proxy that withholds."""

PLUGINS: Final[dict[str, Any]] = {"probing": {}, "withholding": {}}


@dataclass(frozen=True)
class Served:
    """A sidecar before a broker.

    Attributes:
        endpoints: its TCP listeners by transport.
        socket_path: of its Unix socket.
    """

    endpoints: dict[str, Endpoint]
    socket_path: str


@contextlib.contextmanager
def running_amqtt(folder: Path) -> Iterator[int]:
    """Run aMQTT's own broker; yield its port."""
    with reserved_port() as port:
        policy = anonymous_policy(listeners={"default": {"bind": f"127.0.0.1:{port}"}})
        broker = RunningBroker("amqtt", amqtt_command(folder, policy), folder)
        try:
            broker.wait_until_listening(port)
            yield port
        finally:
            broker.stop()


class Sidecars:
    """A sidecar before each broker, started when it is first asked for."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Start nothing.

        Args:
            folder: of all files.
            stack: ends what is started.
        """
        self._folder = folder
        self._stack = stack
        self._authority = Authority(folder)
        self._served: dict[str, Served] = {}

    def before(self, broker: str) -> Served:
        """Return the sidecar before a broker."""
        if broker not in self._served:
            start = {"mosquitto": self._before_mosquitto, "amqtt": self._before_amqtt}[broker]
            self._served[broker] = start()
        return self._served[broker]

    def _before_mosquitto(self) -> Served:
        """Mosquitto demands TLS of the sidecar, with a certificate."""
        authority = self._authority
        certfile, keyfile = authority.issue(file="mosquitto")
        own = authority.issue_client("sidecar")
        settings = (
            f"cafile {authority.cafile}\ncertfile {certfile}\nkeyfile {keyfile}\n"
            "require_certificate true\n"
        )
        if os.geteuid() == 0:
            settings += "user root\n"  # who else may not read the files
        broker = self._stack.enter_context(running_mosquitto(self._folder, settings))
        tls = {"cafile": authority.cafile, "certfile": own.certfile, "keyfile": own.keyfile}
        return self._sidecar({"address": f"127.0.0.1:{broker.port}", "tls": tls}, "mosquitto")

    def _before_amqtt(self) -> Served:
        port = self._stack.enter_context(running_amqtt(self._folder))
        return self._sidecar({"address": f"127.0.0.1:{port}"}, "amqtt")

    def _sidecar(self, upstream: dict[str, Any], name: str) -> Served:
        folder = self._folder / name
        folder.mkdir()
        config = {
            "listeners": listeners(self._authority) | {"local": {"bind": f"unix:{folder}/s"}},
            "upstream": upstream,
            "plugins": PLUGINS,
        }
        ports = self._stack.enter_context(running_sidecar(config, folder)).ports
        ports["tcp"] = ports.pop("default")
        endpoints = {one: Endpoint(one, port, self._authority) for one, port in ports.items()}
        return Served(endpoints, f"{folder}/s")


@pytest.fixture(scope="module")
def sidecars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecars]:
    """Return the sidecars of all cells."""
    with contextlib.ExitStack() as stack:
        yield Sidecars(tmp_path_factory.mktemp("sidecars"), stack)


def expected(base: str) -> list[tuple[str, bytes, int]]:
    """Return what a subscriber is to see, in order."""
    return [(f"{base}/{qos}", payload, qos) for qos, payload in enumerate(PAYLOADS)]


@pytest.mark.parametrize("transport", [*TRANSPORTS, "unix"])
@pytest.mark.parametrize(("broker", "version"), CELLS)
def test_paho(sidecars: Sidecars, broker: str, version: str, transport: str) -> None:
    """Each QoS comes as it was published."""
    base = fresh(f"paho/{broker}/{version}/{transport}")
    sidecar = sidecars.before(broker)
    if transport == "unix":
        where: dict[str, Any] = {"host": sidecar.socket_path, "transport": "unix"}
        port = 1
    else:
        endpoint = sidecar.endpoints[transport]
        where, port = endpoint.paho(), endpoint.port
    with PahoClient(port, fresh("paho"), VERSIONS[version], **where) as client:
        if transport in ("tls", "wss"):
            client.paho.tls_set_context(sidecar.endpoints[transport].authority.client_context())
        assert client.connect()
        for qos in range(3):
            assert client.subscribe(f"{base}/{qos}", qos)
        came = []
        for qos, payload in enumerate(PAYLOADS):
            client.publish(f"{base}/{qos}", payload, qos)
            message = client.message()
            came.append((message.topic, message.payload, message.qos))
    assert came == expected(base)


@pytest.mark.parametrize("transport", [*TRANSPORTS, "unix"])
@pytest.mark.parametrize(("broker", "version"), CELLS)
async def test_aiomqtt(sidecars: Sidecars, broker: str, version: str, transport: str) -> None:
    """Each QoS comes as it was published."""
    base = fresh(f"aiomqtt/{broker}/{version}/{transport}")
    sidecar = sidecars.before(broker)
    options: dict[str, Any] = (
        {"hostname": sidecar.socket_path, "transport": "unix"}
        if transport == "unix"
        else sidecar.endpoints[transport].aiomqtt()
    )
    protocol = aiomqtt.ProtocolVersion(int(VERSIONS[version]))
    name = fresh("aiomqtt")
    async with aiomqtt.Client(
        identifier=name, protocol=protocol, timeout=SECONDS, **options
    ) as client:
        await client.subscribe([(f"{base}/{qos}", qos) for qos in range(3)])
        came = []
        for qos, payload in enumerate(PAYLOADS):
            await client.publish(f"{base}/{qos}", payload, qos)
            async with asyncio.timeout(SECONDS):
                message = await anext(client.messages)
            came.append((str(message.topic), message.payload, message.qos))
    assert came == expected(base)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("broker", ["mosquitto", "amqtt"])
async def test_amqtt(sidecars: Sidecars, broker: str, transport: str) -> None:
    """Each QoS comes as it was published; it speaks MQTT 3.1.1 alone, and over no Unix socket."""
    base = fresh(f"amqtt/{broker}/{transport}")
    endpoint = sidecars.before(broker).endpoints[transport]
    async with amqtt_client(endpoint, fresh("amqtt")) as client:
        assert await client.subscribe([(f"{base}/{qos}", qos) for qos in range(3)]) == [0, 1, 2]
        came = []
        for qos, payload in enumerate(PAYLOADS):
            await client.publish(f"{base}/{qos}", payload, qos)
            async with asyncio.timeout(SECONDS):
                message = await client.deliver_message()
            assert message is not None
            came.append((message.topic, bytes(message.data), message.qos))
    assert came == expected(base)


@pytest.mark.parametrize("transport", ["tcp", "tls", "unix"])
@pytest.mark.parametrize(("broker", "version"), CELLS)
def test_mosquitto(sidecars: Sidecars, broker: str, version: str, transport: str) -> None:
    """Each QoS comes as it was published; its tools speak no WebSocket."""
    base = fresh(f"tools/{broker}/{version}/{transport}")
    sidecar = sidecars.before(broker)
    where = (
        ["--unix", sidecar.socket_path]
        if transport == "unix"
        else sidecar.endpoints[transport].mosquitto()
    )
    options = [*where, "-V", version.replace(".", "")]
    # Without stdbuf what it prints into a pipe comes at its end.
    command = ["stdbuf", "-oL", "mosquitto_sub", *options, "-q", "2", "-t", f"{base}/#", "-d"]
    command += ["-F", "%t %q %x", "-C", str(len(PAYLOADS)), "-W", str(int(SECONDS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout is not None
        while not (line := subscriber.stdout.readline()).startswith("Subscribed"):
            assert line
        came = []
        for qos, payload in enumerate(PAYLOADS):
            publish = ["mosquitto_pub", *options, "-q", str(qos), "-t", f"{base}/{qos}", "-s"]
            subprocess.run(publish, input=payload, timeout=SECONDS, check=True)
            while not (line := subscriber.stdout.readline()).startswith(base):
                assert line
            topic, read_qos, data = line.split()
            came.append((topic, bytes.fromhex(data), int(read_qos)))
    if broker == "amqtt":  # which delivers at the subscription's QoS
        came = [(topic, data, min(int(topic[-1]), qos)) for topic, data, qos in came]
    assert came == expected(base)
