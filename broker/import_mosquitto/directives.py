"""Every directive of mosquitto 2.0 and 2.1, with its scope, its values and its fate.

The table of them is `directives.yaml`. A directive without a note is carried over by
`penstock.broker.import_mosquitto.translate`. One with a note has no counterpart; the note says why,
and what comes nearest.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.checked_yaml import read_mapping, read_text
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.import_mosquitto.conf_file import Line, Settings, parse_lines

NO_MAXIMUM: Final = 2**31 - 1
"""The maximum of C's int, in which mosquitto keeps numbers."""


class Place(Enum):
    """The scope of a directive."""

    GLOBAL = "the broker"
    LISTENER = "the listener above it"
    SECURITY = "every listener, or with per_listener_settings the one above it"
    BRIDGE = "the bridge above it"


class Loosens(Enum):
    """The part that the importer closes, as it would be more open without the directive."""

    NOTHING = "nothing"
    LISTENER = "the listener is left out"
    BRIDGE = "the bridge is left out"
    ACCESS = "no client is let in"


@checked_dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Directive:
    """One directive.

    Attributes:
        values: the allowed words; () for any text.
        minimum: the least number that is allowed; None where the value is no number.
        is_raised: a number below `minimum` counts as the minimum.
        may_repeat: whether it may be given several times in one place; where it is carried over,
            the last one takes effect.
        note: why it has no counterpart and what comes nearest; "" where it is carried over.
        same: values with which Penstock does the same anyway, so that no note is needed.
        loosens: the part that is closed because the directive has no counterpart.
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

DIRECTIVES: Final = {
    name: Directive(Place(place), **(keys or {}))
    for place, directives in read_mapping(Path(__file__).with_suffix(".yaml")).items()
    for name, keys in directives.items()
}
"""Every directive by its name; a ``*`` at the end of a name stands for any text."""

_ALIASES: Final = {
    "addresses": "address",
    "clientid": "remote_clientid",
    "maximum_qos": "max_qos",
    "password": "remote_password",
    "retained_persistence": "persistence",
    "username": "remote_username",
}
"""The newest name of a directive, by an older one."""

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


def loosening(settings: Settings, loosens: Loosens) -> list[tuple[Line, str]]:
    """Return the lines that close a listener or a bridge, each with the reason."""
    return [
        (line, directive.note)
        for line in settings.values()
        if (directive := find(line.name)) is not None
        and directive.loosens is loosens
        and line.value not in directive.same
    ]


def is_number(text: str, least: int = 0, most: int = NO_MAXIMUM) -> bool:
    """Say whether a text is a whole number within limits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and least <= int(text) <= most


TLS_VERSIONS: Final = {"tlsv1.3": 1.3, "tlsv1.2": 1.2, "tlsv1.1": 1.2}
"""Penstock's least version of TLS for each of mosquitto's."""

NO_TLS_1_1: Final = "TLS 1.1 is broken; 1.2 is the oldest"


def is_mosquitto_conf(file: str) -> bool:
    """Say whether a file looks like a mosquitto.conf: most lines begin with a directive."""
    try:
        if not Path(file).is_file():
            return False
        lines = parse_lines(read_text(file, has_comments=True), file)
    except (ConfigError, OSError):  # such as for a directory of another user
        return False
    return 2 * sum(find(line.name) is not None for line in lines) > len(lines)


def mosquitto_conf_error(file: str) -> ConfigError | None:
    """Return what to say of a mosquitto.conf in a policy file's place; None if it looks like none.

    Nothing else tells somebody who comes from mosquitto that there is a command for it.
    """
    if not is_mosquitto_conf(file):
        return None
    allowed = "a policy file; penstock import-mosquitto makes one of it"
    return ConfigError(file, [ConfigProblem("file", "a mosquitto.conf", allowed)])


def value_of(directive: Directive, text: str) -> str:
    """Return the value as mosquitto reads it: for a flag, number or word the first on the line."""
    if directive.minimum is None and not directive.values:
        return text
    word = text.partition(" ")[0]
    if directive.values == _FLAG:
        return {"1": "true", "0": "false"}.get(word, word)
    if directive.is_raised and directive.minimum is not None and is_number(word, -NO_MAXIMUM):
        return str(max(directive.minimum, int(word)))
    return word


def problem_of(directive: Directive, value: str) -> str:
    """Return what a directive's value may be, if it is something else; "" if it is allowed."""
    if directive.minimum is not None:
        if not is_number(value, directive.minimum, directive.maximum):
            return f"a whole number from {directive.minimum} to {directive.maximum}"
    elif directive.values and value not in directive.values:
        return " or ".join(directive.values)
    elif not value:
        return "a value"
    return ""
