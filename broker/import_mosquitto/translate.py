"""Translates directives of mosquitto to the keys of a policy file.

What cannot be carried over is noted. Where the policy would then admit or show more than mosquitto
did, access is closed instead: a listener that cannot be as strict is left out, and where a plugin
decided about clients, no client is let in until the operator decides again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.broker.config.listener_config import show_address
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.import_mosquitto.conf_file import Line, Settings
from penstock.broker.import_mosquitto.directives import (
    DIRECTIVES,
    NO_TLS_1_1,
    TLS_VERSIONS,
    Directive,
    Loosens,
    Place,
    canonical,
    find,
    is_number,
    is_secret,
    loosening,
    problem_of,
    value_of,
)
from penstock.broker.import_mosquitto.uplinks import CHECKS, Bridge, name_of, site_name

UNBOUNDED_MESSAGES: Final = 1_000_000_000
UNBOUNDED_BYTES: Final = 2**50
"""Penstock always has a limit; these stand for mosquitto's 0, no limit."""

INFLIGHT_MAXIMUM: Final = 65_535
"""A client has only so many Packet Identifiers, so no more messages can be inflight."""

MINIMUM_PACKET_SIZE: Final = 256
LARGEST_PACKET_SIZE: Final = 268_435_455

SESSIONS_FILE: Final = "penstock-sessions.db"

_HOUR: Final = 3_600
_DURATIONS: Final = {
    "s": 1,
    "h": _HOUR,
    "d": 24 * _HOUR,
    "w": 7 * 24 * _HOUR,
    "m": 30 * 24 * _HOUR,
    "y": 365 * 24 * _HOUR,
}

_DIRECTIVE: Final = re.compile("[A-Za-z0-9_.]{1,64}")

_TLS_NAMES: Final = ("cafile", "capath", "crlfile", "certfile", "keyfile", "ciphers")

_PERSIST_PLUGIN: Final = "mosquitto_persist_sqlite.so"
"""The file name of mosquitto's plugin that stores sessions; it decides nothing about clients."""

_FILE_PLUGINS: Final = {
    f"mosquitto_{key}.{ending}": key
    for key in ("password_file", "acl_file")
    for ending in ("so", "dll")
}
"""Plugins of mosquitto that do what a directive does: the directive, by their file names."""

_LOADS_PLUGIN: Final = frozenset({"plugin", "auth_plugin", "global_plugin", "plugin_load"})

_LISTENER_DEFAULTS: Final = {
    "protocol": "mqtt",
    "max_connections": "-1",
    "max_qos": "2",
    "require_certificate": "false",
    "use_identity_as_username": "false",
    "use_subject_as_username": "false",
    "use_username_as_clientid": "false",
}
"""With these values, a line above the first listener does not create a default listener in
mosquitto 2.0."""

_EVERY_ADDRESS: Final = {"ipv4": "0.0.0.0", "ipv6": "::"}  # noqa: S104 (as mosquitto has it)


class Note(NamedTuple):
    """Something that the policy does not do as mosquitto did.

    Attributes:
        text: why, and what comes nearest.
        more: further lines of the same file to which the text applies.
    """

    line: Line
    text: str
    more: tuple[Line, ...] = ()
    closed: Loosens = Loosens.NOTHING

    def __str__(self) -> str:
        """Return the note as text, without secrets; the caller puts the file's name before it."""
        text = self.text
        if self.closed is not Loosens.NOTHING:
            text = f"{self.closed.value}; {text}"
        if self.more:
            lines = (self.line, *self.more)
            names = ", ".join(dict.fromkeys(line.name for line in lines))
            return f"lines {_ranges([line.number for line in lines])}: {names}: {text}"
        value = "..." if is_secret(self.line.name) else self.line.value
        stands = f"{self.line.name} {value}".strip()
        return f"{self.line.place}: {stands}: {text}"


class Translation(NamedTuple):
    """A policy file and what it leaves out.

    Attributes:
        policy: the file's top level.
        passwords: name of an uplink to the line with its password, which its `password_file` is to
            have.
    """

    policy: dict[str, Any]
    notes: list[Note]
    passwords: dict[str, Line]


@dataclass(slots=True)
class _FilePlugin:
    """A plugin of mosquitto's that reads users or topics from a file.

    Attributes:
        key: ``password_file`` or ``acl_file``: its only option, which is a directive, too.
        option: the line that names the file; None where there is none.
    """

    key: str
    line: Line
    option: Line | None = None


@dataclass(slots=True)
class _Listener:
    """One listener of mosquitto's.

    Attributes:
        line: the line with ``listener``; None for the default listener.
        port: None where none is given.
        host: address, name or path of a Unix socket; None for all interfaces.
        origins: web sites whose pages may connect; empty for any.
    """

    line: Line | None
    port: int | None = None
    host: str | None = None
    set: Settings = field(default_factory=Settings)
    origins: list[str] = field(default_factory=list)
    plugins: list[_FilePlugin] = field(default_factory=list)

    @property
    def has_tls(self) -> bool:
        return "certfile" in self.set or "keyfile" in self.set

    @property
    def has_certificates(self) -> bool:
        """True if it learns clients' certificates, by TLS or from a load balancer."""
        return self.has_tls or self.set.text("enable_proxy_protocol") == "2"


def translate(lines: Iterable[Line], host: str) -> Translation:
    """Return the policy that does what a mosquitto.conf says.

    Raises:
        ConfigError: a directive is unknown or has a wrong value; names all such places of the first
            file that has any.
    """
    reading = _Reading()
    reading.read(lines)
    return reading.translation(host)


class _Reading:
    """Reads all lines, then translates what they say."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._problems: dict[str, list[ConfigProblem]] = {}
        self._set = Settings()
        self._default = _Listener(None)
        self._listeners: list[_Listener] = []
        self._bridges: list[Bridge] = []
        self._is_closed = False
        self._persists = False
        self._plugins: list[_FilePlugin] = []
        self._plugins_of_all: list[_FilePlugin] = []
        self._named_plugins: dict[str, _FilePlugin | None] = {}
        self._plugin: _FilePlugin | None = None

    # -- the lines ------------------------------------------------------------------------

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            directive = find(line.name)
            if directive is None:
                self._wrong_name(line)
                continue
            taken = line._replace(value=value_of(directive, line.value))
            allowed = problem_of(directive, taken.value)
            if allowed:
                self._wrong(line, line.value or "nothing", allowed)
                continue
            self._keep(taken, directive)
        for bridge in self._bridges:
            if "address" not in bridge.set:
                self._wrong(bridge.line, f"{bridge.name} without address", "an address below it")
        for plugin in self._plugins:
            if plugin.option is None and plugin.key == "password_file":
                allowed = f"plugin_opt_{plugin.key} with a file below it"
                self._wrong(plugin.line, plugin.line.value, allowed)
        self._give_up()

    def _wrong_name(self, line: Line) -> None:
        """Note an unknown directive.

        Raises:
            ConfigError: the line is of another kind of file, which may have secrets.
        """
        if not _DIRECTIVE.fullmatch(line.name):
            allowed = "a directive of mosquitto.conf(5), such as listener or password_file"
            read = "a line of another kind of file, which is not shown"
            raise ConfigError(line.file, [ConfigProblem(line.place, read, allowed)])
        near = difflib.get_close_matches(line.name, DIRECTIVES, n=1)
        allowed = f"a directive of mosquitto.conf(5){f' (perhaps {near[0]})' if near else ''}"
        self._wrong(line, "an unknown directive", allowed)

    def _wrong(self, line: Line, read: str, allowed: str) -> None:
        problem = ConfigProblem(f"{line.place}, {line.name}", read, allowed)
        self._problems.setdefault(line.file, []).append(problem)

    def _keep(self, line: Line, directive: Directive) -> None:
        if line.name == "listener":
            self._keep_listener(line)
            return
        if self._takes_for_plugin(line):
            return
        name = canonical(line.name)
        if directive.place is Place.BRIDGE and not self._takes_by_name(line, name):
            return
        here = self._place_of(line, directive)
        if name in here and not directive.may_repeat and _is_text(directive):
            self._wrong(line, f"again, after {here[name].place}", "once")
        if line.name == "persistent_client_expiration" and _seconds(line.value) is None:
            self._wrong(line, line.value, "a whole number and s, h, d, w, m or y, such as 14d")
        here[name] = line
        if name == "websockets_origin" and self._listeners:
            self._listeners[-1].origins.append(line.value)
        if directive.loosens is Loosens.ACCESS and _file_name(line) == _PERSIST_PLUGIN:
            self._persists = True
            self._note(
                line, "persistence does it; the contents of the plugin's database are not imported"
            )
            return
        if directive.note and line.value not in directive.same:
            self.notes.append(Note(line, directive.note, closed=directive.loosens))
            self._is_closed |= directive.loosens is Loosens.ACCESS

    def _keep_listener(self, line: Line) -> None:
        port, host = (*line.value.split(), "", "")[:2]
        host = "" if host.startswith("#") else host
        if not is_number(port, 0, 65_535):
            self._wrong(line, line.value, "a port from 0 to 65535, then perhaps an address")
        elif port == "0" and not host:
            self._wrong(line, line.value, "for port 0 the path of a Unix socket")
        else:
            self._listeners.append(_Listener(line, int(port), host or None))

    def _takes_for_plugin(self, line: Line) -> bool:
        """Take a line of a plugin that reads a file; say whether it was one."""
        name, _, option = line.name.partition("_opt_")
        if line.name in _LOADS_PLUGIN:
            key = _FILE_PLUGINS.get(_file_name(line))
            self._plugin = None if key is None else _FilePlugin(key, line)
            if line.name == "plugin_load":
                self._named_plugins[line.value.partition(" ")[0]] = self._plugin
            elif self._plugin is not None:
                is_of_one = self._is_per_listener and line.name != "global_plugin"
                of_listener = self._listeners[-1] if self._listeners else self._default
                (of_listener.plugins if is_of_one else self._plugins_of_all).append(self._plugin)
            if self._plugin is not None:
                self._plugins.append(self._plugin)
        elif line.name == "plugin_use":
            if line.value not in self._named_plugins:
                self._wrong(line, line.value, "the name of a plugin_load above it")
                return True
            self._plugin = self._named_plugins[line.value]
            if not self._listeners:
                self._wrong(line, line.value, "a listener above it")
            elif self._plugin is not None:
                self._listeners[-1].plugins.append(self._plugin)
        elif option and name in ("plugin", "auth") and self._plugin is not None:
            if option == self._plugin.key:
                self._plugin.option = line
            else:
                self._wrong(line, option, f"{name}_opt_{self._plugin.key}")
        else:
            return False
        return self._plugin is not None

    def _takes_by_name(self, line: Line, name: str) -> bool:
        """Take a line of a bridge; say whether it is to be kept by its name."""
        if name == "connection":
            bridge = Bridge(line)
            before = next((one for one in self._bridges if one.name == bridge.name), None)
            if before is not None:
                self._wrong(line, f"{bridge.name}, as in {before.line.place}", "another name")
            self._bridges.append(bridge)
            return False
        if not self._bridges:
            self._wrong(line, "no bridge above it", "a line connection with a name above it")
            return False
        if name in CHECKS:
            try:
                CHECKS[name](line.value)
            except ValueError as error:
                self._wrong(line, line.value, str(error))
        if name == "topic":
            self._bridges[-1].topics.append(line)
        return name != "topic"

    def _place_of(self, line: Line, directive: Directive) -> Settings:
        if directive.place is Place.BRIDGE:
            return self._bridges[-1].set
        current = self._listeners[-1] if self._listeners else self._default
        if directive.place is Place.LISTENER:
            # Both belong to the default listener, wherever they are in the file.
            is_default = line.name in ("port", "bind_address")
            return self._default.set if is_default else current.set
        if directive.place is Place.SECURITY and self._is_per_listener:
            return current.set
        if line.name == "per_listener_settings" and line.value == "true":
            before = [
                name
                for name in self._set
                if DIRECTIVES.get(name, directive).place is Place.SECURITY
            ]
            if before:
                self._wrong(line, f"after {before[0]}", "before all security settings")
        return self._set

    @property
    def _is_per_listener(self) -> bool:
        return self._set.flag("per_listener_settings")

    def _note(self, line: Line, text: str) -> None:
        self.notes.append(Note(line, text))

    # -- the policy -----------------------------------------------------------------------

    def translation(self, host: str) -> Translation:
        listeners = self._all_listeners()
        names = _names(listeners)
        kept = {
            name: (listener, self._listener_keys(listener))
            for name, listener in names.items()
            if not _too_open(listener)
        }
        if not kept:
            self._refuse_all(listeners)
        for listener in listeners:
            for line, why in _no_counterpart(listener):
                self.notes.append(Note(line, why, closed=Loosens.LISTENER))
        policy: dict[str, Any] = {"listeners": {name: keys for name, (_, keys) in kept.items()}}
        policy["limits"] = limits = self._limits()
        if mqtt := self._mqtt([listener for listener, _ in kept.values()]):
            policy["mqtt"] = mqtt
        if self._set.flag("persistence") or self._persists:
            folder = (self._set.text("persistence_location") or "").rstrip("/")
            path = f"{folder}/{SESSIONS_FILE}" if folder else SESSIONS_FILE
            policy["persistence"] = {"path": path, "durability": "normal"}
        if self._set.text("sys_interval") is not None:
            policy["sys_interval"] = self._set.number("sys_interval")
        expiration = self._set.text("persistent_client_expiration")
        if expiration is not None:
            policy["session_expiry_interval"] = _seconds(expiration)
        access = self._access({name: listener for name, (listener, _) in kept.items()})
        policy["plugins"] = {"access": access}
        uplinks, passwords = self._uplinks(host, limits["queue_full"])
        if uplinks:
            policy["plugins"]["uplink"] = {"site": site_name(host), "uplinks": uplinks}
        return Translation(policy, _grouped(self.notes), passwords)

    def _uplinks(self, host: str, queue_full: str) -> tuple[dict[str, Any], dict[str, Line]]:
        """Return (the keys of the uplinks, the lines with their passwords), both by name."""
        uplinks: dict[str, Any] = {}
        passwords: dict[str, Line] = {}
        for bridge in self._bridges:
            if bridge.is_left_out:
                continue
            name = _distinct(name_of(bridge.name), uplinks)
            keys = bridge.keys(host, f"{name}.password")
            for line, why in bridge.notes:
                self._note(line, why)
            if keys is None:
                continue
            keys["backlog"] = {"when_full": queue_full}
            if "password_file" in keys:
                passwords[name] = bridge.set["remote_password"]
            uplinks[name] = keys
        return uplinks, passwords

    def _all_listeners(self) -> list[_Listener]:
        """Return the listeners that mosquitto would start."""
        default = self._default
        if self._listeners and default.set:
            lines = default.set.values()
            if all(_LISTENER_DEFAULTS.get(canonical(line.name)) == line.value for line in lines):
                for line in lines:
                    self._note(
                        line, "mosquitto 2.1 serves port 1883 for it, 2.0 and Penstock do not"
                    )
                return self._listeners
        if default.set or not self._listeners:
            default.port = int(default.set.text("port") or 1883)
            default.host = default.set.text("bind_address")
            if not self._listeners and not default.set:
                default.host = "localhost"  # without any listener, mosquitto serves its own machine
            return [default, *self._listeners]
        return self._listeners

    @property
    def _is_local_only(self) -> bool:
        return not self._listeners and not self._default.set

    def _refuse_all(self, listeners: list[_Listener]) -> None:
        """Report that no listener is left; a policy file without any would get a default one.

        Raises:
            ConfigError: with the reason why each was left out.
        """
        for listener in listeners:
            for line, why in _too_open(listener):
                self._wrong(line, line.value, f"one listener without it; {why}")
        self._give_up()

    def _give_up(self) -> None:
        for file, problems in self._problems.items():
            raise ConfigError(file, problems)

    def _listener_keys(self, listener: _Listener) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        if listener.set.text("protocol") == "websockets":
            keys["type"] = "ws"
            if listener.origins:
                keys["allowed_origins"] = listener.origins
        keys["bind"] = self._bind(listener)
        connections = listener.set.text("max_connections")
        if connections is not None and int(connections) > 0:
            keys["max_connections"] = int(connections)
            keys["when_full"] = "refuse"
        if "enable_proxy_protocol" in listener.set:
            keys["proxy_protocol"] = True
        if not listener.has_tls:
            return keys
        keys["ssl"] = True
        keys |= {
            name: value for name in _TLS_NAMES if (value := listener.set.text(name)) is not None
        }
        if listener.set.flag("require_certificate"):
            keys["require_certificate"] = True
        version = listener.set.text("tls_version")
        if version is not None:
            keys["tls_minimum_version"] = TLS_VERSIONS[version]
            if version == "tlsv1.1":
                self._note(listener.set["tls_version"], NO_TLS_1_1)
        return keys

    def _bind(self, listener: _Listener) -> str:
        host, port = listener.host, listener.port
        if port == 0 and host is not None and listener.line is not None:
            return f"unix:{host}"
        if host is None:
            host = _EVERY_ADDRESS.get(listener.set.text("socket_domain") or "", "")
        return show_address(host, port or 0)

    def _limits(self) -> dict[str, Any]:
        limits: dict[str, Any] = {}
        self._packet_size(limits)

        def take(name: str, key: str, unbounded: int) -> None:
            number = self._set.number(name)
            if number is not None:
                limits[key] = number or unbounded
                if not number:
                    self._note(self._set[name], f"limits.{key} is always a number: {unbounded}")

        take("max_inflight_messages", "inflight_messages", INFLIGHT_MAXIMUM)
        take("max_inflight_bytes", "inflight_bytes", UNBOUNDED_BYTES)
        take("max_queued_messages", "queued_messages", UNBOUNDED_MESSAGES)
        take("max_queued_bytes", "queued_bytes", UNBOUNDED_BYTES)
        limits["queue_full"] = "drop_newest"
        for name, own in (
            ("global_max_connections", ("connections",)),
            ("global_max_clients", ("sessions", "sessions_per_address")),
        ):
            most = self._set.number(name) or 0
            if most > 0:
                limits |= dict.fromkeys(own, most)
        keep_alive = self._set.number("max_keepalive")
        if keep_alive:
            limits["maximum_keep_alive"] = keep_alive
            if keep_alive < 65_535:
                self._note(
                    self._set["max_keepalive"],
                    "limits.maximum_keep_alive holds clients of MQTT 3.1.1 too, which are not "
                    "told: one that asks for more must still send something in that time",
                )
        return limits

    def _packet_size(self, limits: dict[str, int]) -> None:
        size = self._set.number("max_packet_size")
        payload = self._set.number("message_size_limit")
        if payload:
            limits["payload_bytes"] = payload
        if size is None:
            return
        limits["maximum_packet_size"] = min(max(size, MINIMUM_PACKET_SIZE), LARGEST_PACKET_SIZE)
        if size < MINIMUM_PACKET_SIZE:
            limits["payload_bytes"] = min(size, payload or size)
            self._note(
                self._set["max_packet_size"],
                f"the least is {MINIMUM_PACKET_SIZE}; limits.payload_bytes is set to the same",
            )

    def _mqtt(self, listeners: list[_Listener]) -> dict[str, Any]:
        mqtt: dict[str, Any] = {}
        if not self._set.flag("retain_available", default=True):
            mqtt["retain_available"] = False
        for name, key, default, choose in (
            ("max_qos", "maximum_qos", 2, min),
            ("max_topic_alias", "topic_alias_maximum", 10, max),
            ("max_topic_alias_broker", "outgoing_topic_aliases", 10, max),
        ):
            self._of_all_listeners(mqtt, listeners, name, key, default, choose)
        versions = [listener.set.get("accept_protocol_versions") for listener in listeners]
        self._off_for_one(mqtt, "allow_mqtt31", versions, lambda line: "3" not in _versions(line))
        settings = [listener.set if self._is_per_listener else self._set for listener in listeners]
        named = [setting.get("allow_zero_length_clientid") for setting in settings]
        self._off_for_one(mqtt, "allow_empty_client_id", named, lambda line: line.value == "false")
        return mqtt

    def _off_for_one(
        self,
        mqtt: dict[str, Any],
        key: str,
        lines: list[Line | None],
        is_off: Callable[[Line], bool],
    ) -> None:
        """Switch off for all listeners what one of them does not allow."""
        off = [line for line in lines if line is not None and is_off(line)]
        if off:
            mqtt[key] = False
        if off and len(off) < len(lines):
            for line in off:
                self._note(line, f"mqtt.{key} holds for all listeners; it is false")

    def _of_all_listeners(
        self,
        mqtt: dict[str, Any],
        listeners: list[_Listener],
        name: str,
        key: str,
        default: int,
        choose: Callable[[Iterable[int]], int],
    ) -> None:
        """Set for all listeners what mosquitto has for each."""
        lines = [listener.set[name] for listener in listeners if name in listener.set]
        if not lines:
            return
        values = {int(listener.set.text(name) or default) for listener in listeners}
        mqtt[key] = choose(values)
        if len(values) > 1:
            for line in lines:
                self._note(line, f"mqtt.{key} holds for all listeners; it is {mqtt[key]}")

    # -- access ---------------------------------------------------------------------------

    def _access(self, listeners: dict[str, _Listener]) -> dict[str, Any]:
        for listener in listeners.values():
            self._refuse_two_files(listener)
        if self._is_closed:
            return {}
        if self._is_per_listener:
            return {
                "listeners": {
                    name: self._rules(listener.set, listener)
                    for name, listener in listeners.items()
                }
            }
        common = self._rules(self._set, _Listener(None))
        own = {name: self._rules(self._set, listener) for name, listener in listeners.items()}
        differing = {name: rules for name, rules in own.items() if rules != common}
        return common | ({"listeners": differing} if differing else {})

    def _files(self, key: str, settings: Settings, listener: _Listener) -> list[Line]:
        """Return the lines that name a listener's files of users, or of topics."""
        plugins = (*self._plugins_of_all, *listener.plugins)
        lines = [plugin.option for plugin in plugins if plugin.key == key]
        return [line for line in (settings.get(key), *lines) if line is not None]

    def _refuse_two_files(self, listener: _Listener) -> None:
        """Close all where mosquitto asks two files: which one decides is not to be guessed."""
        settings = listener.set if self._is_per_listener else self._set
        for key in ("password_file", "acl_file"):
            lines = self._files(key, settings, listener)
            if len({line.value for line in lines}) > 1:
                why = f"a listener has one {key}; these are several"
                for line in lines:
                    note = Note(line, why, closed=Loosens.ACCESS)
                    if note not in self.notes:
                        self.notes.append(note)
                self._is_closed = True

    def _rules(self, settings: Settings, listener: _Listener) -> dict[str, Any]:
        rules: dict[str, Any] = {}
        anonymous = listener.set.get("listener_allow_anonymous", settings.get("allow_anonymous"))
        if anonymous.value == "true" if anonymous is not None else self._is_local_only:
            rules["allow_anonymous"] = True
        for name in ("password_file", "acl_file"):
            for line in self._files(name, settings, listener):
                rules[name] = line.value
        # Without certificates mosquitto ignores these two.
        if listener.has_certificates and listener.set.flag("use_identity_as_username"):
            rules["certificate_username"] = "cn"
        elif listener.has_certificates and listener.set.flag("use_subject_as_username"):
            rules["certificate_username"] = "subject"
        if listener.set.flag("use_username_as_clientid"):
            rules["username_as_client_id"] = True
        return rules


def _too_open(listener: _Listener) -> list[tuple[Line, str]]:
    """Return the directives for which a listener is left out, and why."""
    return loosening(listener.set, Loosens.LISTENER) + _no_counterpart(listener)


def _no_counterpart(listener: _Listener) -> list[tuple[Line, str]]:
    """Return values that leave a listener out, of directives that are otherwise translated."""
    found = []
    if listener.set.text("protocol") == "http_api":
        why = "no listener of MQTT; plugins.console.http and plugins.queue.http are Penstock's APIs"
        found.append((listener.set["protocol"], why))
    versions = listener.set.get("accept_protocol_versions")
    if versions is not None and not {"4", "5"} <= _versions(versions):
        why = "clients of MQTT 3.1.1 and 5 would both be accepted"
        found.append((versions, why))
    is_behind_balancer = "enable_proxy_protocol" in listener.set and not listener.has_tls
    if is_behind_balancer and listener.set.flag("require_certificate"):
        why = "a certificate that a load balancer has seen cannot be required"
        found.append((listener.set["require_certificate"], why))
    return found


def _file_name(line: Line) -> str:
    """Return the file name at the end of a line, without its folder."""
    return line.value.rpartition(" ")[2].rpartition("/")[2]


def _versions(line: Line) -> set[str]:
    """Return the versions named by ``accept_protocol_versions``."""
    return set(line.value.replace(",", " ").split())


def _grouped(notes: Iterable[Note]) -> list[Note]:
    """Return notes in the order of the lines; equal notes of one file become one."""
    nothing = Loosens.NOTHING
    groups: dict[tuple[str, str], list[Note]] = {}
    for note in sorted(notes, key=lambda note: (note.line.file, note.line.number)):
        groups.setdefault((note.line.file, note.text), []).append(note)
    return [
        Note(
            group[0].line,
            text,
            tuple(note.line for note in group[1:]),
            next((note.closed for note in group if note.closed is not nothing), nothing),
        )
        for (_, text), group in groups.items()
    ]


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text such as ``3 to 5, 8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number <= parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if part[-1] > part[0] else str(part[0]) for part in parts
    )


def _is_text(directive: Directive) -> bool:
    return not directive.values and directive.minimum is None


def _seconds(duration: str) -> int | None:
    """Return a duration such as ``14d`` in seconds; None if it is not valid."""
    number, unit = duration[:-1], duration[-1:]
    if not is_number(number) or unit not in _DURATIONS:
        return None
    return int(number) * _DURATIONS[unit]


def _names(listeners: list[_Listener]) -> dict[str, _Listener]:
    """Return the listeners by distinct names."""
    names: dict[str, _Listener] = {}
    for listener in listeners:
        kind = "websockets" if listener.set.text("protocol") == "websockets" else "mqtt"
        base = f"{kind}-{listener.port}" if listener.port else f"{kind}-unix"
        names[_distinct(base, names)] = listener
    return names


def _distinct(base: str, taken: Container[str]) -> str:
    """Return a name that is not taken, with a number where it has to be."""
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name
