from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from amqtt.broker import BrokerContext
from amqtt.contexts import BrokerConfig
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin
from amqtt.plugins.manager import PluginManager, get_plugin_manager

from penstock.broker.amqtt_host.loading import HostedPluginManager, load_manager
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import Plugin
from tests.broker.amqtt_host.hosting import ACL, ANONYMOUS, FILE, Recorder, named, policy_of


class Mode(StrEnum):
    """An enumeration, as aMQTT's plugins have them."""

    FAST = "fast"
    SAFE = "safe"


class Configured(BasePlugin[BrokerContext]):
    """A plugin with a configuration, as aMQTT's documentation has it."""

    @dataclass
    class Config:
        """Two keys."""

        option1: int
        option_two: str = "default"
        mode: Mode = Mode.FAST


class FailsToStart(BasePlugin[BrokerContext]):
    """Cannot be made."""

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        raise OSError("no such device")


class NoCoroutine(BasePlugin[BrokerContext]):
    """Has a handler that aMQTT refuses."""

    def on_broker_pre_start(self) -> None:
        """Do nothing."""


class PlainAuthenticate(BaseAuthPlugin):
    """Authenticates with a method that aMQTT refuses."""

    def authenticate(self, *, session: Any) -> bool:  # type: ignore[override]
        """Refuse."""
        return session is None


class NoPlugin:
    """Is something else."""


class Own(Plugin):
    """A plugin of Penstock's interface that no distribution offers under a short name."""


PROBING = "penstock.plugins.probing.sampler.ProbingPlugin"


def load(plugins: dict[str, Any] | None, **keys: Any) -> HostedPluginManager:
    """Load plugins without a broker behind them."""
    return load_manager(policy_of(plugins, **keys), object())


def problem_of(plugins: dict[str, Any]) -> tuple[str, str, str]:
    """Return (path, read, allowed) of plugins that cannot be loaded."""
    with pytest.raises(ConfigError) as caught:
        load(plugins)
    assert caught.value.file == "policy.yaml"
    (problem,) = caught.value.problems
    return problem.path, problem.read, problem.allowed


async def test_plugins_are_loaded_by_amqtts_manager() -> None:
    """Plugins have aMQTT's context, their own configuration and aMQTT's loggers."""
    manager = load({named(Configured): {"option1": 5}, ANONYMOUS: None})
    assert isinstance(manager, PluginManager)
    configured, anonymous = manager.plugins
    assert isinstance(configured, Configured)
    assert configured.config == Configured.Config(option1=5)
    assert isinstance(configured.context, BrokerContext)
    assert configured.context.logger.name == "amqtt.broker.plugins.Configured"
    assert manager.auth_plugins == [anonymous]
    assert manager.topic_plugins == []
    assert isinstance(manager.app_context.config, BrokerConfig)


async def test_default_plugins_without_a_plugins_key() -> None:
    """A file without `plugins` gets the list that aMQTT would take."""
    names = [type(plugin).__name__ for plugin in load(None).plugins]
    assert names == [
        "EventLoggerPlugin",
        "PacketLoggerPlugin",
        "AnonymousAuthPlugin",
        "BrokerSysPlugin",
    ]


async def test_keys_with_dashes_as_in_amqtts_documentation() -> None:
    """A plugin's keys may be written with dashes."""
    manager = load({named(Configured): {"option1": 5, "option-two": "x"}})
    (plugin,) = manager.plugins
    assert isinstance(plugin, Configured)
    assert plugin.config == Configured.Config(option1=5, option_two="x")


async def test_a_text_stands_for_a_value_of_an_enumeration() -> None:
    """As YAML has none; another text is refused with those that are allowed."""
    (plugin,) = load({named(Configured): {"option1": 5, "mode": "safe"}}).plugins
    assert isinstance(plugin, Configured)
    assert plugin.config.mode is Mode.SAFE
    with pytest.raises(ConfigError, match="mode: read 'slow'; allowed: fast, safe"):
        load({named(Configured): {"option1": 5, "mode": "slow"}})


async def test_deprecated_sections_take_plugins_from_entry_points(tmp_path: Path) -> None:
    """The `auth` and `topic-check` sections choose among aMQTT's entry points."""
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    sections: dict[str, Any] = {
        "auth": {"plugins": ["auth_anonymous"], "password-file": str(passwords)},
        "topic-check": {"enabled": True, "plugins": ["topic_taboo"]},
    }
    manager = load(None, **sections)
    assert [type(plugin) for plugin in manager.auth_plugins] == [AnonymousAuthPlugin]
    assert [type(plugin).__name__ for plugin in manager.topic_plugins] == ["TopicTabooPlugin"]
    assert len(manager.plugins) == 7
    sections["topic-check"]["enabled"] = False
    assert load(None, **sections).topic_plugins == []


async def test_each_broker_has_a_manager_of_its_own() -> None:
    """Two brokers of one process do not share plugins, and what has ended is forgotten."""
    one, other = load({ANONYMOUS: None}), load({ANONYMOUS: None})
    assert get_plugin_manager(one.namespace) is one
    assert get_plugin_manager(other.namespace) is other
    one.forget()
    assert get_plugin_manager(one.namespace) is None
    assert get_plugin_manager(other.namespace) is other


async def test_loading_warns_of_nothing_the_user_can_change(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """What aMQTT has to say of its own future is not shown."""
    load({ACL: {"acl": {"u": ["a"]}}})
    assert not recwarn.list


@pytest.mark.parametrize(
    ("plugin", "config", "path", "read", "allowed"),
    [
        (named(Configured), {"option1": 1, "option2": 2}, ".option2", "unknown key", "option_two"),
        (named(Configured), {"option1": "x"}, ".option1", "'x'", "int"),
        (named(Configured), {}, ".option1", "nothing", "a value"),
        (FILE, {"password_file": "/no/such/file"}, "", "'/no/such/file' not found", "start with"),
        (FILE, {"password_file": 5}, ".password_file", "5", "str"),
        (named(FailsToStart), {}, "", "OSError: no such device", "start with"),
        ("no.such.Plugin", {}, "", "No module named 'no'", "dotted path"),
        (f"{__name__}.Missing", {}, "", 'does not define a "Missing"', "dotted path"),
        (named(NoPlugin), {}, "", "is not a subclass of 'BasePlugin'", "aMQTT can load"),
        (PROBING, {}, "", "a plugin of Penstock, not of aMQTT", "its short name: probing"),
        (named(Own), {}, "", "a plugin of Penstock", "entry point of the group penstock.plugins"),
    ],
)
async def test_plugin_that_cannot_be_loaded_is_named(
    plugin: str, config: dict[str, Any], path: str, read: str, allowed: str
) -> None:
    """What is wrong is told by its place in the policy file, with what is allowed there."""
    problem = problem_of({plugin: config})
    assert problem[0] == f"plugins.{plugin}{path}"
    assert read in problem[1]
    assert allowed in problem[2]


@pytest.mark.parametrize("cls", [NoCoroutine, PlainAuthenticate])
async def test_method_that_is_no_coroutine_is_refused(cls: type[Any]) -> None:
    """What aMQTT refuses is refused here, with the plugin's name."""
    path, read, _ = problem_of({named(cls): None})
    assert path == "plugins"
    assert cls.__name__ in read


async def test_level_of_amqtts_logger_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Loggers keep aMQTT's names, so that a user's logging configuration goes on working."""
    with caplog.at_level(logging.DEBUG, logger="amqtt.broker.plugins"):
        manager = load({named(Recorder): None})
        assert manager.plugins[0].context.logger.isEnabledFor(logging.DEBUG)
    assert "handler found for 'Recorder'" in caplog.text
