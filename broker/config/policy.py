"""The policy file: aMQTT's keys and ours, checked whole before any socket opens.

What aMQTT 0.12 reads keeps its name and meaning, with dashes or underscores in keys, so that
its file needs no change. Ours beside it are `limits`, `mqtt`, `persistence` and the plugins with
a short name, which stand under `plugins` or, where a plugin has it so, at the top (`plugin_loader`
knows which). A listener takes each key it does not set itself from the listener named `default`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.changes import KeyPath, flatten
from penstock.broker.config.checked_yaml import (
    FileReading,
    join,
    parse_mapping,
    read_mapping,
    show,
)
from penstock.broker.config.key_types import STRICT, Size
from penstock.broker.config.limits import Limits
from penstock.broker.config.listener_config import (
    SOCKET_KEYS,
    Listener,
    ListenerKeys,
    amqtt_keys,
    read_listeners,
)
from penstock.broker.config.log_options import LogOptions
from penstock.broker.config.mqtt_options import MqttOptions
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import ENTRY_POINT_GROUP
from penstock.broker.message import SizeClass

DEFAULT_SYS_INTERVAL = 10.0
"""Seconds; mosquitto has the same, so that its dashboards show the same."""

T = TypeVar("T")


AMQTT_PERSISTENCE: Final = {"amqtt.contrib.persistence.SessionDBPlugin"}
"""These plugins restore sessions themselves, and refuse to start where they find some."""


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class Persistence:
    """The storage of sessions, messages and wills on the disk; the keys under `persistence`.

    Attributes:
        path: file of the database.
        durability: ``memory``: nothing is written. ``normal``: what is acknowledged survives the
            end of the process, however it ends; ``full``: a power cut, too.
        commit_wait_seconds: how long at most a change waits for others to its commit, unless a
            client waits for the commit, as at QoS 2; without a waiting client 0.05 s longer. What
            is delivered and acknowledged within it is never written.
        max_pending_messages: messages that may wait for their commit. At half of it publishers are
            slowed down, above it refused.
        max_pending_bytes: payload bytes that may wait for their commit.
    """

    path: Annotated[str, Field(min_length=1)] = "penstock-sessions.db"
    durability: Literal["memory", "normal", "full"] = "full"
    commit_wait_seconds: Annotated[float, Field(ge=0, le=1)] = 0.002
    max_pending_messages: Annotated[int, Field(ge=1)] = 100_000
    max_pending_bytes: Annotated[Size, Field(ge=1)] = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file.

    Attributes:
        file: the file's name, as the user gave it.
        listeners: the listeners by name, in the order of the file; at least one.
        limits: limits on what clients may use.
        mqtt: features of MQTT that the broker offers.
        plugins: short name of a plugin to its keys, in the order of the file; first those at its
            top.
        sections: the plugins whose names stand at the top.
        amqtt: the argument of aMQTT's `BrokerConfig.from_dict`, or None where the file names no
            aMQTT plugin.
        timeout_disconnect_delay: seconds added to the keep-alive a client asks for.
        session_expiry_interval: seconds after which a disconnected session ends, whatever the
            client asked for; None for no such bound.
        sys_interval: seconds between two publications of `$SYS`; 0 for none.
        persistence: settings of the database, or None where nothing outlives the process.
        log: settings of the log.
        document: the keys of the file as they were read.
    """

    file: str
    listeners: Mapping[str, Listener]
    limits: Limits
    mqtt: MqttOptions
    plugins: Mapping[str, Mapping[str, Any]]
    sections: Collection[str]
    amqtt: Mapping[str, Any] | None
    timeout_disconnect_delay: int
    session_expiry_interval: int | None
    sys_interval: float
    persistence: Persistence | None
    log: LogOptions
    document: Mapping[str, Any]

    def sizes_by_listener(self) -> dict[str, SizeClass]:
        """Return the size class that the clients of a listener subscribe to, by its name."""
        return {
            name: listener.sizes
            for name, listener in self.listeners.items()
            if listener.sizes is not None
        }

    def values(self) -> dict[KeyPath, Any]:
        """Return the keys of the file, without those of its plugins with a short name."""
        flat: dict[KeyPath, Any] = {}
        for key in _SECTIONS:
            flat |= flatten(getattr(self, key), (key,))
        flat |= {("listeners", name): True for name in self.listeners}
        if self.persistence is not None:
            flat["persistence",] = True
        for key in ("plugins", "auth", "topic_check"):
            flat |= flatten((self.amqtt or {}).get(key), (key,))
        return flat


_SECTIONS: Final = (
    "listeners",
    "limits",
    "mqtt",
    "timeout_disconnect_delay",
    "session_expiry_interval",
    "sys_interval",
    "persistence",
    "log",
)

LIVE: Final[Mapping[KeyPath, bool]] = {
    ("listeners",): True,
    **{("listeners", "*", key): False for key in SOCKET_KEYS},
    ("limits",): True,
    ("limits", "plugin_events"): False,
    ("mqtt",): True,
    # A client that was told a number may use as many.
    ("mqtt", "topic_alias_maximum"): False,
    ("timeout_disconnect_delay",): True,
    ("session_expiry_interval",): True,
    ("sys_interval",): True,
    ("log",): True,
}
"""Which keys of the policy file change live; plugins say it of their own."""


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class PolicyKeys:
    """The keys at the top of a policy file: those of aMQTT 0.12, `BrokerConfig`, and ours.

    Attributes:
        listeners: name of a listener to its keys; those that it lacks are the ones of ``default``.
        limits: limits on what clients may use.
        mqtt: features of MQTT that are offered.
        plugins: short name of a plugin, or dotted name of an aMQTT plugin, to its keys; or aMQTT's
            list.
        auth: older form of aMQTT's plugin settings.
        topic_check: older form of aMQTT's plugin settings.
        sys_interval: seconds between publications of ``$SYS``; 0 for none. None: 10.
        timeout_disconnect_delay: seconds added to a client's Keep Alive. None: 0.
        session_expiry_interval: seconds that a session may outlive its connection. None: as its
            client asks.
        persistence: storage by which sessions, retained messages and wills outlive the process.
        log: the program's log.
    """

    listeners: dict[str, dict[str, Any] | None] | None = None
    limits: dict[str, Any] | None = None
    mqtt: dict[str, Any] | None = None
    plugins: dict[str, Any] | list[str | dict[str, Any]] | None = None
    auth: dict[str, Any] | None = None
    topic_check: dict[str, Any] | None = None
    sys_interval: Annotated[float, Field(ge=0)] | None = None
    timeout_disconnect_delay: Annotated[int, Field(ge=0)] | None = None
    session_expiry_interval: Annotated[int, Field(ge=0)] | None = None
    persistence: dict[str, Any] | None = None
    log: dict[str, Any] | None = None


def load_policy(path: str | Path, *, may_be_empty: bool = True) -> Policy:
    """Read and check a policy file.

    Args:
        path: of the file.
        may_be_empty: an empty file is the policy of defaults. At a reload it is refused, as
            somebody may be writing it: it would close the listeners that clients are connected to.

    Raises:
        ConfigError: with every wrong place that was found.
    """
    mapping = read_mapping(path)
    if not (mapping or may_be_empty):
        problem = ConfigProblem(
            "file", "nothing", "a key at least; an empty file for a start alone"
        )
        raise ConfigError(str(path), [problem])
    return parse_policy(mapping, str(path))


def parse_policy(document: str | Mapping[str, Any], file_name: str) -> Policy:
    """Check a policy given as YAML text or as a mapping."""
    mapping = parse_mapping(document, file_name) if isinstance(document, str) else document
    return _Reading(file_name).policy(mapping)


class _Reading(FileReading):
    """One pass over a policy file."""

    def policy(self, document: Mapping[str, Any]) -> Policy:
        top = self.underscored(document, "")
        sections = _sections(top)
        keys = self.checked(PolicyKeys, top, "")
        if keys is None:
            raise ConfigError(self.file, self.problems)
        listener_keys, listeners = read_listeners(keys.listeners or {"default": None}, self)
        limits = self._section(Limits, keys.limits or {}, "limits")
        mqtt = self._section(MqttOptions, keys.mqtt or {}, "mqtt")
        persistence = None
        if keys.persistence is not None:
            persistence = self._section(Persistence, keys.persistence, "persistence")
        elif "persistence" in top:
            # A section whose keys are all comments: to keep nothing then would be a bad surprise.
            self.wrong(
                "persistence", "nothing", "its keys, {} for their defaults, or no such section"
            )
        log = self._section(LogOptions, keys.log or {}, "log")
        short, dotted = self._plugins(sections, keys)
        if persistence is not None and persistence.durability != "memory":
            for name in AMQTT_PERSISTENCE & dotted.keys():
                self.wrong("persistence", f"{name} beside it", "one of the two")
        if self.problems or limits is None or mqtt is None or log is None:
            raise ConfigError(self.file, self.problems)
        sys_interval = keys.sys_interval
        return Policy(
            file=self.file,
            listeners=listeners,
            limits=limits,
            mqtt=mqtt,
            plugins=short,
            sections=sections,
            amqtt=_amqtt_config(document, keys, listener_keys, dotted),
            timeout_disconnect_delay=keys.timeout_disconnect_delay or 0,
            session_expiry_interval=keys.session_expiry_interval,
            sys_interval=DEFAULT_SYS_INTERVAL if sys_interval is None else sys_interval,
            persistence=persistence,
            log=log,
            document=document,
        )

    def _section(self, cls: type[T], mapping: Mapping[str, Any], name: str) -> T | None:
        return self.checked(cls, self.underscored(mapping, name), name)

    def _plugins(
        self, sections: Mapping[str, Any], keys: PolicyKeys
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]]:
        """Return the plugins with a short name and those with a dotted one."""
        short: dict[str, Mapping[str, Any]] = {}
        dotted: dict[str, Mapping[str, Any]] = {}
        listed = keys.plugins if isinstance(keys.plugins, list) else [keys.plugins or {}]
        places = [("", sections), *(("plugins", entry) for entry in listed)]
        for place, entry in places:
            for name, own in ({entry: None} if isinstance(entry, str) else entry).items():
                path = join(place, name)
                plugins = dotted if "." in name else short
                if name in plugins:
                    self.wrong(path, "the same plugin again", "each plugin once")
                elif own is not None and not isinstance(own, dict):
                    self.wrong(path, show(own), "a mapping of the plugin's keys, or nothing")
                else:
                    plugins[name] = own or {}
        return short, dotted


def _sections(top: dict[str, Any]) -> dict[str, Any]:
    """Take what has the name of an installed plugin from the top level, and return it."""
    unknown = top.keys() - {key.name for key in fields(PolicyKeys)}
    offered = {one.name for one in entry_points(group=ENTRY_POINT_GROUP)} if unknown else set()
    return {name: top.pop(name) for name in list(top) if name in unknown & offered}


def _amqtt_config(
    document: Mapping[str, Any],
    keys: PolicyKeys,
    listeners: Mapping[str, ListenerKeys],
    dotted: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return the file as aMQTT would read it, without what is ours.

    With neither `plugins` nor `auth` aMQTT brings its default plugins. With an `auth` section
    and no aMQTT plugin under `plugins` it takes them from entry points, which it calls
    deprecated.
    """
    has_sections = keys.auth is not None or keys.topic_check is not None
    if "plugins" in document and not dotted and not has_sections:
        return None
    config: dict[str, Any] = {
        "listeners": {"default": {"bind": None}}
        | {name: amqtt_keys(own) for name, own in listeners.items()},
        "timeout_disconnect_delay": keys.timeout_disconnect_delay or 0,
        "session_expiry_interval": keys.session_expiry_interval,
    }
    for section in ("auth", "topic_check"):
        if getattr(keys, section) is not None:
            config[section] = getattr(keys, section)
    if keys.sys_interval is not None:
        config["sys_interval"] = int(keys.sys_interval)
    if dotted:
        config["plugins"] = {name: dict(own) for name, own in dotted.items()}
    elif "plugins" in document:
        config["plugins"] = None
    return config
