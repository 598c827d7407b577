from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from penstock.broker.access_control import (
    AccessControl,
    Authenticator,
    AuthExchange,
    ConnectAttempt,
)
from penstock.broker.config.policy import Policy, parse_policy
from penstock.broker.errors import ConfigError
from penstock.broker.events import Callbacks
from penstock.broker.extensions import (
    DeliveryGate,
    LinkSampler,
    MessageSink,
    PayloadStore,
    Plugin,
    Receipt,
    SinkCounts,
    Worker,
)
from penstock.broker.message import Message
from penstock.broker.plugin_loader import (
    LoadedPlugins,
    PluginLoadError,
    load_plugins,
    processes_per_machine,
)

Install = Callable[[Mapping[str, str]], None]


class Sink(MessageSink):
    """A sink that keeps nothing."""

    topic_filters = ("t",)
    counts = SinkCounts()

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take nothing."""


class Store(PayloadStore):
    """A store that says of itself how much it has: nothing."""

    def __len__(self) -> int:
        return 0


class Alarm(Plugin):
    """A plugin with a gate and a sink."""

    @dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    class Config:
        """One key."""

        level: int = 1
        sink: str = "alarms"

    def __init__(self, config: Any, context: Any) -> None:
        super().__init__(config, context)
        if config.level == 13:
            raise OSError("no luck")
        self.gate = DeliveryGate()
        self.sinks = [Sink(config.sink)]


class Bell(Alarm):
    """The plugin again, under another name."""


class Shelf(Plugin):
    """A plugin with a payload store."""

    @dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    class Config:
        """No key."""

    payload_store = Store()


class Bare(Shelf):
    """A plugin with a constructor of its own, and with state of its own."""

    def __init__(self, config: Any, context: Any) -> None:
        self.made_of = (config, context)
        self.started = self.closed = False


class Meter(Alarm):
    """A plugin at the top of a file, for which a broker is several processes."""

    is_section = True

    @classmethod
    def processes_per_machine(cls, config: Any) -> int:
        """Return the level."""
        return int(config.level)


class Desk(Shelf):
    """A plugin that a machine has once."""

    is_one_per_machine = True


class Gatekeeper(Authenticator):
    """An authentication method."""

    method = "KNOCK"

    def start(self, attempt: ConnectAttempt) -> AuthExchange:
        """Begin nothing."""
        raise NotImplementedError


class Door(Plugin):
    """A plugin that answers for clients in both ways."""

    @dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
    class Config:
        """No key."""

    access = AccessControl()
    authenticators = (Gatekeeper(),)


class Gate(Door):
    """The plugin again, under another name."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with plugins: name -> object reference."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(plugins: Mapping[str, str]) -> None:
        folder = tmp_path / f"example{len(list(tmp_path.iterdir()))}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {folder.name[:8]}\nVersion: 1.0\n")
        lines = [f"{name} = {value}\n" for name, value in plugins.items()]
        (folder / "entry_points.txt").write_text("[penstock.plugins]\n" + "".join(lines))

    return install


@pytest.fixture
def example_plugins(install: Install) -> None:
    """Install the plugins of this file."""
    names = {
        "alarm": "Alarm",
        "bell": "Bell",
        "shelf": "Shelf",
        "door": "Door",
        "gate": "Gate",
        "meter": "Meter",
        "desk": "Desk",
    }
    install({name: f"{__name__}:{cls}" for name, cls in names.items()})


def load(text: str) -> LoadedPlugins:
    """Load the plugins of a policy text, with a clock that stands still."""
    return load_plugins(policy(text), clock=lambda: 42.0)


def policy(text: str) -> Policy:
    """Return a policy with these plugins."""
    return parse_policy(f"plugins: {text}", "policy.yaml")


def problems_of(text: str) -> list[tuple[str, str, str]]:
    """Return (path, read, allowed) of plugins that must be refused."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [(problem.path, problem.read, problem.allowed) for problem in caught.value.problems]


def test_no_plugins_leaves_the_broker_its_own_store() -> None:
    """Without plugins no store is named and nothing is gated."""
    loaded = load("{}")
    assert loaded.plugins == ()
    assert loaded.gate is None
    assert loaded.payload_store is None


@pytest.mark.usefixtures("example_plugins")
def test_plugins_are_made_in_the_order_of_the_file() -> None:
    """Each plugin gets its checked configuration, a logger, the file and the clock."""
    loaded = load("{shelf: , alarm: {level: 2}}")
    shelf, alarm = loaded.plugins
    assert isinstance(shelf, Shelf)
    assert isinstance(alarm, Alarm)
    assert alarm.config == Alarm.Config(level=2)
    assert alarm.context.logger is logging.getLogger("penstock.alarm")
    assert alarm.context.policy_file == "policy.yaml"
    assert alarm.context.clock() == 42.0
    assert loaded.gate is alarm.gate
    assert loaded.sinks == tuple(alarm.sinks)
    assert loaded.payload_store is Shelf.payload_store


@pytest.mark.usefixtures("example_plugins")
def test_a_plugin_may_stand_at_the_top_of_the_file() -> None:
    """Its keys are named so in errors, and each plugin has one place."""
    found = parse_policy("{meter: {level: 3}, plugins: {shelf: }}", "policy.yaml")
    loaded = load_plugins(found)
    assert loaded.names == ("meter", "shelf")
    assert loaded.values()["meter", "level"] == 3

    def refused(text: str) -> list[tuple[str, str, str]]:
        with pytest.raises(ConfigError) as caught:
            load_plugins(parse_policy(text, "policy.yaml"))
        return [(each.path, each.read, each.allowed) for each in caught.value.problems]

    assert refused("{plugins: {meter: }}") == [("plugins.meter", "a plugin in this place", "meter")]
    told = [("alarm", "a plugin in this place", "plugins.alarm")]
    assert refused("{alarm: , plugins: {}}") == told
    assert refused("{meter: {levle: 1}, plugins: {}}")[0][0] == "meter.levle"
    told = [("plugins.meter", "the same plugin again", "each plugin once")]
    assert refused("{meter: , plugins: {meter: }}") == told
    assert refused("{meter: 3, plugins: {}}") == [
        ("meter", "3", "a mapping of the plugin's keys, or nothing")
    ]
    assert refused("{metre: , plugins: {}}")[0][:2] == ("metre", "an unknown key")


@pytest.mark.usefixtures("example_plugins")
async def test_a_plugin_at_the_top_is_reloaded_there() -> None:
    """And one that comes or goes is named so."""
    loaded = load_plugins(parse_policy("{meter: , plugins: {}}", "policy.yaml"))
    found = await loaded.reload(parse_policy("{meter: {level: 5}, plugins: {}}", "f"), ())
    assert found.values["meter", "level"] == 5
    found = await loaded.reload(parse_policy("{meter: {level: x}, plugins: {desk: }}", "f"), ())
    assert list(found.failed) == ["meter.level"]
    assert "read 'x'" in found.failed["meter.level"]
    assert found.values["plugins", "desk"] == "a plugin"
    loaded = load_plugins(parse_policy("plugins: {}", "policy.yaml"))
    found = await loaded.reload(parse_policy("{meter: , plugins: {}}", "f"), ())
    assert found.values == {("meter",): "a plugin"}


@pytest.mark.usefixtures("example_plugins")
async def test_one_of_several_processes_has_what_a_machine_has_once() -> None:
    """The others do not miss it at a reload; where a file is checked, all plugins are made."""
    found = parse_policy("{meter: {level: 3}, plugins: {desk: }}", "policy.yaml")
    assert processes_per_machine(found) == 3
    assert processes_per_machine(policy("{alarm: {level: 3}}")) == 1
    assert processes_per_machine(parse_policy("{meter: {level: x}, plugins: {}}", "f")) == 1
    for worker in (None, Worker(1, 3)):
        loaded = load_plugins(found, worker=worker)
        assert loaded.names == ("meter", "desk")
        assert {plugin.context.worker for plugin in loaded.plugins} == {Worker(1, 3)}
    loaded = load_plugins(found, worker=Worker(2, 3))
    assert loaded.names == ("meter",)
    assert ("plugins", "desk") not in (await loaded.reload(found, ())).values


def _brings(**extensions: Any) -> type[Plugin]:
    """Return a plugin that brings these."""
    return type("Bringing", (Shelf,), {"payload_store": None, **extensions})


class Slow(DeliveryGate):
    """A gate that wants to wait."""

    async def decide(self, *_: Any) -> Any:  # type: ignore[override]
        """Wait, which a gate must not."""


class Narrow(LinkSampler):
    """A sampler that was written without looking at the contract."""

    def sample(self, link: Any) -> bool:  # type: ignore[override]
        """Take too little."""
        return bool(link)


class Misspelt(AccessControl):
    """Access control of which nobody would ever be asked."""

    def authorise(self, session: Any, topic: str, action: Any) -> bool:
        """Have a name of another country."""
        return bool(session and topic and action)


class Nameless(MessageSink):
    """A sink without what every sink has."""

    def accept(self, message: Message, receipt: Receipt | None) -> None:
        """Take nothing."""


class Anything(Sink):
    """A sink whose one topic filter is a sequence of short ones, `#` among them."""

    topic_filters = "a/#"  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__("anything")


class OfOneSize(Sink):
    """A sink of a size class that there is not."""

    sizes = "medium"  # type: ignore[assignment]


async def on_connected(event: object) -> None:
    """Want to wait, which a callback must not."""


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        (_brings(gate=Slow()), "Slow.decide: read an asynchronous function; allowed: a plain one"),
        (
            _brings(sampler=Narrow()),
            "Narrow.sample: read a method that takes (link: 'Any') -> 'bool'; allowed: a method ",
        ),
        (
            _brings(access=Misspelt()),
            "Misspelt.authorise: read a name that AccessControl does not have (perhaps authorize)",
        ),
        (_brings(sinks=[Nameless()]), "Nameless.name: read nothing; allowed: str"),
        (
            _brings(payload_store=Sink("s")),
            "Sink: read an object that is no PayloadStore; allowed: a subclass of penstock.broker",
        ),
        (_brings(samplers=()), "Bringing.samplers: read a name that Plugin does not have (perhaps"),
        (
            _brings(start=lambda _self: None),
            "Bringing.start: read a plain function; allowed: async",
        ),
        (
            _brings(callbacks=Callbacks(client_connected=(on_connected,))),  # type: ignore[arg-type]
            "on_connected, a callback of client_connected: read an asynchronous function; allowed:",
        ),
        (
            _brings(callbacks=Callbacks(client_connected=print)),  # type: ignore[arg-type]
            "Callbacks.client_connected: read <built-in function print>; allowed: a tuple or list ",
        ),
        (_brings(sinks=Sink("s")), "Bringing.sinks: read <"),
        (_brings(sinks=None), "Bringing.sinks: read null; allowed: a tuple or list of MessageSink"),
        (_brings(sources=None), "Bringing.sources: read null; allowed: a tuple or list of Message"),
        (_brings(authenticators=Gatekeeper()), "Bringing.authenticators: read <"),
        (
            _brings(sinks=[Anything()]),
            "Anything.topic_filters: read 'a/#'; allowed: a tuple or list of topic filters",
        ),
        (
            _brings(sinks=[OfOneSize("medium")]),
            "OfOneSize.sizes: read 'medium'; allowed: 'small', 'large' or None",
        ),
    ],
)
def test_an_extension_that_breaks_its_contract_is_a_load_error(
    plugin: type[Plugin], told: str, monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    """The line names the method or attribute, what was read and what is allowed."""
    monkeypatch.setattr(sys.modules[__name__], "Bringing", plugin, raising=False)
    install({"bad": f"{__name__}:Bringing"})
    with pytest.raises(PluginLoadError) as caught:
        load("{bad: }")
    assert str(caught.value).startswith(f"plugin bad: {told}")


def test_a_constructor_need_not_call_that_of_the_base_class(install: Install) -> None:
    """The loader sets what it would have set."""
    install({"bare": f"{__name__}:Bare"})
    (plugin,) = load("{bare: }").plugins
    assert isinstance(plugin, Bare)
    assert (plugin.config, plugin.context) == plugin.made_of


@pytest.mark.usefixtures("example_plugins")
def test_unknown_plugin_and_wrong_keys_are_told_together() -> None:
    """An unknown name lists the known ones, a wrong key its place."""
    unknown, wrong = problems_of("{alram: , alarm: {levle: 1}}")
    assert unknown[:2] == ("plugins.alram", "an unknown plugin")
    assert "(perhaps alarm)" in unknown[2]
    assert "shelf" in unknown[2]
    assert wrong == ("plugins.alarm.levle", "an unknown key", "one of level, sink (perhaps level)")


@pytest.mark.usefixtures("example_plugins")
def test_second_gate_is_refused() -> None:
    """Two plugins that both gate deliveries cannot be on together."""
    assert problems_of("{bell: {sink: bells}, alarm: }") == [
        ("plugins.alarm", "a second delivery gate beside that of bell", "one delivery gate")
    ]


@pytest.mark.parametrize(
    ("plugins", "is_told"),
    [
        ("{withholding: {}}", True),
        ("{withholding: {}, probing: {}}", False),
        ("{probing: {}}", False),
    ],
)
def test_a_gate_that_will_know_of_no_rtt_is_told(
    plugins: str, *, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One that decides by it would let every message go without a word."""
    load(plugins)
    told = "policy.yaml: no plugin under plugins finds out RTTs: where withholding decides by"
    assert [message.startswith(told) for message in caplog.messages] == [True] * is_told


@pytest.mark.parametrize(
    ("plugins", "probe_period"),
    [
        ("{withholding: {}, probing: {probe_period: 6}}", 6.0),
        ("{probing: {probe_period: 0.5}, withholding: {}}", 0.5),
        ("{withholding: {}}", 1.0),
    ],
)
def test_a_gate_is_told_how_often_subscribers_are_looked_at(
    plugins: str, probe_period: float
) -> None:
    """T_Q is said once, where the looking is done, wherever that stands in the file."""
    gate = load(plugins).gate
    assert gate is not None
    assert gate.probe_period == probe_period


@pytest.mark.usefixtures("example_plugins")
def test_second_sink_of_a_name_is_refused() -> None:
    """The names of sinks are unique, whoever brings them."""
    paths = {(path, read) for path, read, _ in problems_of("{bell: , alarm: }")}
    assert ("plugins.alarm", "a second sink named alarms beside that of bell") in paths


@pytest.mark.usefixtures("example_plugins")
def test_several_plugins_may_answer_for_clients() -> None:
    """All of their access control counts; `penstock.broker.sessions.access` combines it."""
    loaded = load("{shelf: {}, door: {}}")
    assert loaded.access == (Door.access,)
    assert [offered.method for offered in loaded.authenticators] == ["KNOCK"]


@pytest.mark.usefixtures("example_plugins")
def test_second_authentication_method_of_a_name_is_refused() -> None:
    """The broker would not know which of them a client means."""
    assert problems_of("{door: {}, gate: {}}") == [
        (
            "plugins.gate",
            "a second authentication method KNOCK beside that of door",
            "one authentication method KNOCK",
        )
    ]


@pytest.mark.usefixtures("example_plugins")
def test_plugin_that_fails_when_made_is_named() -> None:
    """An error of a plugin's own names the plugin instead of showing a traceback."""
    with pytest.raises(
        PluginLoadError,
        match=r"plugin alarm: OSError: no luck \(test_plugin_loader.py, line \d+\)$",
    ):
        load("{alarm: {level: 13}}")


class Cellar(Shelf):
    """A plugin that cannot start."""

    async def start(self) -> None:
        """Raise an error that `Plugin.start` does not document."""
        raise KeyError("lamp")


class Locked(Shelf):
    """A plugin that says why it cannot start."""

    async def start(self) -> None:
        """Raise the error that `Plugin.start` documents."""
        raise PluginLoadError("the cellar is locked")


async def test_a_plugin_that_fails_at_its_start_is_named(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name, the error and the line; the traceback stands in the log at DEBUG alone."""
    install({"cellar": f"{__name__}:Cellar"})
    caplog.set_level(logging.DEBUG)
    with pytest.raises(
        PluginLoadError,
        match=r"^plugin cellar: start: KeyError: 'lamp' \(test_plugin_loader.py, line \d+\)$",
    ):
        await load("{cellar: }").start()
    (record,) = [record for record in caplog.records if record.exc_info is not None]
    assert (record.name, record.levelno) == ("penstock.cellar", logging.DEBUG)


async def test_a_plugin_that_says_why_it_cannot_start_is_quoted(install: Install) -> None:
    """A `PenstockError` is for the user as it is."""
    install({"locked": f"{__name__}:Locked"})
    with pytest.raises(PluginLoadError, match=r"^the cellar is locked$"):
        await load("{locked: }").start()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("no_such_module:X", "No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "NoSuchClass"),
        (f"{__name__}:Sink", "a subclass of penstock.broker.extensions.Plugin"),
        ("plugin_with_a_fault:X", "KeyError: 'level' (plugin_with_a_fault.py, line 2)"),
        ("plugin_with_bad_syntax:X", "SyntaxError: invalid syntax (plugin_with_bad_syntax.py, "),
    ],
)
def test_plugin_that_cannot_be_brought_in_is_named(
    install: Install, tmp_path: Path, value: str, expected: str
) -> None:
    """A broken entry point says which plugin, where it points and what is wrong."""
    (tmp_path / "plugin_with_a_fault.py").write_text("levels = {}\nlevels['level']\n")
    (tmp_path / "plugin_with_bad_syntax.py").write_text("class X(:\n")
    install({"broken": value})
    with pytest.raises(PluginLoadError, match="plugin broken") as caught:
        load("{broken: }")
    assert value in str(caught.value)
    assert expected in str(caught.value)


def test_name_that_two_distributions_offer_is_refused(install: Install) -> None:
    """One short name means one plugin, never the first one found."""
    install({"alarm": f"{__name__}:Alarm"})
    install({"alarm": f"{__name__}:Bell"})
    with pytest.raises(PluginLoadError, match="plugin alarm: installed twice"):
        load("{alarm: }")


def test_own_plugins_are_offered() -> None:
    """The distribution offers its plugins under their short names."""
    offered = entry_points(group="penstock.plugins").names
    assert {"withholding", "probing", "queue"} <= set(offered)


def test_loading_plugins_imports_no_amqtt() -> None:
    """A policy without aMQTT plugins does not pay for aMQTT."""
    program = (
        "import sys; from penstock.broker.config.policy import parse_policy; "
        "from penstock.broker.plugin_loader import load_plugins; "
        "load_plugins(parse_policy('plugins: {}', 'p')); "
        "sys.exit('amqtt' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
