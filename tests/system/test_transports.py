"""Real clients against the real broker, over every transport it has."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from penstock.broker.mqtt.packets import Publish
from penstock.broker.network.open_files import most_connections
from tests.helpers.certificates import Authority
from tests.helpers.paho_client import MQTT_3_1_1, MQTT_5, PahoClient
from tests.helpers.process import SECONDS, BrokerProcess, anonymous_policy, running_broker
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient, connected

VERSIONS = pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5], ids=["3.1.1", "5"])

PAYLOAD = bytes(range(256)) * 4000
"""Many records of TLS, and more than one read."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the broker's and the clients' certificates."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker with a listener of every kind."""
    folder = tmp_path_factory.mktemp("broker")
    client_certificates = {"cafile": authority.cafile, "require_certificate": True}
    listeners: dict[str, Any] = {
        "default": {"bind": "127.0.0.1:0"},
        "mutual": authority.listener_keys(**client_certificates),
        "proxied": {"bind": "127.0.0.1:0", "proxy_protocol": True},
        "proxied_tls": authority.listener_keys(proxy_protocol=True),
        "tls": authority.listener_keys(),
        "unix": {"bind": f"unix:{folder}/mqtt.sock"},
        "ws": {"bind": "127.0.0.1:0", "type": "ws"},
        "wss": authority.listener_keys(type="ws"),
    }
    policy = anonymous_policy(listeners=listeners, limits={"queued_bytes": 10**9})
    with running_broker(policy, folder, is_forked=False) as running:
        running.wait_for_log("listener wss: listening")
        yield running
        assert running.stop() == 0
        assert "ERROR" not in running.log
        assert "Traceback" not in running.log


def exchange(client: PahoClient, **options: Any) -> None:
    """Send messages of all QoS through the broker and back to the same client."""
    with client:
        assert client.connect(**options)
        assert client.subscribe("t", 2)
        for qos in range(3):
            client.publish("t", PAYLOAD, qos)
            message = client.message()
            assert message.qos == qos
            assert bytes(message.payload) == PAYLOAD


@VERSIONS
def test_paho_over_tls_with_a_certificate_of_its_own(
    broker: BrokerProcess, authority: Authority, version: MQTTProtocolVersion
) -> None:
    """The certificate is of the authority that the broker trusts."""
    client = PahoClient(broker.ports["mutual"], version=version)
    client.paho.tls_set_context(authority.client_context(authority.issue_client("paho")))
    exchange(client)


@contextlib.contextmanager
def mosquitto_sub(*options: str) -> Iterator[subprocess.Popen[str]]:
    """Run mosquitto_sub for a block that begins when it has subscribed."""
    command = ["stdbuf", "-oL", "mosquitto_sub", "-d", "-W", str(int(SECONDS)), "-q", "1"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("Subscribed" in line for line in process.stdout)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("listener", ["tls", "mutual", "unix"])
@pytest.mark.parametrize("version", ["311", "5"])
def test_mosquitto_over_tls_and_unix(
    broker: BrokerProcess, authority: Authority, tmp_path: Path, listener: str, version: str
) -> None:
    """mosquitto_pub and mosquitto_sub, with --cafile, --cert, --key and --unix."""
    if listener == "unix":
        where = ["--unix", broker.log.split("listening on unix:")[1].split()[0]]
    else:
        where = ["-h", "localhost", "-p", str(broker.ports[listener]), "--cafile", authority.cafile]
    if listener == "mutual":
        files = authority.issue_client("mosquitto")
        where += ["--cert", files.certfile, "--key", files.keyfile]
    topic = f"mosquitto/{listener}/{version}"
    picture = tmp_path / "picture"
    picture.write_bytes(PAYLOAD)
    with mosquitto_sub(*where, "-V", version, "-t", topic, "-F", "%x") as subscriber:
        publish = ["mosquitto_pub", *where, "-V", version, "-t", topic, "-q", "1"]
        subprocess.run([*publish, "-f", str(picture)], check=True, timeout=SECONDS)
        assert subscriber.stdout is not None
        assert any(line.strip() == PAYLOAD.hex() for line in subscriber.stdout)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x09\x0a\x00\x00\x01\xc3\x50\x07\x5b",
    ],
    ids=["v1", "v2"],
)
async def test_proxy_protocol(broker: BrokerProcess, authority: Authority, header: bytes) -> None:
    """The log names the client, not the proxy, also where TLS comes behind the header."""
    async with await WireClient.dial(broker.ports["proxied"]) as client:
        await client.send_bytes(header)
        assert (await client.connect("c")).reason_code == 0
        await client.send_bytes(b"\x36\x03\x00\x01t")  # QoS 3
        await client.rest()
    await asyncio.to_thread(broker.wait_for_log, "203.0.113.9:50000 on listener proxied")
    sock = socket.create_connection(("127.0.0.1", broker.ports["proxied_tls"]))
    sock.sendall(header)
    sock.setblocking(False)
    stream = await asyncio.open_connection(
        sock=sock, ssl=authority.client_context(), server_hostname="127.0.0.1"
    )
    async with StreamClient(*stream) as client:
        assert (await client.connect("c")).reason_code == 0
        await client.send_bytes(b"\x36\x03\x00\x01t")  # QoS 3
        await client.rest()
    await asyncio.to_thread(broker.wait_for_log, "203.0.113.9:50000 on listener proxied_tls")


@pytest.mark.memory
async def test_stalled_subscribers_over_tls_and_websocket_cost_one_payload(
    broker: BrokerProcess, authority: Authority
) -> None:
    """What waits for twenty clients that do not read is stored once, as over TCP."""
    n_clients, n_messages, n_bytes = 20, 20, 1_000_000
    process = psutil.Process(broker.process.pid)
    context = authority.client_context()
    async with await connected(broker.port) as publisher:
        clients = []
        for number in range(n_clients):
            client: WireClient
            if number % 2:
                client = await StreamClient.dial_tls(broker.ports["tls"], context)
            else:
                client = await WebSocketClient.dial_websocket(
                    broker.ports["wss"], ssl=context, max_queue=1
                )
            await client.connect(properties={"receive_maximum": n_messages})
            await client.subscribe("stalled", 1)
            clients.append(client)
        before = process.memory_info().rss
        for _ in range(n_messages):
            await publisher.publish("stalled", bytes(n_bytes))
        grown = process.memory_info().rss - before
        for client in clients:
            for _ in range(n_messages):
                assert len((await client.take(Publish)).payload) == n_bytes
            client.close()
    assert grown < 1.7 * n_messages * n_bytes


@pytest.mark.memory
async def test_connection_with_tls_keeps_no_room_for_what_has_passed(
    broker: BrokerProcess, authority: Authority
) -> None:
    """A large message each way leaves less than half of its size; it was more than the whole."""
    n_clients, n_bytes = 60, 200_000
    process = psutil.Process(broker.process.pid)
    context = authority.client_context()
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(n_clients):
            client = await StreamClient.dial_tls(broker.ports["tls"], context)
            await stack.enter_async_context(client)
            await client.connect()
            await client.subscribe(f"own/{number}")
            clients.append(client)
        before = process.memory_info().rss
        for number, client in enumerate(clients):
            await client.send(Publish(f"own/{number}", bytes(n_bytes)))
            assert len((await client.take(Publish)).payload) == n_bytes
        assert process.memory_info().rss - before < n_clients * n_bytes / 2


async def test_certificates_are_read_again_at_sighup(tmp_path: Path) -> None:
    """A client stays connected; new ones see the new certificate; of a broken one the log tells."""
    authority = Authority(tmp_path)
    context = authority.client_context()
    listeners = {"default": authority.listener_keys()}
    with running_broker(anonymous_policy(listeners=listeners), tmp_path) as broker:

        async def shown() -> str:
            async with await StreamClient.dial_tls(broker.port, context) as client:
                certificate = client.writer.get_extra_info("ssl_object").getpeercert()
                return str(certificate["serialNumber"])

        async with await StreamClient.dial_tls(broker.port, context) as client:
            await client.connect("c")
            before = await shown()
            files = authority.issue()
            broker.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(broker.wait_for_log, "reloaded: listeners.default.certfile")
            after = await shown()
            assert after != before
            with open(files.certfile, "w") as broken:  # noqa: ASYNC230, PTH123 (a small file)
                broken.write("no certificate")
            broker.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(broker.wait_for_log, "not reloaded: listeners.default: ")
            assert await shown() == after
            assert (await client.publish("t", b"data")).reason_code < 0x80


@pytest.mark.memory
async def test_thousands_of_half_open_connections(tmp_path: Path) -> None:
    """Who connects and says nothing keeps nobody out, and costs little until it is gone."""
    most_connections()  # raises the limit of files of this process, too
    authority = Authority(tmp_path)
    listeners = {"default": {"bind": "127.0.0.1:0"}, "tls": authority.listener_keys()}
    limits = {"connections": 2100, "connect_timeout_seconds": 600}
    policy = anonymous_policy(listeners=listeners, limits=limits, sys_interval=0.2)
    with running_broker(policy, tmp_path, is_forked=False) as broker:
        broker.wait_for_log("listener tls: listening")
        process = psutil.Process(broker.process.pid)
        async with await connected(broker.port) as client:
            before = process.memory_info().rss
            silent = [
                await WireClient.dial(broker.ports["tls" if number % 2 else "default"])
                for number in range(2000)
            ]
            assert (await client.publish("t", b"data")).reason_code < 0x80
            async with await connected(broker.port):
                pass
            assert process.memory_info().rss - before < 2000 * 30_000
            silent += [await WireClient.dial(broker.port) for _ in range(1000)]
            await client.subscribe("$SYS/broker/penstock/connections_refused/cut_off")
            while int((await client.take(Publish)).payload) < 500:
                pass
            assert (await client.publish("t", b"data")).reason_code < 0x80
            for one in silent:
                one.close()
