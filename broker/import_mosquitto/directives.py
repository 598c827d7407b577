"""Every directive of mosquitto 2.0 and 2.1: its scope, its values, and what becomes of it.

A directive without a note is carried over by `penstock.broker.import_mosquitto.translate`. One with
a note has no counterpart; the note says why, and what comes nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

NO_MAXIMUM: Final = 2**31 - 1
"""Maximum of C's int, which mosquitto uses for numbers."""


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
    ACCESS = "no client is let in"


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive.

    Attributes:
        place: what it applies to.
        values: the allowed words; () for any text.
        minimum: of a number; None where the value is no number.
        maximum: of a number.
        is_raised: a number below `minimum` counts as the minimum.
        may_repeat: whether it may be given several times in one place; where it is carried over,
            the last one takes effect.
        note: why it has no counterpart and what comes nearest; "" where it is carried over.
        same: values with which Penstock does the same anyway, so that no note is needed.
        loosens: what is closed because the directive has no counterpart.
    """

    place: Place
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int = NO_MAXIMUM
    is_raised: bool = False
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
_PSK: Final = "pre-shared keys are not supported; certificates are"
_ENGINE: Final = "keys are read from PEM files alone"
_BRIDGE: Final = (
    "Penstock starts no bridges; a bridge of the other broker may connect to it, and "
    "penstock proxy stands in front of any broker"
)
_WEBSOCKETS: Final = "Penstock does not use libwebsockets"
_BUFFER: Final = "there is no buffer to size"
_ASSIGNED: Final = "identifiers that the broker gives begin with penstock-"


_global: Final = partial(Directive, Place.GLOBAL)
_listener: Final = partial(Directive, Place.LISTENER)
_security: Final = partial(Directive, Place.SECURITY)


def _number(
    minimum: int,
    maximum: int = NO_MAXIMUM,
    *,
    place: Place = Place.GLOBAL,
    is_raised: bool = False,
    note: str = "",
) -> Directive:
    return Directive(place, minimum=minimum, maximum=maximum, is_raised=is_raised, note=note)


_BRIDGES: Final = (
    "address",
    "addresses",
    "bridge_alpn",
    "bridge_attempt_unsubscribe",
    "bridge_bind_address",
    "bridge_cafile",
    "bridge_capath",
    "bridge_certfile",
    "bridge_ciphers",
    "bridge_ciphers_tls1.3",
    "bridge_identity",
    "bridge_insecure",
    "bridge_keyfile",
    "bridge_max_packet_size",
    "bridge_max_topic_alias",
    "bridge_outgoing_retain",
    "bridge_protocol_version",
    "bridge_psk",
    "bridge_receive_maximum",
    "bridge_reload_type",
    "bridge_require_ocsp",
    "bridge_session_expiry_interval",
    "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout",
    "bridge_tls_use_os_certs",
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
        _FLAG,
        note="a message that matches several subscriptions of a client comes once",
        same=("false",),
    ),
    "autosave_interval": _number(0, note=_SAVING),
    "autosave_on_changes": _global(_FLAG, note=_SAVING, same=("false",)),
    "check_retain_source": _global(
        _FLAG,
        note="a publisher's rights are not checked again when a retained message is delivered",
        same=("false",),
    ),
    "clientid_prefixes": _global(
        note="client identifiers are not checked; users and plugins.access.acl_file are",
        loosens=Loosens.ACCESS,
    ),
    "connection_messages": _global(
        _FLAG, note="connections and disconnections are logged at --log-level debug"
    ),
    "enable_control_api": _global(
        _FLAG,
        note="there is no $CONTROL; penstock why and $SYS tell what goes on",
        same=("false",),
    ),
    "global_max_clients": _number(-1, is_raised=True),
    "global_max_connections": _number(-1, is_raised=True),
    "include_dir": _global(may_repeat=True),
    "log_dest": _global(may_repeat=True, note=_LOG),
    "log_facility": _global(note=_LOG),
    "log_timestamp": _global(_FLAG, note=_LOG),
    "log_timestamp_format": _global(note=_LOG),
    "log_type": _global(may_repeat=True, note=_LOG),
    "max_inflight_bytes": _number(0, is_raised=True),
    "max_inflight_messages": _number(0, 65_535, is_raised=True),
    "max_keepalive": _number(0, 65_535),
    "max_packet_size": _number(20),
    "max_queued_bytes": _number(0, is_raised=True),
    "max_queued_messages": _number(0, is_raised=True),
    "memory_limit": _number(
        0,
        2**63 - 1,
        note="limits.total_queued_bytes and limits.retained_bytes bound it; systemd has MemoryMax=",
    ),
    "message_size_limit": _number(0, 268_435_455),
    "packet_buffer_size": _number(0, 65_535, note=_BUFFER),
    "per_listener_settings": _global(_FLAG),
    "persistence": _global(_FLAG),
    "persistence_file": _global(
        note="mosquitto's database has another format, and its contents are not imported"
    ),
    "persistence_location": _global(),
    "persistent_client_expiration": _global(),
    "pid_file": _global(note=_SERVICE),
    "queue_qos0_messages": _global(
        _FLAG,
        note="messages of QoS 0 do not wait for a client that is away; publish at QoS 1",
        same=("false",),
    ),
    "retain_available": _global(_FLAG),
    "retain_expiry_interval": _number(1),
    "retry_interval": _global(may_repeat=True),
    "set_tcp_nodelay": _global(_FLAG, note="it is always set", same=("true",)),
    "sys_interval": _number(0, 65_535),
    "upgrade_outgoing_qos": _global(
        _FLAG, note="a message never gets a higher QoS than it had", same=("false",)
    ),
    "user": _global(note=_SERVICE, may_repeat=True),
    "websockets_headers_size": _number(0, 65_535, note=_BUFFER),
    "websockets_log_level": _number(-(2**31), note=_WEBSOCKETS),
    # -- users and topics -----------------------------------------------------------------
    "acl_file": _security(may_repeat=True),
    "allow_anonymous": _security(_FLAG),
    "allow_zero_length_clientid": _security(_FLAG),
    "auth_opt_*": _security(may_repeat=True, note=_PLUGIN),
    "auth_plugin": _security(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "auth_plugin_deny_special_chars": _security(_FLAG, note=_PLUGIN),
    "auto_id_prefix": _security(note=_ASSIGNED),
    "global_plugin": _global(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "password_file": _security(may_repeat=True),
    "plugin": _security(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "plugin_load": _global(may_repeat=True, note=_PLUGIN, loosens=Loosens.ACCESS),
    "plugin_opt_*": _security(may_repeat=True, note=_PLUGIN),
    "psk_file": _security(may_repeat=True, note=_PSK),
    # -- listeners ------------------------------------------------------------------------
    "accept_protocol_versions": _listener(may_repeat=True),
    "bind_address": _listener(),
    "bind_interface": _listener(
        note="a listener has an address, not an interface: give that of the interface",
        loosens=Loosens.LISTENER,
    ),
    "cafile": _listener(may_repeat=True),
    "capath": _listener(may_repeat=True),
    "certfile": _listener(may_repeat=True),
    "ciphers": _listener(may_repeat=True),
    "ciphers_tls1.3": _listener(note="TLS 1.3 has OpenSSL's own suites", may_repeat=True),
    "crlfile": _listener(may_repeat=True),
    "dhparamfile": _listener(note="elliptic curves give forward secrecy without parameters"),
    "disable_client_cert_date_checks": _listener(
        _FLAG, note="a certificate that is out of date is refused", same=("false",)
    ),
    "enable_proxy_protocol": _number(1, 2, place=Place.LISTENER),
    "http_dir": _listener(note="no files are served; any web server does", may_repeat=True),
    "keyfile": _listener(may_repeat=True),
    "listener": _listener(),
    "listener_allow_anonymous": _listener(_FLAG),
    "listener_auto_id_prefix": _listener(note=_ASSIGNED),
    "max_connections": _number(-1, place=Place.LISTENER, is_raised=True),
    "max_qos": _number(0, 2, place=Place.LISTENER),
    "max_topic_alias": _number(0, 65_535, place=Place.LISTENER),
    "max_topic_alias_broker": _number(0, 65_535, place=Place.LISTENER),
    "mount_point": _listener(
        note="its clients would see all topics; plugins.access.acl_file, with pattern "
        "lines, keeps clients apart",
        may_repeat=True,
        loosens=Loosens.LISTENER,
    ),
    "plugin_use": _listener(may_repeat=True, note=_PLUGIN),
    "port": _number(0, 65_535, place=Place.LISTENER),
    "protocol": _listener(("mqtt", "websockets", "http_api")),
    "proxy_protocol_v2_require_tls": _listener(
        _FLAG,
        note="clients without TLS to the load balancer would be accepted",
        same=("false",),
        loosens=Loosens.LISTENER,
    ),
    "psk_hint": _listener(note=_PSK, loosens=Loosens.LISTENER),
    "require_certificate": _listener(_FLAG),
    "socket_domain": _listener(("ipv4", "ipv6")),
    "tls_engine": _listener(note=_ENGINE, loosens=Loosens.LISTENER),
    "tls_engine_kpass_sha1": _listener(note=_ENGINE, may_repeat=True),
    "tls_keyform": _listener(note=_ENGINE, same=("pem",), may_repeat=True),
    "tls_version": _listener(("tlsv1.3", "tlsv1.2", "tlsv1.1")),
    "use_identity_as_username": _listener(_FLAG),
    "use_subject_as_username": _listener(_FLAG),
    "use_username_as_clientid": _listener(_FLAG),
    "websockets_origin": _listener(may_repeat=True),
}
"""By name; a ``*`` at the end stands for any."""

_ALIASES: Final = {"maximum_qos": "max_qos", "retained_persistence": "persistence"}
"""Older names of directives to their newest."""

_OPTIONS: Final = ("auth_opt_", "plugin_opt_")

_SECRETS: Final = frozenset(
    {"bridge_psk", "local_password", "password", "remote_password", "tls_engine_kpass_sha1"}
)


def canonical(name: str) -> str:
    """Return the newest name of a directive."""
    return _ALIASES.get(name, name)


def is_secret(name: str) -> bool:
    """Say whether a directive's value may be a secret; options of a plugin may be."""
    return name in _SECRETS or name.startswith(_OPTIONS)


def find(name: str) -> Directive | None:
    """Return the directive that a line's first word names, or None."""
    found = DIRECTIVES.get(canonical(name))
    if found is not None:
        return None if name.endswith("*") else found
    for prefix in _OPTIONS:
        if name.startswith(prefix) and name != prefix:
            return DIRECTIVES[f"{prefix}*"]
    return None


def value_of(directive: Directive, text: str) -> str:
    """Return the value as mosquitto reads it: for a flag, number or word the first on the line."""
    if directive.minimum is None and not directive.values:
        return text
    word = text.partition(" ")[0]
    if directive.values == _FLAG:
        return {"1": "true", "0": "false"}.get(word, word)
    if directive.is_raised and directive.minimum is not None and _is_number(word):
        return str(max(directive.minimum, int(word)))
    return word


def problem_of(directive: Directive, value: str) -> str:
    """Return what a directive's value may be, if it is something else; "" if it is allowed.

    Args:
        directive: of mosquitto.
        value: by `value_of`.
    """
    if directive.minimum is not None:
        if not _is_number(value) or not directive.minimum <= int(value) <= directive.maximum:
            return f"a whole number from {directive.minimum} to {directive.maximum}"
    elif directive.values and value not in directive.values:
        return " or ".join(directive.values)
    elif not value:
        return "a value"
    return ""


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal()
