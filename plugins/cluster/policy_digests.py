"""Digests of a policy file, by which nodes see that theirs differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

OF_A_NODE: Final = frozenset({"listeners", "log", "persistence", "cluster"})
"""Keys that may differ."""
OF_ONE_NODE: Final = "plugins.uplink"
"""What one node has for all: a second one would pass each message once more."""


def policy_digests(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each section of a policy file, by its keys."""
    plugins = keys.get("plugins")
    sections = {name: value for name, value in keys.items() if name != "plugins"}
    if isinstance(plugins, dict):
        sections |= {f"plugins.{name}": value for name, value in plugins.items()}
    return {
        name: hashlib.sha256(json.dumps(_common(value), default=str).encode()).hexdigest()[:12]
        for name, value in sections.items()
        if name not in OF_A_NODE
    }


def _common(keys: Any) -> Any:
    """Return the keys of a section without the address that it listens at."""
    if not isinstance(keys, dict):
        return keys
    return {key: value for key, value in keys.items() if key != "http"}


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the sections that differ, as text; "" for none."""
    names = {*own, *other} - {OF_ONE_NODE}
    return ", ".join(sorted(name for name in names if own.get(name) != other.get(name)))
