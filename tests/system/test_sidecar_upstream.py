from __future__ import annotations

import contextlib
import os
from pathlib import Path

from penstock.broker.mqtt.packets import ConnAck
from penstock.netem.runs.broker_process import reserved_port
from tests.helpers.mosquitto import Mosquitto, running_mosquitto
from tests.helpers.paho_client import PahoClient
from tests.helpers.scripted import open_client
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


def test_a_broker_on_a_unix_socket(tmp_path: Path) -> None:
    """Without any network between proxy and broker."""
    path = tmp_path / "mosquitto.sock"
    settings = f"listener 0 {path}\n" + ("user root\n" if os.geteuid() == 0 else "")
    with running_mosquitto(tmp_path, settings) as broker:
        name_it(broker, b"unix")
        config = {
            "listener": {"bind": "127.0.0.1:0"},
            "upstream": {"address": f"unix:{path}"},
        }
        with (
            running_sidecar(config, tmp_path) as proxy,
            connected(proxy.port) as client,
        ):
            assert client.subscribe("name", 1)
            assert client.payloads(1) == [b"unix"]
