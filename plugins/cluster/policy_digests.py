"""Digests of a policy file and of the files of users, by which nodes see that theirs differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

OF_A_NODE: Final = frozenset({"listeners", "log", "persistence", "cluster"})
"""Keys that may differ."""
OF_ONE_NODE: Final = "plugins.uplink"
"""What one node has for all: a second one would pass each message once more."""
_OF_USERS: Final = ("password_file", "acl_file", "scram_file")
_DIGITS: Final = 12


def policy_digests(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each section of a policy file, by its keys."""
    plugins = keys.get("plugins")
    sections = {name: value for name, value in keys.items() if name != "plugins"}
    if isinstance(plugins, dict):
        sections |= {f"plugins.{name}": value for name, value in plugins.items()}
    return {
        name: _digest(json.dumps(_common(value), default=str).encode())
        for name, value in sections.items()
        if name not in OF_A_NODE
    }


def file_digests(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each file of users and topics that a policy file names, by its key.

    One that cannot be read has an empty digest: the plugin `access` says what is wrong with it.
    """
    return {key: _file_digest(file) for key, file in _files_of_users(keys)}


def _files_of_users(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plugins = keys.get("plugins")
    access = plugins.get("access") if isinstance(plugins, dict) else None
    if not isinstance(access, dict):
        return
    sections = {"plugins.access": access}
    listeners = access.get("listeners")
    if isinstance(listeners, dict):
        sections |= {f"plugins.access.listeners.{name}": one for name, one in listeners.items()}
    for path, rules in sections.items():
        for key in _OF_USERS:
            if isinstance(rules, dict) and isinstance(rules.get(key), str):
                yield f"{path}.{key}", rules[key]


def _file_digest(file: str) -> str:
    try:
        return _digest(Path(file).read_bytes())
    except OSError:
        return ""


def _digest(read: bytes) -> str:
    return hashlib.sha256(read).hexdigest()[:_DIGITS]


def _common(keys: Any) -> Any:
    """Return the keys of a section without the address that it listens at."""
    if not isinstance(keys, dict):
        return keys
    return {key: value for key, value in keys.items() if key != "http"}


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the sections or files that differ, as text; "" for none."""
    names = {*own, *other} - {OF_ONE_NODE}
    return ", ".join(sorted(name for name in names if own.get(name) != other.get(name)))
