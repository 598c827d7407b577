from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.broker import server as server_module
from penstock.broker.__main__ import main
from penstock.broker.config.limits import Limits
from penstock.broker.config.policy import load_policy, parse_policy
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.extensions import Plugin
from penstock.broker.mqtt.packets import Connect, Disconnect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.network.listeners import ListenError
from penstock.broker.plugin_loader import LoadedPlugins
from penstock.broker.routing.retained import RETAINED_BLOCKS
from penstock.broker.server import CONNECTION_BLOCKS, SESSION_BLOCKS, Server, kept_by
from penstock.plugins.queue.client import QueueClient
from tests.broker.serving import make_server, operations_of, port_of, serving, until
from tests.helpers.certificates import Authority
from tests.helpers.process import ANONYMOUS, anonymous_policy, running_broker
from tests.helpers.riddle import Riddle
from tests.helpers.streams import StreamClient
from tests.helpers.virtual import VirtualBroker
from tests.helpers.wire import WireClient, connected

LOCAL = "127.0.0.1"
SYS = "amqtt.plugins.sys.broker.BrokerSysPlugin"


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


@pytest.mark.parametrize(
    "keys", [{}, {"plugins": {}}, {"plugins": {"probing": None}}, {"plugins": {SYS: None}}]
)
async def test_without_a_way_to_authenticate_this_machine_alone_is_served(
    caplog: pytest.LogCaptureFixture, keys: dict[str, Any]
) -> None:
    """Whatever the listeners bind; the log says what to write."""
    listeners = {"default": {"bind": ":0"}, "web": {"type": "ws", "bind": "0.0.0.0:0"}}
    server = Server(parse_policy({"listeners": listeners} | keys, "p"))
    await server.start()
    try:
        bound = [
            sock.getsockname()[0]
            for listening in server._listeners
            for opened in listening._servers
            for sock in opened.sockets
        ]
        assert bound
        assert {*bound} <= {LOCAL, "::1"}
        for version in (4, 5):
            (await connected(port_of(server), version=version, username="any")).close()
    finally:
        await server.stop()
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("p: no plugin authenticates clients: listeners that serve only this")
    assert ": default, web; to serve other machines" in told
    assert "plugins: {access: {password_file: FILE}}" in told


async def test_a_listener_that_demands_certificates_is_not_told_as_local(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves the networks of the file; a warning that it does not would be wrong."""
    authority = Authority(tmp_path)
    keys = authority.listener_keys(cafile=authority.cafile, require_certificate=True)
    for listeners, n_warnings in (({}, 0), ({"plain": {"bind": "127.0.0.1:0", "ssl": False}}, 1)):
        caplog.clear()
        everywhere = {"default": {**keys, "bind": "0.0.0.0:0"}, **listeners}
        server = Server(parse_policy({"listeners": everywhere, "plugins": {}}, "p"))
        await server.start()
        await server.stop()
        assert server.addresses["default"][0] == "0.0.0.0"
        told = [record.message for record in caplog.records if "authenticates" in record.message]
        assert len(told) == n_warnings
        assert all(": plain; to serve other machines" in message for message in told)


async def test_without_a_way_to_authenticate_an_address_of_a_network_ends_the_start(
    tmp_path: Path,
) -> None:
    """Before anything is started; the error names the listener and what to write."""
    text = {"listeners": {"default": {"bind": "192.0.2.1:0"}}, "plugins": queue_plugin(tmp_path)}
    told = r"^p: listeners\.default\.bind: read 192\.0\.2\.1:0; allowed: .*allow_anonymous"
    with pytest.raises(ConfigError, match=told):
        await Server(parse_policy(text, "p")).start()
    assert not os.listdir(tmp_path)  # noqa: PTH208 (nothing was made)


@pytest.mark.parametrize(
    ("plugins", "is_warned"),
    [
        ({ANONYMOUS: None}, True),
        ({"access": {"allow_anonymous": True}}, False),
        ({"access": {}, ANONYMOUS: {"allow_anonymous": False}}, False),
    ],
)
async def test_who_asks_for_anonymity_gets_it(
    caplog: pytest.LogCaptureFixture, plugins: dict[str, Any], *, is_warned: bool
) -> None:
    """On the addresses of the file; aMQTT's plugin, whose default it is, with a warning."""
    listeners = {"default": {"bind": "0.0.0.0:0"}, "local": {"bind": "127.0.0.1:0"}}
    server = Server(parse_policy({"listeners": listeners, "plugins": plugins}, "p"))
    await server.start()
    await server.stop()
    assert server.addresses["default"][0] == "0.0.0.0"
    told = [record.message for record in caplog.records if "can reach" in record.message]
    assert [message.split(":")[0] for message in told] == ["listener default"] * is_warned


async def test_a_plugin_that_brings_authenticators_alone_lets_in_by_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The listeners serve every network, so that others are refused."""
    loaded = LoadedPlugins(authenticators=(Riddle(),))
    monkeypatch.setattr(server_module, "load_plugins", lambda *_, **__: loaded)
    text = {"listeners": {"default": {"bind": "0.0.0.0:0"}}, "plugins": {"probing": None}}
    server = Server(parse_policy(text, "p"))
    await server.start()
    try:
        async with await WireClient.dial(port_of(server)) as client:
            assert (await client.connect("c")).reason_code == ReasonCode.NOT_AUTHORIZED
    finally:
        await server.stop()


async def test_address_in_use_is_told_and_nothing_stays_behind(tmp_path: Path) -> None:
    """The error names listener and address; the listeners and plugins before it are stopped."""
    with socket.create_server((LOCAL, 0)) as taken:
        port = taken.getsockname()[1]
        listeners = {"default": {"bind": "127.0.0.1:0"}, "second": {"bind": f"127.0.0.1:{port}"}}
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
        assert await client.rest() == [PubAck(7), Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)]
    async with serving(plugins=plugins) as server:
        url = next(p.http_url for p in server._plugins.plugins if hasattr(p, "http_url"))
        client_of_queue = QueueClient(url)
        (found,) = await asyncio.to_thread(client_of_queue.receive, "work", wait_seconds=5)
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
    assert "extension Fragile failed" in caplog.text
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
    assert "with 1.0 GiB of memory: sessions 32768," in line
    assert "total_queued_bytes 256.0 MiB" in line


async def test_a_file_that_goes_while_it_is_read_again_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a renewed certificate is put in its place."""
    authority = Authority(tmp_path)
    async with serving(listeners={"default": authority.listener_keys()}) as server:

        def fail(*_: object) -> None:
            raise FileNotFoundError(2, "No such file or directory")

        monkeypatch.setattr("penstock.broker.network.listeners.make_context", fail)
        await server.reload()
        async with await StreamClient.dial_tls(port_of(server), authority.client_context()) as one:
            await one.connect("c")
    assert "not reloaded: listeners.default: [Errno 2] No such file" in caplog.text


async def test_a_reload_while_it_starts_waits_for_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console answers before the other plugins are there; nor does it drain by then."""
    has_begun, goes_on = asyncio.Event(), asyncio.Event()

    async def start(_: LoadedPlugins) -> None:
        has_begun.set()
        await goes_on.wait()

    monkeypatch.setattr(LoadedPlugins, "start", start)
    server = make_server()
    starting = asyncio.create_task(server.start())
    try:
        await has_begun.wait()
        with pytest.raises(PenstockError, match="starts"):
            operations_of(server).drain(0)
        reloading = asyncio.create_task(server.reload())
        await asyncio.sleep(0)
        goes_on.set()
        assert (await reloading).failed == {}
        await starting
        assert list(server.addresses) == ["default"]
    finally:
        await server.stop()


def test_what_messages_take_is_known_while_they_are_there() -> None:
    """For the collector, which need not look at them; nothing is left when they are gone."""
    broker = VirtualBroker(Limits(total_queued_bytes=1_000_000))
    publisher, reader = broker.connect("publisher"), broker.connect("reader")
    reader.subscribe("waits", qos=1)
    before = kept_by(broker.core)
    reader.connection.pause_sending(broker.now)
    for n in range(5):
        publisher.publish(f"r/{n}", bytes(100), retain=True)
        publisher.publish("waits", bytes(100), qos=1, packet_id=n + 1)
    n_blocks, n_bytes = kept_by(broker.core)
    assert n_blocks - before[0] >= 5 * RETAINED_BLOCKS + 5
    assert n_bytes - before[1] > 10 * 100
    for n in range(5):
        publisher.publish(f"r/{n}", b"", retain=True)
    reader.connection.resume_sending(broker.now)
    broker.settle()
    broker.core.tree.void_plans()
    assert kept_by(broker.core) == before


def test_what_sessions_and_long_topics_take_is_known_too() -> None:
    """A fleet that connects, or retained messages of deep topics, are no reason to look at all."""
    broker = VirtualBroker()
    publisher = broker.connect("publisher")
    before = kept_by(broker.core)
    client = broker.connect("c", 4)
    client.subscribe("site/1/+")
    n_blocks, n_bytes = kept_by(broker.core)
    assert n_blocks >= before[0] + SESSION_BLOCKS + CONNECTION_BLOCKS + 3
    assert n_bytes > before[1]
    client.lose()
    assert kept_by(broker.core) == before
    publisher.publish("a", b"x", retain=True)
    short = kept_by(broker.core)[0] - before[0]
    publisher.publish("b/c/d/e/f/g", b"x", retain=True)
    assert kept_by(broker.core)[0] - before[0] - short >= short + 5 * 2
    for topic in ("a", "b/c/d/e/f/g"):
        publisher.publish(topic, b"", retain=True)
    broker.core.tree.void_plans()
    assert kept_by(broker.core) == before


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Return a TCP port of this machine that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and a service manager's signal end it with status 0."""
    with running_broker(anonymous_policy(), tmp_path, is_forked=False) as broker:
        assert broker.stop(number) == 0
        assert "stopping" in broker.log
        assert "Traceback" not in broker.log


def test_port_in_use_is_one_line_and_status_2(
    tmp_path: Path, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the listener, the address, and the program that has it."""
    bind = f"127.0.0.1:{taken_port}"
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(anonymous_policy(listeners={"default": {"bind": bind}})))
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"penstock broker: listener default: cannot bind {bind}: ")
    assert f"in use by process {os.getpid()}: " in line


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_congestion_control_that_is_not_there_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the listener, the key, what was read, what there is, and how to get more."""
    path = tmp_path / "policy.yaml"
    keys = {"bind": "127.0.0.1:0", "congestion_control": "none-such"}
    path.write_text(yaml.safe_dump(anonymous_policy(listeners={"default": keys})))
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = "penstock broker: listener default: congestion_control: read 'none-such'; available: "
    assert line.startswith(told)
    assert line.endswith(" (modprobe tcp_none-such may add it)")


def test_each_wrong_place_of_the_file_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, keys to the place, what was read and what is allowed; status 2."""
    path = tmp_path / "policy.yaml"
    path.write_text("limits: {receive_maximum: 0}\nlisteners: {default: {bnd: 1}}\n")
    assert main(["-c", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"{path}: limits.receive_maximum: read 0; allowed: " in told
    assert (
        f"{path}: listeners.default.bnd: read an unknown key; allowed: one of allowed_origins, bind"
        in told
    )
    assert "Traceback" not in told


def test_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy file that is not there is named; status 2."""
    path = tmp_path / "none.yaml"
    assert main(["-c", str(path)]) == 2
    assert f"{path}: file: read No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--config"),
        (["-c"], "-c"),
        (["-c", "x", "--log-level", "loud"], "read 'loud'; allowed: debug, info, warning, error"),
        (["--confg", "x"], "--config"),
    ],
)
def test_wrong_arguments_are_told_with_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake on the command line names what is allowed; no traceback."""
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_log_level_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PENSTOCK_LOG_LEVEL stands for the option."""
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "loud")
    assert main(["-c", "x"]) == 2
    assert "read 'loud'" in capsys.readouterr().err


def test_log_level_decides_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With debug the log says more than where it listens."""
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")
    with (
        running_broker(anonymous_policy(), tmp_path) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as client,
    ):
        assert " DEBUG " in broker.log
        client.sendall(write_packet(Connect(client_id="pump"), 5))
        broker.wait_for_log("client pump: connected")


def test_a_client_that_is_refused_writes_no_line_of_its_own(tmp_path: Path) -> None:
    """Before anyone has looked at a password, a client id stands in the log."""
    policy = {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": {"access": {}}}
    connect = write_packet(Connect(client_id="a\nINFO penstock: all is well"), 5)
    with (
        running_broker(policy, tmp_path) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as client,
    ):
        client.sendall(connect)
        broker.wait_for_log(r"client a\nINFO penstock: all is well")


def test_help_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names the options and is no mistake."""
    assert main(["--help"]) == 0
    assert "--config" in capsys.readouterr().out


def test_an_example_is_printed_that_starts_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has installed a wheel has no other file to begin with."""
    assert main(["--example"]) == 0
    file = tmp_path / "policy.yaml"
    file.write_text(capsys.readouterr().out)
    assert list(load_policy(file).plugins) == ["probing", "withholding", "queue"]


def test_a_mosquitto_conf_is_told_from_a_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who moves from mosquitto tries it first; the error names what makes a policy file of it."""
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(b"# f\xfcr alle\nlistener 1883\nallow_anonymous true\n")
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"penstock broker: {path}: file: read a mosquitto.conf; allowed: a policy file; penstock "
        "import-mosquitto makes one of it"
    )


async def test_the_interval_of_sys_changes_at_a_reload() -> None:
    """From none to some and back; what was published last stays retained."""
    policies = [
        parse_policy(anonymous_policy(sys_interval=interval), "policy.yaml")
        for interval in (0, 0.05, 0)
    ]
    files = iter(policies[1:])
    server = Server(policies[0], read_policy=lambda: next(files))
    await server.start()
    try:
        async with await connected(port_of(server), "c") as client:
            await client.subscribe("$SYS/broker/uptime")
            assert (await server.reload()).changed == ["sys_interval"]
            assert (await client.take(Publish)).topic == "$SYS/broker/uptime"
            assert (await server.reload()).changed == ["sys_interval"]
            timers = [topics._work._timer for topics in server._sys_topics]
            assert [timer is None or timer.action for timer in timers] == [None, None]
    finally:
        await server.stop()


async def test_a_session_that_is_begun_after_a_reload_ends_by_the_new_bound() -> None:
    """A client is told it in its CONNACK."""
    policies = [
        parse_policy(anonymous_policy(session_expiry_interval=bound), "policy.yaml")
        for bound in (100, 7)
    ]
    server = Server(policies[0], read_policy=lambda: policies[1])
    await server.start()
    try:
        told = []
        for _ in range(2):
            async with await WireClient.dial(port_of(server)) as client:
                asked = {"session_expiry_interval": 1_000}
                connack = await client.connect("c", properties=asked)
                told.append(connack.properties["session_expiry_interval"])
            await server.reload()
        assert told == [100, 7]
    finally:
        await server.stop()
