"""Translates a bridge of mosquitto to an uplink of the plugin ``uplink``.

The plugin is none of the broker's: this writes its keys as a mapping, which the plugin checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.broker.config.listener_config import show_address
from penstock.broker.errors import MalformedPacketError
from penstock.broker.import_mosquitto.conf_file import Line, Settings
from penstock.broker.import_mosquitto.directives import (
    NO_TLS_1_1,
    TLS_VERSIONS,
    Loosens,
    is_number,
    loosening,
)
from penstock.broker.mqtt.topics import validate_topic, validate_topic_filter

DEFAULT_PORT: Final = "1883"
"""The default port of a bridge, also with TLS."""

LONGEST_BASE_SECONDS: Final = 3_600
LONGEST_CAP_SECONDS: Final = 7_200
"""mosquitto uses these in place of larger values of ``restart_timeout``."""

_MOST_PORT: Final = 65_535
_LEAST_PACKET_BYTES: Final = 20
_LONGEST_SITE: Final = 64
_STATE_TOPICS: Final = "$SYS/broker/connection/"
_VERSIONS: Final = {"mqttv50": "5", "mqttv311": "3.1.1", "mqttv31": "3.1.1"}
_TLS_FILES: Final = ("cafile", "capath", "certfile", "keyfile")
_TLS_SIGNS: Final = ("bridge_cafile", "bridge_capath")
_EMPTY: Final = '""'
_HALF_RECEIVED: Final = (
    "what mosquitto has received of this at QoS 2 and not passed on when it stops is lost; write "
    "QoS 1 there for the move"
)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")


class Topic(NamedTuple):
    """The contents of a line ``topic``.

    Attributes:
        filter: topic filter without prefixes; "" where one topic becomes another.
        local_prefix: "" for none.
        remote_prefix: "" for none.
    """

    directions: tuple[str, ...]
    filter: str
    qos: int
    local_prefix: str
    remote_prefix: str


_DIRECTIONS: Final = {"out": ("up",), "in": ("down",), "both": ("up", "down")}


def read_topic(text: str) -> Topic:
    """Return what a line ``topic`` says.

    Raises:
        ValueError: with what is allowed.
    """
    if text.startswith('"') and not text.startswith(_EMPTY):
        pattern, closed, rest = text[1:].partition('"')
        if not closed:
            raise ValueError("a quotation mark at the end of the pattern, too")
    else:
        pattern, _, rest = text.partition(" ")
    pattern = "" if pattern == _EMPTY else pattern
    words = rest.split()
    direction = words[0].lower() if words else "out"
    if direction not in _DIRECTIONS:
        raise ValueError("out, in or both behind the pattern")
    others: list[str] = []
    for word in words[1:4]:
        if word.startswith("#"):
            break
        others.append("" if word == _EMPTY else word)
    qos, local_prefix, remote_prefix = (*others, *("0", "", "")[len(others) :])
    if qos not in ("0", "1", "2"):
        raise ValueError("a QoS of 0, 1 or 2 behind the direction")
    if not pattern and not (local_prefix and remote_prefix):
        raise ValueError('a pattern, or "" with a local and a remote prefix')
    try:
        for prefix in (local_prefix, remote_prefix):
            if prefix:
                validate_topic(prefix)
            validate_topic_filter(prefix + pattern)
    except MalformedPacketError as error:
        raise ValueError(f"prefixes without + and #, and topic filters ({error.args[0]})") from None
    return Topic(_DIRECTIONS[direction], pattern, int(qos), local_prefix, remote_prefix)


def read_addresses(text: str) -> list[str]:
    """Return the addresses of a bridge, with their ports.

    Raises:
        ValueError: with what is allowed.
    """
    addresses = []
    for word in text.split():
        if word.startswith("#"):
            break
        host, _, port = word.rpartition(":") if ":" in word else (word, "", DEFAULT_PORT)
        if not host or not is_number(port, 1, _MOST_PORT):
            raise ValueError(f"host or host:port with a port of 1 to {_MOST_PORT}")
        host = host.removeprefix("[").removesuffix("]")
        addresses.append(show_address(host, int(port)))
    return list(dict.fromkeys(addresses))


def read_restart(text: str) -> dict[str, int]:
    """Return the keys of ``reconnect`` that ``restart_timeout`` stands for.

    Raises:
        ValueError: with what is allowed.
    """
    words = text.split()[:3]
    if not words or not all(map(is_number, words)):
        raise ValueError("whole numbers of seconds: a constant, or a base and a cap")
    base = min(max(int(words[0]), 1), LONGEST_BASE_SECONDS)
    cap = int(words[1]) if len(words) > 1 else base
    if cap < base:
        raise ValueError(f"a cap of at least the base, {base}")
    keys = {"min_seconds": base, "max_seconds": min(cap, LONGEST_CAP_SECONDS)}
    if len(words) > 2 and int(words[2]):
        keys["stable_seconds"] = int(words[2])
    return keys


CHECKS: Final = {"topic": read_topic, "address": read_addresses, "restart_timeout": read_restart}
"""Readers of directives whose values have a form of their own."""


def name_of(text: str) -> str:
    """Return a text with ``-`` for what cannot stand in the name of a site or an uplink."""
    return _NOT_IN_NAMES.sub("-", text)


def site_name(host: str) -> str:
    """Return the name of the site on a machine."""
    return name_of(host)[:_LONGEST_SITE] or "site"


@dataclass(slots=True)
class Bridge:
    """One bridge.

    Attributes:
        line: the line with ``connection``.
        set: the other directives by name, without ``topic``.
        notes: (line, what is not as it was), once `keys` was called.
    """

    line: Line
    set: Settings = field(default_factory=Settings)
    topics: list[Line] = field(default_factory=list)
    notes: list[tuple[Line, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in mosquitto."""
        return self.line.value.partition(" ")[0]

    @property
    def is_left_out(self) -> bool:
        """True if its uplink would be less protected than the bridge was."""
        return bool(loosening(self.set, Loosens.BRIDGE))

    def keys(self, host: str, password_file: str) -> dict[str, Any] | None:
        """Return the keys of its uplink; None where nothing passes it."""
        if not self.topics:
            self.notes.append((self.line, "it has no topic, so nothing passes; it is left out"))
            return None
        client_id = self.set.text("remote_clientid") or f"{host}.{self.name}"
        keys: dict[str, Any] = {"upstream": self._upstream(), "client_id": client_id}
        if not self.set.flag("cleansession"):
            keys["adopts_session"] = True
            told = f"what waits for the client {client_id} in the cloud is taken over"
            self.notes.append((self.line, f"{told}; delete adopts_session after the move"))
        self._login(keys, password_file)
        self._version(keys)
        if (interval := self.set.text("keepalive_interval")) is not None:
            keys["keep_alive_seconds"] = int(interval)
        if size := int(self.set.text("bridge_max_packet_size") or 0):
            keys["maximum_packet_size"] = max(size, _LEAST_PACKET_BYTES)
        if (restart := self.set.text("restart_timeout")) is not None:
            keys["reconnect"] = read_restart(restart)
        if not self.set.flag("bridge_outgoing_retain", default=True):
            keys["outgoing_retain"] = False
        self._start(keys)
        for line in self.topics:
            topic = read_topic(line.value)
            rule = topic._asdict()
            if topic.qos == 2 and "down" in topic.directions and "adopts_session" in keys:
                self.notes.append((line, _HALF_RECEIVED))
            for direction in rule.pop("directions"):
                when = {"when": "always"} if direction == "down" else {}
                keys.setdefault(direction, []).append(rule | when)
        keys["clear_retained"] = False
        self._notifications(keys)
        return keys

    def _upstream(self) -> dict[str, Any]:
        addresses = read_addresses(self.set["address"].value)
        keys: dict[str, Any] = (
            {"address": addresses[0]} if len(addresses) == 1 else {"addresses": addresses}
        )
        has_tls = any(name in self.set for name in _TLS_SIGNS)
        if not has_tls and not self.set.flag("bridge_tls_use_os_certs"):
            for name in ("bridge_alpn", "bridge_certfile", "bridge_keyfile", "bridge_tls_version"):
                if name in self.set:
                    why = "without bridge_cafile or bridge_capath, mosquitto has no TLS for it"
                    self.notes.append((self.set[name], why))
            return keys
        tls: dict[str, Any] = {
            name: value
            for name in _TLS_FILES
            if (value := self.set.text(f"bridge_{name}")) is not None
        }
        if (protocol := self.set.text("bridge_alpn")) is not None:
            tls["alpn"] = [protocol]
        version = self.set.text("bridge_tls_version")
        if version is not None:
            tls["minimum_version"] = TLS_VERSIONS[version]
            if version == "tlsv1.1":
                self.notes.append((self.set["bridge_tls_version"], NO_TLS_1_1))
        keys["tls"] = tls
        return keys

    def _login(self, keys: dict[str, Any], password_file: str) -> None:
        username = self.set.text("remote_username")
        if username is not None:
            keys["username"] = username
        if "remote_password" not in self.set:
            return
        if username is None:
            why = "it counts only with a remote_username"
            self.notes.append((self.set["remote_password"], why))
        else:
            keys["password_file"] = password_file

    def _version(self, keys: dict[str, Any]) -> None:
        version = self.set.text("bridge_protocol_version") or "mqttv311"
        keys["version"] = _VERSIONS[version]
        if version == "mqttv31":
            why = "version is 3.1.1; a broker that takes 3.1 alone refuses it"
            self.notes.append((self.set["bridge_protocol_version"], why))
        elif version == "mqttv50":
            keys["tells_publisher"] = False
        if not self.set.flag("try_private", default=True):
            keys["bridge_bit"] = False

    def _start(self, keys: dict[str, Any]) -> None:
        kind = self.set.text("start_type")
        if kind == "once":
            why = "an uplink that has ended connects again"
            self.notes.append((self.set["start_type"], why))
        if kind != "lazy":
            return
        keys["start"] = {
            "when": "on_demand",
            "threshold_messages": int(self.set.text("threshold") or 10),
            "idle_seconds": int(self.set.text("idle_timeout") or 60),
        }

    def _notifications(self, keys: dict[str, Any]) -> None:
        if not self.set.flag("notifications", default=True):
            keys["notifications"] = False
        if self.set.flag("notifications_local_only"):
            keys["notifications_local_only"] = True
        topic = self.set.text("notification_topic")
        if topic is None:
            return
        try:
            validate_topic(topic)
            is_taken = not topic.startswith("$") or topic.startswith(_STATE_TOPICS)
        except MalformedPacketError:
            is_taken = False
        if is_taken:
            keys["notification_topic"] = topic
        else:
            why = f"a topic below {_STATE_TOPICS}, or one not below $; it is that of the client id"
            self.notes.append((self.set["notification_topic"], why))
