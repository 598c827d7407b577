from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from penstock.broker import plugin_loader
from penstock.broker.config.checked_yaml import read_text
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.extensions import LinkSampler, MessageSink, Plugin, Receipt, Reload, SinkCounts
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import ConnAck, Connect, Disconnect, PingReq, PubAck
from penstock.broker.mqtt.proxy_header import ProxyHeader, read_proxy_header
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.network.listeners import ListenError
from penstock.broker.process.program import HurriedService, ReloadingService
from penstock.edge_proxy.sidecar.config import parse_proxy_config
from penstock.edge_proxy.sidecar.operations import totals_of
from penstock.edge_proxy.sidecar.sidecar import Sidecar
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.console.api import ConsolePlugin
from penstock.plugins.console.commands import why
from tests.broker.serving import port_of, serving
from tests.helpers.access import Access
from tests.helpers.certificates import Authority, break_file
from tests.helpers.gates import SwitchGate
from tests.helpers.process import SECONDS
from tests.helpers.proxied_clients import publish
from tests.helpers.scripted import Peer, ScriptedBroker, open_client, until
from tests.helpers.sources import ListSource
from tests.helpers.streams import StreamClient, WebSocketClient
from tests.helpers.wire import WireClient


class Point:
    """Stands for an installed entry point."""

    def __init__(self, name: str, cls: type[Plugin]) -> None:
        self.name = name
        self.value = cls.__qualname__
        self._cls = cls

    def load(self) -> type[Plugin]:
        """Return the class."""
        return self._cls


class Recorded(Plugin):
    """A plugin whose life is written down."""

    @dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    class Config:
        """Its keys."""

        fails: bool = False
        file: str | None = None

    life: list[str]

    async def start(self) -> None:
        """Take note, or fail."""
        self.life.append("start")
        if self.config.fails:
            raise PenstockError("cannot start")

    async def close(self) -> None:
        """Take note and fail, which must harm nobody."""
        self.life.append("close")
        raise RuntimeError("cannot close")


class Gated(Recorded):
    """Brings a gate."""

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.gate = SwitchGate()

    async def reload(self, config: Any) -> Reload:
        """Read its file again.

        Raises:
            ConfigError: it cannot be read.
        """
        read_text(config.file)
        return Reload([f"file {config.file}"])


class Sink(MessageSink):
    """A sink that keeps nothing."""

    name = "s"
    topic_filters = ("t",)
    counts = SinkCounts()

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take nothing."""


class Sunk(Recorded):
    """Brings what a proxy has no use for."""

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        self.sinks = [Sink()]
        self.sources = [ListSource()]
        self.sampler = LinkSampler()
        self.sampler.probe_topic = "latency"


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install the plugins of this file; return what happens to them."""
    plugins: Mapping[str, type[Plugin]] = {"gated": Gated, "sunk": Sunk}
    points = [Point(name, cls) for name, cls in plugins.items()]
    monkeypatch.setattr(plugin_loader, "entry_points", lambda group: points if group else [])
    written: list[str] = []
    monkeypatch.setattr(Recorded, "life", written, raising=False)
    return written


def sidecar(port: int, rest: str = "") -> Sidecar:
    """Return a proxy before a broker on a port of this machine."""
    text = f"upstream: {{address: '127.0.0.1:{port}', connect_timeout_seconds: 60}}\n{rest}\n"
    if "listeners:" not in rest:
        text += "listener: {bind: '127.0.0.1:0'}\n"
    if "drain_seconds:" not in rest:
        text += "drain_seconds: 0\n"
    return Sidecar(parse_proxy_config(text, "proxy.yaml"))


@asynccontextmanager
async def running(rest: str = "") -> AsyncIterator[tuple[Sidecar, ScriptedBroker]]:
    """Run a proxy before a scripted broker."""
    async with ScriptedBroker() as broker:
        proxy = sidecar(broker.port, rest)
        await proxy.start()
        try:
            yield proxy, broker
        finally:
            await proxy.stop()


@pytest.mark.usefixtures("life")
async def test_a_plugins_gate_withholds_and_the_account_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The gate of a plugin named in the file is asked; live and ended clients are counted."""
    caplog.set_level(logging.INFO)
    async with running("plugins: {gated: }") as (proxy, upstream):
        client = await open_client(proxy.addresses["default"], client_id="c")
        broker = await upstream.accepted()
        await client.receive()
        broker.send(publish("big", 200, packet_id=1), publish("small", packet_id=2))
        assert await client.receive() == publish("small", packet_id=2)
        client.send(PubAck(2))
        assert await broker.receive() == PubAck(2)
        ledger = totals_of(proxy.shared).ledger
        assert (ledger.matched, ledger.delivered, ledger.outstanding()) == (2, 1, 1)
        await proxy.stop()
        assert await client.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        assert await client.receive_end() == b""
        assert await broker.receive_end() == b""
    line = "served 1 clients: messages matched 2, delivered 1, expired 0, dropped 0, left to the"
    assert any(message.startswith(line) for message in caplog.messages)


async def test_why_a_message_is_held_is_told_by_the_console(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """``penstock why`` asks a proxy as it asks a broker, and the end's log has the sums."""
    caplog.set_level(logging.INFO)
    withholding = "{policy: conservative, threshold_s: 100, threshold_l: 1.0e-9}"
    probing = "{probe_period: 0.05}"
    with reserved_port() as port:
        console = f"{{http: '127.0.0.1:{port}'}}"
        plugins = f"{{probing: {probing}, withholding: {withholding}, console: {console}}}"
        url = f"http://127.0.0.1:{port}"
        async with running(f"plugins: {plugins}") as (proxy, upstream):
            client = await open_client(proxy.addresses["default"], client_id="c")
            broker = await upstream.accepted()
            await client.receive()
            await until(lambda: proxy.shared.by_client_id["c"].link.rtt_latest is not None)
            broker.send(publish("cam", 200, packet_id=1))
            await until(lambda: totals_of(proxy.shared).ledger.withheld_total == 1)
            assert await asyncio.to_thread(why.main, ["c", "--url", url]) == 0
            assert await asyncio.to_thread(why.main, ["--url", url]) == 0
            await client.close()
            await until(lambda: not proxy.shared.by_client_id)
            assert await asyncio.to_thread(why.main, ["c", "--url", url]) == 0
    here, gone = capsys.readouterr().out.split("c: gone for ")
    here, _, state = here.partition("upstream 127.0.0.1:")
    assert ": up for " in state
    assert ", connections: 1\nclients: 1 connected, 0 gone\n" in state
    assert "\npayload store: payloads 0, memory_bytes 0, disk_bytes 0, " in state
    assert here.startswith("c: connected, listener default\n")
    assert "held now" in here
    assert "because conservative: L_now" in here
    assert "ago: held (congested): 200 bytes on cam" in gone
    assert "large messages: decisions_total conservative held congested: 1" in caplog.text


async def test_the_console_of_a_proxy_shows_its_part() -> None:
    """Links, held messages and metrics; what its broker has is empty, or told not to be there."""
    withholding = "{policy: conservative, threshold_s: 100, threshold_l: 1.0e-9}"
    plugins = f"{{probing: {{}}, withholding: {withholding}, console: {{http: '127.0.0.1:0'}}}}"
    async with running(f"plugins: {plugins}") as (proxy, upstream), aiohttp.ClientSession() as http:
        client = await open_client(proxy.addresses["default"], client_id="c")
        broker = await upstream.accepted()
        await client.receive()
        broker.send(publish("cam", 200, packet_id=1))
        await until(lambda: totals_of(proxy.shared).ledger.matched == 1)
        console = next(one for one in proxy._plugins.plugins if isinstance(one, ConsolePlugin))

        async def ask(path: str) -> Any:
            async with http.get(console.http_url + path) as answer:
                assert answer.status == 200, await answer.text()
                is_json = answer.content_type == "application/json"
                return await (answer.json() if is_json else answer.text())

        me = await ask("/api/me")
        assert (me["kind"], "clients" in me["has"], "retained" in me["has"]) == (
            "proxy",
            True,
            False,
        )
        assert [row["client_id"] for row in (await ask("/api/clients?sort=rtt"))["clients"]] == [
            "c"
        ]
        assert (await ask("/api/clients/c"))["row"]["client_id"] == "c"
        overview = await ask("/api/overview?history=true")
        assert overview["messages"]["matched"] == 1
        assert "penstock_messages_matched_total 1.0" in (await ask("/metrics")).splitlines()
        assert await ask("/readyz") == {"status": "ready"}
        for path in ("retained", "subscriptions", "uplinks"):
            assert (await ask(f"/api/{path}"))[path] == []
        async with http.get(console.http_url + "/api/tail") as answer:
            assert answer.status == 404
        await client.close()


async def test_a_stop_waits_only_so_long(life: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes nothing is dropped; plugins are closed whatever they raise."""
    monkeypatch.setattr("penstock.edge_proxy.sidecar.sidecar.CLOSE_SECONDS", 0.01)
    async with running("plugins: {gated: }") as (proxy, upstream):
        client = await open_client(proxy.addresses["default"], client_id="c")
        broker = await upstream.accepted()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        broker.send(publish("never", 30_000_000, packet_id=1))
        await until(lambda: totals_of(proxy.shared).ledger.matched == 1)
        async with asyncio.timeout(SECONDS):
            await proxy.stop()
    assert life == ["start", "close"]


async def test_an_address_in_use_is_named(life: list[str]) -> None:
    """The proxy does not start, and what it had started is closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = (
            f"upstream: {{address: broker}}\nlistener: {{bind: '127.0.0.1:{port}'}}\n"
            "plugins: {gated: }"
        )
        proxy = Sidecar(parse_proxy_config(text, "proxy.yaml"))
        with pytest.raises(ListenError, match=f"listener default: cannot bind 127.0.0.1:{port}"):
            await proxy.start()
    assert life == ["start", "close"]


async def test_a_plugin_that_cannot_start_ends_the_start(life: list[str]) -> None:
    """Its error is the program's."""
    with pytest.raises(PenstockError, match="cannot start"):
        await sidecar(1, "plugins: {gated: {fails: true}}").start()
    assert life == ["start", "close"]


async def test_plugins_without_use_in_a_proxy_are_refused(life: list[str]) -> None:
    """A sink would never be offered a message: better an error than silence."""
    with pytest.raises(ConfigError) as caught:
        await sidecar(1, "plugins: {gated: , sunk: }").start()
    assert [(p.path, p.read) for p in caught.value.problems] == [
        ("plugins.sunk", "a plugin with a message sink"),
        ("plugins.sunk", "a plugin with a message source"),
        ("plugins.sunk", "a plugin with a sampler that sends probes, as by source probe"),
    ]
    assert life == []


@pytest.mark.parametrize(
    ("name", "keys", "brought"),
    [
        ("access", "", "access control, which the broker behind the proxy has"),
        ("trace", "otlp: 'http://h:1'", "callbacks of the broker's events"),
    ],
)
async def test_what_is_the_broker_s_is_refused_in_a_proxy(
    name: str, keys: str, brought: str
) -> None:
    """It would do nothing: an anonymous client would come in."""
    with pytest.raises(ConfigError) as caught:
        await sidecar(1, f"plugins: {{{name}: {{{keys}}}}}").start()
    [problem] = caught.value.problems
    assert (problem.path, problem.read) == (f"plugins.{name}", f"a plugin with {brought}")


@pytest.mark.usefixtures("life")
async def test_files_of_plugins_are_read_again_with_clients_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At SIGHUP; a file that cannot be used is told, and the one before holds."""
    caplog.set_level(logging.INFO)
    table = tmp_path / "table"
    table.touch()
    async with running(f"plugins: {{gated: {{file: '{table}'}}}}") as (proxy, _):
        assert isinstance(proxy, ReloadingService)
        await proxy.reload()
        assert f"reloaded: plugins.gated.file {table}; changed: no keys" in caplog.text
        table.unlink()
        answer = await proxy.reload()
    assert list(answer.failed) == [f"{table}: file"]
    assert f"not reloaded: {table}: file: read No such file" in caplog.text


async def test_plugins_are_found_by_their_short_names() -> None:
    """An unknown name and a wrong key are found at the start, each with its place."""
    with pytest.raises(ConfigError) as caught:
        await sidecar(1, "plugins: {withholdin: , withholding: {policy: often}}").start()
    assert [problem.path for problem in caught.value.problems] == [
        "plugins.withholdin",
        "plugins.withholding.policy",
    ]


# -- listeners --------------------------------------------------------------------------------


async def connect(client: WireClient, upstream: ScriptedBroker) -> Peer:
    """Send a CONNECT, and return the broker's end once the client is accepted."""
    await client.send(Connect(client_id="c", protocol_version=5))
    broker = await upstream.accepted()
    assert await client.receive() == ConnAck()
    return broker


async def test_every_kind_of_listener(tmp_path: Path) -> None:
    """TLS, WebSocket, both, a Unix socket: the same code as the broker's."""
    authority = Authority(tmp_path)
    listeners = {
        "tls": authority.listener_keys(),
        "ws": {"bind": "127.0.0.1:0", "type": "ws"},
        "wss": authority.listener_keys(type="ws"),
        "local": {"bind": f"unix:{tmp_path}/mqtt.sock"},
    }
    context = authority.client_context()
    async with running(f"listeners: {json.dumps(listeners)}") as (proxy, upstream):
        ports = {name: port for name, (_, port) in proxy.addresses.items()}
        for client in (
            await StreamClient.dial_tls(ports["tls"], context),
            await WebSocketClient.dial_websocket(ports["ws"]),
            await WebSocketClient.dial_websocket(ports["wss"], ssl=context),
            await StreamClient.dial_unix(proxy.addresses["local"][0]),
        ):
            broker = await connect(client, upstream)
            broker.send(publish("large", 1_000_000), publish("small", 2))
            assert await client.receive() == publish("large", 1_000_000)
            assert await client.receive() == publish("small", 2)
            await client.send(PingReq())
            assert await broker.receive() == PingReq()
            client.close()
            assert await broker.receive_end() == b""


async def test_what_a_client_sends_at_once_reaches_the_broker_through_every_layer(
    tmp_path: Path,
) -> None:
    """CONNECT, a message, DISCONNECT and the end of the layer, in one go: nothing is lost."""
    authority = Authority(tmp_path)
    listeners = {"tls": authority.listener_keys(), "ws": {"bind": "127.0.0.1:0", "type": "ws"}}
    async with running(f"listeners: {json.dumps(listeners)}") as (proxy, upstream):
        ports = {name: port for name, (_, port) in proxy.addresses.items()}
        over_tls = await StreamClient.dial_tls(ports["tls"], authority.client_context())
        over_websocket = await WebSocketClient.dial_websocket(ports["ws"])
        for client in (over_tls, over_websocket):
            everything = Connect(client_id="c", protocol_version=5), publish("up", 3), Disconnect()
            await client.send(*everything)
            if client is over_websocket:
                await over_websocket.stream.close()
            client.close()
            broker = await upstream.connected()
            assert isinstance(await broker.receive(), Connect)
            assert await broker.receive() == publish("up", 3)
            assert await broker.receive() == Disconnect()
            assert await broker.receive_end() == b""
            await broker.close()


async def test_a_clients_certificate_ends_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker reads who it was; once revoked, the client is disconnected at the reload."""
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    crlfile = authority.revoke()
    pump = authority.issue_client("pump-7")
    keys = authority.listener_keys(
        cafile=authority.cafile, crlfile=crlfile, require_certificate=True
    )
    rest = f"identity: proxy_v2\nlisteners: {{tls: {json.dumps(keys)}}}"
    async with running(rest) as (proxy, upstream):
        port = proxy.addresses["tls"][1]
        client = await StreamClient.dial_tls(port, authority.client_context(pump))
        await client.send(Connect(client_id="c"))
        broker = await upstream.connected()
        beginning = await broker.reader.readexactly(16)
        length = int.from_bytes(beginning[14:], "big")
        header = read_proxy_header(beginning + await broker.reader.readexactly(length))
        address, own_port = client.writer.get_extra_info("sockname")
        assert header == ProxyHeader(16 + length, address, own_port, "pump-7")
        assert isinstance(await broker.receive(), Connect)
        broker.send(ConnAck())
        assert await client.receive() == ConnAck()
        authority.revoke(pump)
        await proxy.reload()
        assert await client.receive() == Disconnect(ReasonCode.NOT_AUTHORIZED)
    assert "its certificate is revoked" in caplog.text
    assert f"reloaded: listeners.tls.certfile {keys['certfile']}" in caplog.text


@pytest.mark.parametrize("is_local", [False, True])
async def test_penstock_reads_who_a_client_is(tmp_path: Path, *, is_local: bool) -> None:
    """Its access control judges the client, not the proxy; over TLS to the broker, too."""
    authority = Authority(tmp_path)
    upstream = {"default": authority.listener_keys(proxy_protocol=True)}
    keys = authority.listener_keys(cafile=authority.cafile, require_certificate=True)
    if is_local:
        keys["bind"] = f"unix:{tmp_path}/s"
    async with serving(listeners=upstream) as broker:
        access = broker.core.access = Access()
        text = (
            f"upstream: {{address: '127.0.0.1:{port_of(broker)}',"
            f" tls: {{cafile: '{authority.cafile}'}}}}\n"
            f"identity: proxy_v2\nlisteners: {{tls: {json.dumps(keys)}}}"
        )
        proxy = Sidecar(parse_proxy_config(text, "proxy.yaml"))
        await proxy.start()
        context = authority.client_context(authority.issue_client("pump-7"))
        if is_local:
            streams = await asyncio.open_unix_connection(
                f"{tmp_path}/s", ssl=context, server_hostname="localhost"
            )
            client = StreamClient(*streams)
        else:
            client = await StreamClient.dial_tls(proxy.addresses["tls"][1], context)
        await client.connect("c")
        attempt = access.attempts[0]
        assert attempt.certificate_name == "pump-7"
        assert attempt.remote_address == "127.0.0.1"
        await proxy.upstreams.check(proxy.upstreams.each[0])
        client.close()
        await proxy.stop()


async def test_user_properties_tell_who_a_client_is() -> None:
    """In the CONNECT of MQTT 5."""
    async with running("identity: user_property") as (proxy, upstream):
        client = await open_client(proxy.addresses["default"], client_id="c")
        host, port = client.writer.get_extra_info("sockname")
        connect = await (await upstream.connected()).receive()
        assert isinstance(connect, Connect)
        assert connect.properties["user_property"] == [
            ("penstock-client-address", f"{host}:{port}")
        ]
        await client.close()


async def test_a_listener_that_is_full(caplog: pytest.LogCaptureFixture) -> None:
    """A client waits for a place, with its CONNECT, or is told to go."""
    caplog.set_level(logging.INFO)
    listeners = {
        "waits": {"bind": "127.0.0.1:0", "max_connections": 1},
        "refuses": {"bind": "127.0.0.1:0", "max_connections": 1, "when_full": "refuse"},
    }
    async with running(f"listeners: {json.dumps(listeners)}") as (proxy, upstream):
        for name in listeners:
            first = await open_client(proxy.addresses[name], client_id="first")
            await upstream.accepted()
            assert await first.receive() == ConnAck()
            second = await open_client(proxy.addresses[name], client_id="second")
            if name == "refuses":
                assert await second.receive() == ConnAck(reason_code=ReasonCode.SERVER_BUSY)
            else:
                await until(lambda: "waits for a place" in caplog.text)
                third = await open_client(proxy.addresses[name], client_id="third")
                await third.close()
                await first.close()
                await upstream.accepted()
                assert await second.receive() == ConnAck()


# -- the broker behind it ---------------------------------------------------------------------


@asynccontextmanager
async def with_standby(
    upstream: dict[str, Any],
) -> AsyncIterator[tuple[Sidecar, ScriptedBroker, ScriptedBroker]]:
    """Run a proxy before two scripted brokers; yield all three.

    Args:
        upstream: its keys, but for the addresses.
    """
    async with ScriptedBroker() as first, ScriptedBroker() as second:
        addresses = [f"127.0.0.1:{broker.port}" for broker in (first, second)]
        config = {
            "upstream": {"addresses": addresses, **upstream},
            "listener": {"bind": "127.0.0.1:0"},
            "drain_seconds": 0,
        }
        proxy = Sidecar(parse_proxy_config(config, "proxy.yaml"))
        await proxy.start()
        yield proxy, first, second
        await proxy.stop()


async def answered(broker: ScriptedBroker, code: ReasonCode = ReasonCode.SUCCESS) -> None:
    """Answer the next CONNECT; connections that end without one are checks."""
    while True:
        peer = await broker.connected()
        with contextlib.suppress(asyncio.IncompleteReadError):
            assert isinstance(await peer.receive(), Connect)
            peer.send(ConnAck(reason_code=code))
            return


async def test_a_broker_without_an_answer_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A client's connection is closed; the next ones are another broker's."""
    keys = {"connack_timeout_seconds": 0.05, "health_check_seconds": 3600}
    async with with_standby(keys) as (proxy, silent, other):
        # A busy machine may take that long to connect to the broker.
        while f"127.0.0.1:{silent.port} is down: no CONNACK in 0.05 s" not in caplog.text:
            client = await open_client(proxy.addresses["default"])
            assert await client.receive_end() == b""
        last = await open_client(proxy.addresses["default"])
        await other.connected()
        await last.close()


@pytest.mark.parametrize("code", [ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY])
async def test_a_broker_that_serves_no_clients_is_passed_over(
    code: ReasonCode, caplog: pytest.LogCaptureFixture
) -> None:
    """Its refusal passes; the next client is another broker's."""
    async with with_standby({"health_check_seconds": 3600}) as (proxy, full, other):
        refused = await open_client(proxy.addresses["default"])
        await answered(full, code)
        assert await refused.receive() == ConnAck(reason_code=code)
        await until(lambda: f"127.0.0.1:{full.port} is down: CONNACK: server " in caplog.text)
        last = await open_client(proxy.addresses["default"])
        await answered(other)
        assert await last.receive() == ConnAck()
        await last.close()
        await refused.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_forwarder_without_a_broker_is_passed_over(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It accepts connections and ends them: a client or two are lost, later ones are another's."""
    async with with_standby({"health_check_seconds": 0.05}) as (proxy, forwarder, other):

        async def end_each() -> None:
            while True:
                peer = await forwarder.connected()
                peer.writer.write(answer)
                peer.writer.write_eof()

        ending = asyncio.create_task(end_each())
        lost = await open_client(proxy.addresses["default"])
        assert await lost.receive_end() == b""
        await until(lambda: f"127.0.0.1:{forwarder.port} is down: " in caplog.text)
        last = await open_client(proxy.addresses["default"])
        await answered(other)
        assert await last.receive() == ConnAck()
        await last.close()
        ending.cancel()


async def test_files_that_cannot_be_reloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are named, and the old ones stay in use."""
    authority = Authority(tmp_path)
    keys = authority.listener_keys()
    text = (
        f"upstream: {{address: broker, tls: {{cafile: {authority.cafile}}}}}\n"
        f"listeners: {{tls: {json.dumps(keys)}}}"
    )
    proxy = Sidecar(parse_proxy_config(text, "proxy.yaml"))
    await proxy.start()
    for file in (authority.cafile, keys["certfile"]):
        break_file(file)
    answer = await proxy.reload()
    await proxy.stop()
    assert list(answer.failed) == ["listeners.tls", "upstream.tls"]
    assert "not reloaded: listeners.tls: " in caplog.text


# -- the stop ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("life")
async def test_withheld_messages_leave_before_the_end() -> None:
    """A client that has everything is disconnected at once, another one when it has."""
    async with running("plugins: {gated: }\ndrain_seconds: 3600") as (proxy, upstream):
        address = proxy.addresses["default"]
        idle = await open_client(address, client_id="idle")
        await upstream.accepted()
        assert await idle.receive() == ConnAck()
        client = await open_client(address, client_id="c")
        broker = await upstream.accepted()
        assert await client.receive() == ConnAck()
        broker.send(publish("big", 200, packet_id=1))
        await until(lambda: totals_of(proxy.shared).ledger.withheld_total == 1)
        stopping = asyncio.create_task(proxy.stop())
        assert await idle.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection(*address)
        assert isinstance(proxy.shared.gate, SwitchGate)
        proxy.shared.gate.is_open = True
        broker.send(publish("small", packet_id=2))
        received = [await client.receive(), await client.receive()]
        assert publish("big", 200, packet_id=1) in received
        client.send(PubAck(1), PubAck(2))
        assert await client.receive() == Disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        assert [await broker.receive(), await broker.receive()] == [PubAck(1), PubAck(2)]
        await stopping


@pytest.mark.usefixtures("life")
async def test_a_stop_can_be_hurried() -> None:
    """Whatever is withheld."""
    async with running("plugins: {gated: }\ndrain_seconds: 3600") as (proxy, upstream):
        assert isinstance(proxy, HurriedService)
        client = await open_client(proxy.addresses["default"], client_id="c")
        broker = await upstream.accepted()
        await client.receive()
        broker.send(publish("big", 200, packet_id=1))
        await until(lambda: totals_of(proxy.shared).ledger.withheld_total == 1)
        stopping = asyncio.create_task(proxy.stop())
        await until(lambda: proxy._clients.is_draining)
        proxy.hurry()
        await stopping
        assert await broker.receive_end() == b""


@pytest.mark.mqtt5("3.1.2-24")
async def test_clients_are_told_of_another_server() -> None:
    """Unless a client takes no packet as large as that."""
    async with running("server_reference: other.example") as (proxy, upstream):
        address = proxy.addresses["default"]
        clients = []
        for properties in ({}, {"maximum_packet_size": 16}):
            clients.append(await open_client(address, properties=properties))
            await upstream.accepted()
            assert await clients[-1].receive() == ConnAck()
        await proxy.stop()
        reference = {"server_reference": "other.example"}
        assert await clients[0].receive() == Disconnect(ReasonCode.USE_ANOTHER_SERVER, reference)
        assert await clients[1].receive() == Disconnect(ReasonCode.USE_ANOTHER_SERVER)
