from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from penstock.broker import plugin_loader
from penstock.broker.errors import ConfigError, PenstockError
from penstock.broker.extensions import (
    LinkSampler,
    MessageSink,
    PayloadStore,
    Plugin,
    Receipt,
    SinkCounts,
)
from penstock.broker.message import Message
from penstock.broker.mqtt.packets import Disconnect, PubAck
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.broker.process.program import ReloadingService
from penstock.edge_proxy.sidecar.config import parse_proxy_config
from penstock.edge_proxy.sidecar.sidecar import ListenError, Sidecar
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.console import why
from penstock.plugins.withholding.gate import WithholdingGate
from tests.helpers.gates import SwitchGate
from tests.helpers.pairs import publish
from tests.helpers.process import SECONDS
from tests.helpers.scripted import ScriptedBroker, open_client, until
from tests.helpers.sources import ListSource


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
        """One key."""

        fails: bool = False

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
        self.payload_store = PayloadStore()
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
    text = f"upstream: {{address: '127.0.0.1:{port}'}}\nlistener: {{bind: '127.0.0.1:0'}}\n{rest}"
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
        client = await open_client(proxy.address, client_id="c")
        broker = await upstream.accepted()
        await client.receive()
        broker.send(publish("big", 200, packet_id=1), publish("small", packet_id=2))
        assert await client.receive() == publish("small", packet_id=2)
        client.send(PubAck(2))
        assert await broker.receive() == PubAck(2)
        ledger = proxy.ledger()
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
            client = await open_client(proxy.address, client_id="c")
            broker = await upstream.accepted()
            await client.receive()
            await until(lambda: proxy.shared.pairs["c"].link.rtt_latest is not None)
            broker.send(publish("cam", 200, packet_id=1))
            await until(lambda: proxy.ledger().withheld_total == 1)
            assert await asyncio.to_thread(why.main, ["c", "--url", url]) == 0
            await client.close()
            await until(lambda: not proxy.shared.pairs)
            assert await asyncio.to_thread(why.main, ["c", "--url", url]) == 0
    here, gone = capsys.readouterr().out.split("c: gone for ")
    assert here.startswith("c: connected\n")
    assert "held now" in here
    assert "because conservative: L_now" in here
    assert "ago: held (congested): 200 bytes on cam" in gone
    assert "large messages: decisions_total conservative held congested: 1" in caplog.text


async def test_a_stop_waits_only_so_long(life: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes nothing is dropped; plugins are closed whatever they raise."""
    monkeypatch.setattr("penstock.edge_proxy.sidecar.sidecar.DRAIN_SECONDS", 0.01)
    async with running("plugins: {gated: }") as (proxy, upstream):
        client = await open_client(proxy.address, client_id="c")
        broker = await upstream.accepted()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        broker.send(publish("never", 30_000_000, packet_id=1))
        await until(lambda: proxy.ledger().matched == 1)
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
        with pytest.raises(ListenError, match=f"listener: cannot bind 127.0.0.1:{port}"):
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
        ("plugins.sunk", "a plugin with a payload store"),
        ("plugins.sunk", "a plugin with a sampler that sends probes, as by source probe"),
    ]
    assert life == []


async def test_files_of_plugins_are_read_again_with_clients_connected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At SIGHUP; a file that cannot be used is told, and the one before holds."""
    caplog.set_level(logging.INFO)
    profile = tmp_path / "sizes.csv"
    profile.write_text("10000,1\n1000000,10\n")
    async with running(f"plugins: {{withholding: {{profile: '{profile}'}}}}") as (proxy, _):
        assert isinstance(proxy, ReloadingService)
        gate = proxy.shared.gate
        assert isinstance(gate, WithholdingGate)
        profile.write_text("10000,1\n1000000,3\n")
        await proxy.reload()
        assert gate.profile.relative(1_000_000) == pytest.approx(3.0)
        profile.write_text("10000\n")
        await proxy.reload()
        assert gate.profile.relative(1_000_000) == pytest.approx(3.0)
    assert any("not reloaded: " in message for message in caplog.messages)
    read = f"reloaded: plugins.withholding.profile {profile}; read at the start alone: "
    assert read in caplog.text
    assert "reloaded: nothing; failed, and as before: plugins.withholding; " in caplog.text


async def test_plugins_are_found_by_their_short_names() -> None:
    """An unknown name and a wrong key are found at the start, each with its place."""
    with pytest.raises(ConfigError) as caught:
        await sidecar(1, "plugins: {withholdin: , withholding: {policy: often}}").start()
    assert [problem.path for problem in caught.value.problems] == [
        "plugins.withholdin",
        "plugins.withholding.policy",
    ]
