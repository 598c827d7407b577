from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker import server as server_module
from broker.config import parse_policy
from broker.errors import PenstockError
from broker.extensions import Plugin
from broker.listeners import ListenError
from broker.mqtt.packets import Disconnect, PubAck, Publish
from broker.mqtt.reason_codes import ReasonCode
from broker.server import Server
from plugins.queue.client import QueueClient
from tests.broker.serving import make_server, port_of, serving, until
from tests.helpers.process import anonymous_policy
from tests.helpers.wire import WireClient, connected

LOCAL = "127.0.0.1"


def queue_plugin(folder: Path, **keys: Any) -> dict[str, Any]:
    """Return a queue of everything below `q/`."""
    own = {"path": str(folder / "queue.db"), "http": "127.0.0.1:0"}
    return {"queue": own | keys | {"queues": {"work": {"topics": ["q/#"]}}}}


async def test_every_listener_leads_to_the_same_broker() -> None:
    """A client of one listener hears a client of another; each listener takes its free port."""
    listeners = {"default": {"bind": "127.0.0.1:0"}, "second": {"bind": "127.0.0.1:0"}}
    async with serving(listeners=listeners) as server:
        assert set(server.addresses) == {"default", "second"}
        assert {host for host, _ in server.addresses.values()} == {LOCAL}
        async with (
            await connected(port_of(server)) as subscriber,
            await connected(port_of(server, "second"), version=4) as publisher,
        ):
            await subscriber.subscribe("t")
            await publisher.publish("t", b"data")
            assert (await subscriber.take(Publish)).payload == b"data"


async def test_without_an_authentication_plugin_every_client_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with aMQTT nobody may connect unasked; the log says what to name."""
    policy = parse_policy({"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": {}}, "p")
    server = Server(policy)
    await server.start()
    try:
        for version in (4, 5):
            async with await WireClient.dial(port_of(server), version) as client:
                assert (await client.connect("c")).reason_code == ReasonCode.NOT_AUTHORIZED
                assert await client.receive() is None
    finally:
        await server.stop()
    assert "p: no authentication plugin under plugins: every client is refused" in caplog.text
    assert "AnonymousAuthPlugin" in caplog.text


async def test_address_in_use_is_told_and_nothing_stays_behind(tmp_path: Path) -> None:
    """The error names listener and address; the listeners and plugins before it are stopped."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        listeners = {
            "default": {"bind": "127.0.0.1:0"},
            "second": {"bind": f"127.0.0.1:{port}"},
        }
        server = make_server(listeners=listeners, plugins=queue_plugin(tmp_path))
        told = rf"^listener second: cannot bind 127\.0\.0\.1:{port}: .*in use"
        with pytest.raises(ListenError, match=told):
            await server.start()
    with pytest.raises(ConnectionRefusedError):
        await WireClient.dial(port_of(server))
    async with serving(plugins=queue_plugin(tmp_path)):
        pass  # the queue's file is free again


async def test_plugin_that_cannot_start_stops_the_start(tmp_path: Path) -> None:
    """No socket is opened; the error is the plugin's own."""
    server = make_server(plugins=queue_plugin(tmp_path / "missing"))
    with pytest.raises(PenstockError, match=r"missing/queue\.db\.lock cannot be written"):
        await server.start()
    assert not server.addresses


async def test_stop_tells_clients_and_frees_the_port() -> None:
    """MQTT 5 clients get DISCONNECT 0x8B, 3.1.1 clients a closed connection [MQTT-3.14.0-1]."""
    async with serving() as server:
        port = port_of(server)
        new, old = await connected(port), await connected(port, version=4)
        silent = await WireClient.dial(port)
        await until(lambda: len(server._driver.protocols) == 3)
        await server.stop()
        assert await new.rest() == [Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
        assert await old.rest() == []
        assert await silent.rest() == []
        with pytest.raises(ConnectionRefusedError):
            await WireClient.dial(port)
        for client in (new, old, silent):
            client.close()


async def test_stop_commits_what_was_accepted_and_acknowledges_it(tmp_path: Path) -> None:
    """A message that waits for its commit is stored, and its PUBACK goes out before the end."""
    plugins = queue_plugin(tmp_path, commit_wait_seconds=1.0)
    async with serving(plugins=plugins) as server, await connected(port_of(server)) as client:
        await client.send(Publish("q/1", b"kept", qos=1, packet_id=7))
        await until(lambda: server.core.sinks[0].counts.queued)
        await server.stop()
        assert await client.rest() == [
            PubAck(7),
            Disconnect(ReasonCode.SERVER_SHUTTING_DOWN),
        ]
    async with serving(plugins=plugins) as server:
        url = next(p.http_url for p in server._plugins.plugins if hasattr(p, "http_url"))
        client_of_queue = QueueClient(url)
        (found,) = await asyncio.to_thread(client_of_queue.dequeue, "work", 10, 5)
        assert found.payload == b"kept"


async def test_stop_does_not_wait_for_a_client_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a stalled client has not taken within the limit of a stop is dropped."""
    monkeypatch.setattr(server_module, "DRAIN_SECONDS", 0.05)
    async with serving() as server:
        stalled = await WireClient.dial(port_of(server), receive_bytes=4096)
        await stalled.connect("stalled")
        await stalled.subscribe("t", 1)
        async with await connected(port_of(server)) as publisher:
            await publisher.publish("t", bytes(8_000_000))
        await server.stop()
        await until(lambda: not server._driver.protocols)
        stalled.close()


class Fragile(Plugin):
    """A plugin whose end fails."""

    class Config:
        """No keys."""

    async def close(self) -> None:
        """Fail."""
        raise RuntimeError("broken pipe of an organ")


async def test_plugin_that_fails_to_close_is_logged_and_the_others_close(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One plugin's fault keeps neither the others nor the stop from their end."""
    async with serving(plugins=queue_plugin(tmp_path)) as server:
        fragile = Fragile(Fragile.Config(), server._plugins.plugins[0].context)
        server._plugins = replace(server._plugins, plugins=(fragile, *server._plugins.plugins))
        await server.stop()
    assert "plugin Fragile did not close" in caplog.text
    async with serving(plugins=queue_plugin(tmp_path)):
        pass  # the queue's file is free again


async def test_sys_topics_are_published_again_and_again() -> None:
    """Retained figures come at once, and again when they have changed."""
    async with serving(sys_interval=0.05) as server, await connected(port_of(server)) as client:
        await client.subscribe("$SYS/broker/clients/total")
        assert (await client.take(Publish)).retain
        async with await connected(port_of(server)):
            while (await client.take(Publish)).payload != b"2":  # before, there was one client
                pass


async def test_without_an_interval_there_is_no_sys_topic() -> None:
    """`sys_interval: 0` publishes nothing."""
    async with serving(sys_interval=0) as server:
        assert len(server.core.retained) == 0


async def test_samplers_look_at_the_sockets_of_subscribers() -> None:
    """A plugin's sampler gets each connection's file descriptor, every period of its own."""
    probing = {"sources": ["tcp_info"], "probe_period": 0.05, "max_age_seconds": 60.0}
    async with (
        serving(plugins={"probing": probing}) as server,
        await connected(port_of(server), "c") as client,
    ):
        await client.subscribe("t")
        session = server.core.sessions.get("c")
        assert session is not None
        link = session.link
        await until(lambda: link.rtt_latest is not None)
        assert link.rtt_source == "tcp_info"


async def test_limits_of_the_policy_reach_the_clients() -> None:
    """What the file sets, an MQTT 5 client is told in CONNACK."""
    limits = {"receive_maximum": 7, "maximum_packet_size": 1000, "maximum_keep_alive": 60}
    async with (
        serving(limits=limits, session_expiry_interval=30) as server,
        await WireClient.dial(port_of(server)) as client,
    ):
        asked = {"session_expiry_interval": 1000}
        properties = (await client.connect(properties=asked)).properties
        told = {
            "receive_maximum": 7,
            "maximum_packet_size": 1000,
            "server_keep_alive": 60,
            "session_expiry_interval": 30,
        }
        assert properties | told == properties


async def test_assigned_client_identifiers_differ() -> None:
    """Two clients without a name do not take each other's session over."""
    async with (
        serving() as server,
        await connected(port_of(server)),
        await connected(port_of(server)),
    ):
        assert len(server.core.sessions) == 2


async def test_start_and_stop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The log names each listener with its address."""
    caplog.set_level(logging.INFO)
    async with serving() as server:
        port = port_of(server)
    assert f"listener default: listening on 127.0.0.1:{port}" in caplog.text
    assert "stopping" in caplog.text


async def test_limits_are_those_of_the_machine_and_the_log_says_which(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, at the start: the policy file does not have the numbers."""
    caplog.set_level(logging.INFO)
    policy = parse_policy(anonymous_policy(), "policy.yaml")
    server = Server(policy, memory_bytes=1 << 30)
    await server.start()
    try:
        assert server.core.limits.total_queued_bytes == 1 << 28
    finally:
        await server.stop()
    (line,) = [r.getMessage() for r in caplog.records if "limits of this machine" in r.msg]
    assert "1073741824 bytes of memory" in line
    assert "total_queued_bytes 268435456" in line
