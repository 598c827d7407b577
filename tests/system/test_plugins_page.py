"""The code of the pages about plugins: a distribution of all their blocks, in a real broker."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from penstock.broker.mqtt.packets import Auth, ConnAck, Connect, PubAck, Publish
from penstock.broker.mqtt.reason_codes import ReasonCode
from tests.helpers.process import ROOT, BrokerProcess, running_broker
from tests.helpers.wire import WireClient, connected

PAGES = "".join(
    (ROOT / "docs" / page).read_text()
    for page in ("how-to/plugins.md", "reference/extension-points.md")
)


def blocks(language: str) -> list[str]:
    """Return the pages' blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES, re.MULTILINE | re.DOTALL)


def offered() -> dict[str, str]:
    """Return the entry points that the pages offer."""
    names: dict[str, str] = {}
    for text in blocks("toml"):
        names |= tomllib.loads(text)["project"]["entry-points"]["penstock.plugins"]
    return names


def of_the_page() -> dict[str, Any]:
    """Return the plugins of all policies of the page, with their keys."""
    plugins: dict[str, Any] = {}
    for text in blocks("yaml"):
        plugins |= yaml.safe_load(text)["plugins"]
    return plugins


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on PYTHONPATH in which the page's module is installed."""
    (tmp_path / "my_plugins.py").write_text("\n\n".join(blocks("python")))
    lines = "".join(f"{name} = {value}\n" for name, value in offered().items())
    info = tmp_path / "my_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[penstock.plugins]\n{lines}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the page's module."""
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("my_plugins")


@pytest.fixture
def broker(folder: Path) -> Iterator[BrokerProcess]:
    """Start a broker with every plugin of the page."""
    policy = {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": of_the_page()}
    with running_broker(policy, folder) as broker:
        yield broker


def test_the_tests_of_the_page_pass(module: ModuleType) -> None:
    """They ask an extension without a broker."""
    tests = [name for name in vars(module) if name.startswith("test_")]
    assert tests
    for name in tests:
        vars(module)[name]()


def test_every_plugin_that_the_page_offers_is_named_in_a_policy() -> None:
    """The reader sees how each is switched on."""
    assert of_the_page().keys() == {*offered(), "my_plugins.Doorbell"}


async def test_the_plugins_of_the_page_do_what_it_says(broker: BrokerProcess) -> None:
    """Greeter, doorbell, sink and access control, for real clients."""
    async with (
        await connected(broker.port, client_id="d", username="display") as display,
        await connected(broker.port, client_id="s", username="sensor") as sensor,
    ):
        broker.wait_for_log("INFO penstock.greeter: welcome, d")
        broker.wait_for_log("ding: s")
        assert await display.subscribe("faults/#", 1) == 1
        picture = bytes(100_000)
        await sensor.send(Publish("faults/1", picture, qos=1, packet_id=1))
        publish = await display.take(Publish)
        assert (publish.topic, publish.payload) == ("faults/1", picture)
        await display.send(PubAck(publish.packet_id))
        assert (await sensor.take(PubAck)).reason_code == 0
        broker.wait_for_log("WARNING penstock.alarms: faults/1: 100000 bytes")
        await display.send(Publish("faults/2", b"x", qos=1, packet_id=1))
        assert (await display.take(PubAck)).reason_code == ReasonCode.NOT_AUTHORIZED


async def test_a_client_with_the_token_is_let_in(broker: BrokerProcess) -> None:
    """Enhanced authentication, as the page has it."""
    method = {"authentication_method": "TOKEN"}
    async with await WireClient.dial(broker.port) as client:
        await client.send(Connect(client_id="t", protocol_version=5, properties=method))
        assert (await client.take(Auth)).properties["authentication_data"] == b"token?"
        answer = {**method, "authentication_data": b"open sesame"}
        await client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
        assert (await client.take(ConnAck)).reason_code == 0


def test_a_misspelt_method_is_told_as_the_page_tells_it(folder: Path) -> None:
    """The start ends with status 2 and the line of the page."""
    text = (folder / "my_plugins.py").read_text().replace("def decide(", "def decides(")
    (folder / "my_plugins.py").write_text(text)
    broker = BrokerProcess({"plugins": {"patience": {}}}, folder)
    assert broker.wait() == 2
    told = re.search(r"`(plugin patience: [^`]*)`", PAGES)
    assert told is not None
    assert " ".join(told[1].split()) in broker.log
