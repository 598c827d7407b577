"""Loads aMQTT's plugins from the policy file, by aMQTT's own `PluginManager`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import entry_points
from typing import Any, Final, TypeGuard, get_type_hints

from amqtt.broker import BrokerContext
from amqtt.contexts import BrokerConfig
from amqtt.errors import PluginError, PluginImportError, PluginInitError, PluginLoadError
from amqtt.plugins import manager
from amqtt.utils import import_string
from dacite.exceptions import (
    DaciteError,
    DaciteFieldError,
    MissingValueError,
    UnexpectedDataError,
    WrongTypeError,
)

from penstock.broker.config.checked_yaml import show, suggest
from penstock.broker.config.policy import Policy
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import ENTRY_POINT_GROUP, Plugin

NAMESPACE: Final = "amqtt.broker.plugins"
"""aMQTT's name for its broker's loggers and its group of entry points."""

_numbers = itertools.count(1)


class HostedPluginManager(manager.PluginManager[BrokerContext]):
    """aMQTT's manager, with errors in terms of the policy file.

    aMQTT keeps its managers in a table by namespace. Each manager here has a namespace of its own,
    while loggers and entry points keep aMQTT's names.
    """

    def __init__(self, file: str, context: BrokerContext) -> None:
        self._file = file
        self.namespace = f"{NAMESPACE}.{next(_numbers)}"
        super().__init__(self.namespace, context, asyncio.get_running_loop())

    @property
    def auth_plugins(self) -> list[Any]:
        """The plugins that are asked whether a client may connect."""
        return self._auth_plugins

    @property
    def topic_plugins(self) -> list[Any]:
        """The plugins that are asked what a client may do with a topic."""
        return self._topic_plugins if self.is_topic_filtering_enabled() else []

    def forget(self) -> None:
        """Remove the manager from aMQTT's table."""
        manager.plugins_manager.pop(self.namespace, None)

    def _load_plugins(self, namespace: str | None = None) -> None:  # noqa: ARG002 (see class)
        self.logger = logging.getLogger(NAMESPACE)
        super()._load_plugins(NAMESPACE)

    def _load_str_plugin(self, plugin_path: str, plugin_cfg: dict[str, Any] | None = None) -> Any:
        path = f"plugins.{plugin_path}"
        try:
            return super()._load_str_plugin(
                plugin_path, _as_config_has_it(plugin_path, plugin_cfg or {})
            )
        except Exception as error:
            problems = _problems(path, plugin_path, error)
            raise ConfigError(self._file, problems) from error


def load_manager(policy: Policy, broker: Any) -> HostedPluginManager:
    """Load the aMQTT plugins of a policy; the event loop must be running.

    Raises:
        ConfigError: a plugin cannot be found, refuses its configuration, or fails.
    """
    with warnings.catch_warnings():
        # aMQTT warns of deprecations that the user of this broker cannot change.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = BrokerContext(broker)
        try:
            context.config = BrokerConfig.from_dict(dict(policy.amqtt or {}))
            return HostedPluginManager(policy.file, context)
        except (PluginError, PluginLoadError, DaciteError, ValueError) as error:
            problem = ConfigProblem("plugins", _causes(error), "plugins that aMQTT can load")
            raise ConfigError(policy.file, [problem]) from error


def _as_config_has_it(plugin_path: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plugin's keys and values as its Config has them.

    aMQTT's documentation also has keys with dashes. A YAML file has no enumerations, such as that
    of `request_method`: a text that is one of their values stands for it.
    """
    kinds = _config_kinds(plugin_path)
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = key.replace("-", "_")
        kind = kinds.get(name)
        values = {one.value: one for one in kind} if _is_enumeration(kind) else {}
        found[name if name in kinds else key] = (
            values.get(value, value) if isinstance(value, str) else value
        )
    return found


def _is_enumeration(kind: object) -> TypeGuard[type[Enum]]:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _config_kinds(plugin_path: str) -> dict[str, Any]:
    """Return the type of each key of a plugin's Config; none where that cannot be seen."""
    try:
        config = import_string(plugin_path).Config
        kinds = get_type_hints(config)
    except Exception:  # noqa: BLE001 (the manager reports what is wrong with it)
        return {}
    return {one.name: kinds[one.name] for one in fields(config)} if is_dataclass(config) else {}


def _penstock_plugin(path: str, plugin_path: str) -> ConfigProblem | None:
    """Return the problem of a dotted path to a plugin of Penstock's interface; None for others."""
    try:
        cls = import_string(plugin_path)
    except Exception:  # noqa: BLE001 (the manager has reported it)
        return None
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        return None
    points = entry_points(group=ENTRY_POINT_GROUP)
    names = [point.name for point in points if point.value.replace(":", ".") == plugin_path]
    allowed = (
        f"its short name: {names[0]}"
        if names
        else f"a short name, from an entry point of the group {ENTRY_POINT_GROUP}"
    )
    return ConfigProblem(path, "a plugin of Penstock, not of aMQTT", allowed)


def _problems(path: str, plugin_path: str, error: Exception) -> list[ConfigProblem]:
    own = _penstock_plugin(path, plugin_path)
    if own is not None:
        return [own]
    cause = error.__cause__
    if isinstance(cause, UnexpectedDataError):
        known = list(_config_kinds(plugin_path))
        return [
            ConfigProblem(f"{path}.{key}", "an unknown key", suggest(key, known))
            for key in sorted(cause.keys)
        ]
    if isinstance(cause, DaciteFieldError):
        place = f"{path}.{cause.field_path}"
        if isinstance(cause, MissingValueError):
            return [ConfigProblem(place, "nothing", "a value; this key has no default")]
        if isinstance(cause, WrongTypeError):
            kind = cause.field_type
            allowed = kind.__name__ if isinstance(kind, type) else str(kind)
            if _is_enumeration(kind):
                allowed = ", ".join(str(one.value) for one in kind)
            return [ConfigProblem(place, show(cause.value), allowed)]
    if isinstance(error, PluginImportError):
        allowed = "the dotted path of a plugin that can be imported"
        return [ConfigProblem(path, _causes(cause or error), allowed)]
    if isinstance(error, PluginInitError):
        return [ConfigProblem(path, _causes(cause or error), "a configuration it can start with")]
    return [ConfigProblem(path, _causes(error), "a plugin that aMQTT can load")]


def _causes(error: BaseException) -> str:
    """Return an error and its chain of causes on one line."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__)
        cause = cause.__cause__
    return ", from ".join(texts)
