"""Every directive of mosquitto.conf(5), 2.0: what it applies to, its values, what becomes of it.

A directive without a note is carried over by `broker.import_mosquitto.translate`. One with a
note has no counterpart; the note says why, and what comes nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

NO_MAXIMUM: Final = 2**31 - 1
"""mosquitto's numbers are C's int."""


class Place(Enum):
    """What a directive applies to."""

    GLOBAL = "the broker"
    LISTENER = "the listener above it"
    SECURITY = "every listener, or with per_listener_settings the one above it"
    BRIDGE = "the bridge above it"


class Loosens(Enum):
    """What would be more open without the directive, and is therefore closed."""

    NOTHING = "nothing"
    LISTENER = "the listener is left out"
    ACCESS = "nobody is let in"


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive.

    Attributes:
        place: what it applies to.
        values: the words it may have; () for any text.
        minimum: of a number; None where it is none.
        maximum: of a number.
        may_repeat: whether it may stand several times for one place.
        note: why it has no counterpart and what comes nearest; "" where it is carried over.
        same: values that say what Penstock does anyway, which need no note.
        loosens: what is closed because the directive has no counterpart.
    """

    place: Place
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = NO_MAXIMUM
    may_repeat: bool = False
    note: str = ""
    same: tuple[str, ...] = ()
    loosens: Loosens = Loosens.NOTHING


_FLAG: Final = ("true", "false")

_LOG: Final = "the log goes to standard error; --log-level sets its level, systemd keeps it"
_SERVICE: Final = "the service manager does it; systemd has User= and Type=exec"
_SAVING: Final = "changes are committed as they come; see persistence.durability"
_PLUGIN: Final = (
    "mosquitto's plugins are libraries for mosquitto; aMQTT's plugins, or one of your own with "
    "AccessControl, may stand in its place"
)
_PSK: Final = "TLS with pre-shared keys is not there; certificates are"
_ENGINE: Final = "keys are read from PEM files alone"
_BRIDGE: Final = (
    "Penstock starts no bridges; a bridge of the other broker may connect to it, and "
    "penstock proxy stands in front of any broker"
)
_WEBSOCKETS: Final = "no libwebsockets here"


def _global(
    *values: str, note: str = "", same: tuple[str, ...] = (), may_repeat: bool = False
) -> Directive:
    return Directive(Place.GLOBAL, values, note=note, same=same, may_repeat=may_repeat)


def _number(
    minimum: int, maximum: int = NO_MAXIMUM, *, place: Place = Place.GLOBAL, note: str = ""
) -> Directive:
    return Directive(place, minimum=minimum, maximum=maximum, note=note)


def _listener(
    *values: str,
    note: str = "",
    same: tuple[str, ...] = (),
    loosens: Loosens = Loosens.NOTHING,
) -> Directive:
    return Directive(Place.LISTENER, values, note=note, same=same, loosens=loosens)


def _security(
    *values: str,
    note: str = "",
    same: tuple[str, ...] = (),
    may_repeat: bool = False,
    loosens: Loosens = Loosens.NOTHING,
) -> Directive:
    return Directive(Place.SECURITY, values, None, NO_MAXIMUM, may_repeat, note, same, loosens)


_BRIDGES: Final = (
    "address",
    "addresses",
    "bridge_alpn",
    "bridge_attempt_unsubscribe",
    "bridge_bind_address",
    "bridge_cafile",
    "bridge_capath",
    "bridge_certfile",
    "bridge_identity",
    "bridge_insecure",
    "bridge_keyfile",
    "bridge_max_packet_size",
    "bridge_max_topic_alias",
    "bridge_outgoing_retain",
    "bridge_protocol_version",
    "bridge_psk",
    "bridge_require_ocsp",
    "bridge_tls_version",
    "cleansession",
    "clientid",
    "connection",
    "idle_timeout",
    "keepalive_interval",
    "local_cleansession",
    "local_clientid",
    "local_password",
    "local_username",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "remote_clientid",
    "remote_password",
    "remote_username",
    "restart_timeout",
    "round_robin",
    "start_type",
    "threshold",
    "topic",
    "try_private",
    "username",
)

DIRECTIVES: Final[dict[str, Directive]] = {
    name: Directive(Place.BRIDGE, may_repeat=True, note=_BRIDGE) for name in _BRIDGES
} | {
    # -- the broker -----------------------------------------------------------------------
    "allow_duplicate_messages": _global(
        *_FLAG,
        note="a message that matches several subscriptions of a client comes once",
        same=("false",),
    ),
    "autosave_interval": _number(0, note=_SAVING),
    "autosave_on_changes": _global(*_FLAG, note=_SAVING, same=("false",)),
    "check_retain_source": _global(
        *_FLAG,
        note="who published a retained message is not asked again when it is delivered",
        same=("false",),
    ),
    "clientid_prefixes": Directive(
        Place.GLOBAL,
        note="client identifiers are not looked at; users and plugins.access.acl_file are",
        loosens=Loosens.ACCESS,
    ),
    "connection_messages": _global(
        *_FLAG, note="who comes and goes is in the log at --log-level debug"
    ),
    "include_dir": _global(may_repeat=True),
    "log_dest": _global(may_repeat=True, note=_LOG),
    "log_facility": _global(note=_LOG),
    "log_timestamp": _global(*_FLAG, note=_LOG),
    "log_timestamp_format": _global(note=_LOG),
    "log_type": _global(may_repeat=True, note=_LOG),
    "max_inflight_bytes": _number(0),
    "max_inflight_messages": _number(0, 65_535),
    "max_keepalive": _number(0, 65_535),
    "max_packet_size": _number(20),
    "max_queued_bytes": _number(0),
    "max_queued_messages": _number(0),
    "memory_limit": _number(
        0,
        note="limits.total_queued_bytes and limits.retained_bytes bound it; systemd has MemoryMax=",
    ),
    "message_size_limit": _number(0, 268_435_455),
    "per_listener_settings": _global(*_FLAG),
    "persistence": _global(*_FLAG),
    "persistence_file": _global(
        note="the database has another form and a name of its own; what mosquitto's holds does "
        "not come along"
    ),
    "persistence_location": _global(),
    "persistent_client_expiration": _global(),
    "pid_file": _global(note=_SERVICE),
    "queue_qos0_messages": _global(
        *_FLAG,
        note="messages of QoS 0 do not wait for a client that is away; publish at QoS 1",
        same=("false",),
    ),
    "retain_available": _global(*_FLAG),
    "set_tcp_nodelay": _global(*_FLAG, note="it is always set", same=("true",)),
    "sys_interval": _number(0, 65_535),
    "upgrade_outgoing_qos": _global(
        *_FLAG, note="a message never gets a higher QoS than it had", same=("false",)
    ),
    "user": _global(note=_SERVICE),
    "websockets_headers_size": _number(0, 65_535, note=_WEBSOCKETS),
    "websockets_log_level": _number(0, note=_WEBSOCKETS),
    # -- users and topics -----------------------------------------------------------------
    "acl_file": _security(),
    "allow_anonymous": _security(*_FLAG),
    "allow_zero_length_clientid": _security(
        *_FLAG,
        note="clients without an identifier get one; username_as_client_id gives them their own",
        same=("true",),
    ),
    "auth_opt_*": _security(may_repeat=True, note=_PLUGIN),
    "auth_plugin": _security(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "auth_plugin_deny_special_chars": _security(*_FLAG, note=_PLUGIN),
    "auto_id_prefix": _security(note="identifiers that the broker gives begin with penstock-"),
    "password_file": _security(),
    "plugin": _security(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "plugin_opt_*": _security(may_repeat=True, note=_PLUGIN),
    "psk_file": _security(note=_PSK),
    # -- listeners ------------------------------------------------------------------------
    "bind_address": _listener(),
    "bind_interface": _listener(
        note="a listener has an address, not an interface: give that of the interface",
        loosens=Loosens.LISTENER,
    ),
    "cafile": _listener(),
    "capath": _listener(),
    "certfile": _listener(),
    "ciphers": _listener(),
    "ciphers_tls1.3": _listener(note="TLS 1.3 has OpenSSL's own suites"),
    "crlfile": _listener(note="revoked certificates would be taken", loosens=Loosens.LISTENER),
    "dhparamfile": _listener(note="elliptic curves give forward secrecy without parameters"),
    "http_dir": _listener(note="no files are served; any web server does"),
    "keyfile": _listener(),
    "listener": _listener(),
    "max_connections": _number(-1, place=Place.LISTENER),
    "max_qos": _number(0, 2, place=Place.LISTENER),
    "max_topic_alias": _number(0, 65_535, place=Place.LISTENER),
    "mount_point": _listener(
        note="its clients would see the topics of all; plugins.access.acl_file, with pattern "
        "lines, keeps clients apart",
        loosens=Loosens.LISTENER,
    ),
    "port": _number(0, 65_535, place=Place.LISTENER),
    "protocol": _listener("mqtt", "websockets"),
    "psk_hint": _listener(note=_PSK, loosens=Loosens.LISTENER),
    "require_certificate": _listener(*_FLAG),
    "socket_domain": _listener("ipv4", "ipv6"),
    "tls_engine": _listener(note=_ENGINE, loosens=Loosens.LISTENER),
    "tls_engine_kpass_sha1": _listener(note=_ENGINE),
    "tls_keyform": _listener("pem", "engine", note=_ENGINE, same=("pem",)),
    "tls_version": _listener("tlsv1.3", "tlsv1.2", "tlsv1.1"),
    "use_identity_as_username": _listener(*_FLAG),
    "use_subject_as_username": _listener(*_FLAG),
    "use_username_as_clientid": _listener(*_FLAG),
}
"""By name; a ``*`` at the end stands for any."""


_OPTIONS: Final = ("auth_opt_", "plugin_opt_")

_SECRETS: Final = frozenset(
    {"bridge_psk", "local_password", "password", "remote_password", "tls_engine_kpass_sha1"}
)


def is_secret(name: str) -> bool:
    """Say whether a directive's value is for nobody else to read; a plugin's options may be."""
    return name in _SECRETS or name.startswith(_OPTIONS)


def find(name: str) -> Directive | None:
    """Return the directive that a line's first word names, or None."""
    found = DIRECTIVES.get(name)
    if found is not None:
        return None if name.endswith("*") else found
    for prefix in _OPTIONS:
        if name.startswith(prefix) and name != prefix:
            return DIRECTIVES[f"{prefix}*"]
    return None


def problem_of(directive: Directive, value: str) -> str:
    """Say what a directive's value may be, where it is something else; "" where it is right."""
    if directive.minimum is not None:
        digits = value.removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal()
        if not is_number or not directive.minimum <= int(value) <= directive.maximum:
            return f"a whole number from {directive.minimum} to {directive.maximum}"
    elif directive.values and value not in directive.values:
        return " or ".join(directive.values)
    elif not value:
        return "a value"
    return ""
