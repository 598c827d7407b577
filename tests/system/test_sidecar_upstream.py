from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from penstock.broker.mqtt.packets import ConnAck, Disconnect, PingReq, PingResp, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.mosquitto import Mosquitto, running_mosquitto
from tests.helpers.paho_client import PahoClient
from tests.helpers.scripted import accepted_client, open_client
from tests.helpers.sidecar import running_sidecar


def connected(port: int) -> PahoClient:
    """Return a client of a broker or proxy."""
    client = PahoClient(port)
    assert client.connect()
    return client


def name_it(broker: Mosquitto, name: bytes) -> None:
    """Let a broker tell its name to those who subscribe to it."""
    with connected(broker.port) as client:
        client.publish("name", name, retain=True)


async def test_failover_and_back(tmp_path: Path) -> None:
    """A broker is killed, and clients come to the other one; later ones come back, one stays."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        first = stack.enter_context(running_mosquitto(tmp_path, port=port))
        second = stack.enter_context(running_mosquitto(tmp_path))
        name_it(first, b"first")
        name_it(second, b"second")
        upstream = {
            "addresses": [f"127.0.0.1:{port}", f"127.0.0.1:{second.port}"],
            "health_check_seconds": 0.2,
        }
        config = {"listener": {"bind": "127.0.0.1:0"}, "upstream": upstream}
        proxy = stack.enter_context(running_sidecar(config, tmp_path))
        own = proxy.port
        witness = await open_client(("127.0.0.1", own))
        assert isinstance(await witness.receive(), ConnAck)
        first.process.kill()
        first.process.wait()
        assert await witness.receive_end() == b""
        with connected(own) as staying:
            assert staying.subscribe("name", 1)
            assert staying.payloads(1) == [b"second"]
            again = stack.enter_context(running_mosquitto(tmp_path, port=port))
            name_it(again, b"again")
            proxy.wait_for_log(f"127.0.0.1:{port} is up again")
            with connected(own) as coming:
                assert coming.subscribe("name", 1)
                assert coming.payloads(1) == [b"again"]
            name_it(second, b"still")
            assert staying.payloads(1) == [b"still"]
        assert proxy.stop() == 0
    assert f"upstream: 127.0.0.1:{port} is down: " in proxy.log


@contextlib.contextmanager
def frozen(broker: Mosquitto) -> Iterator[None]:
    """Stop a broker's process for a block: the kernel keeps its sockets open."""
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


async def test_a_frozen_broker_loses_nothing_and_another_one_is_used(tmp_path: Path) -> None:
    """The proxy answers PINGREQ for it, until a check's CONNECT tells that it is down."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        first = stack.enter_context(running_mosquitto(tmp_path, port=port))
        second = stack.enter_context(running_mosquitto(tmp_path))
        upstream = {
            "addresses": [f"127.0.0.1:{port}", f"127.0.0.1:{second.port}"],
            "health_check_seconds": 0.1,
            "connack_timeout_seconds": 1.0,
        }
        config = {"listener": {"bind": "127.0.0.1:0"}, "upstream": upstream}
        proxy = stack.enter_context(running_sidecar(config, tmp_path))
        client = await accepted_client(proxy.port, client_id="c", keep_alive=1)
        with frozen(first):
            client.send(Publish("t", b"", 1, packet_id=1), PingReq())
            assert await client.receive() == PingResp()
            assert await client.receive() == Disconnect(ReasonCode.SERVER_BUSY)
            name_it(second, b"second")
            with connected(proxy.port) as coming:
                assert coming.subscribe("name", 1)
                assert coming.payloads(1) == [b"second"]
        proxy.wait_for_log(f"127.0.0.1:{port} is up again")
        assert proxy.stop() == 0
    assert f"127.0.0.1:{port} answers no PINGREQ" in proxy.log
    assert f"127.0.0.1:{port} is down: no CONNACK" in proxy.log


def test_a_broker_on_a_unix_socket(tmp_path: Path) -> None:
    """Without any network between proxy and broker."""
    path = tmp_path / "mosquitto.sock"
    settings = f"listener 0 {path}\n" + ("user root\n" if os.geteuid() == 0 else "")
    with running_mosquitto(tmp_path, settings) as broker:
        name_it(broker, b"unix")
        config = {"listener": {"bind": "127.0.0.1:0"}, "upstream": {"address": f"unix:{path}"}}
        with running_sidecar(config, tmp_path) as proxy, connected(proxy.port) as client:
            assert client.subscribe("name", 1)
            assert client.payloads(1) == [b"unix"]
