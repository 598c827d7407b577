"""Example files of configuration, read as they are and with the defaults that they show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from penstock.broker.config.checked_yaml import parse_mapping
from penstock.broker.config.key_types import read_size


def section(mapping: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Return what stands below some keys."""
    for key in keys:
        mapping = mapping.get(key) or {}
    return mapping


@cache
def shown(example: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return an example file as it is, and with its shown defaults set."""
    text = example.read_text()
    with_defaults = re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)
    return parse_mapping(text, example.name), parse_mapping(with_defaults, example.name)


def default_of(field: Field[Any]) -> Any:
    """Return a field's default behind what pydantic has wrapped it in; a section's as a dict."""
    if field.default is MISSING:
        assert field.default_factory is not MISSING
        default = field.default_factory()
    else:
        factory = getattr(field.default, "default_factory", None)
        default = getattr(field.default, "default", field.default)
        if factory is not None:
            default = factory()
    return asdict(default) if is_dataclass(default) and not isinstance(default, type) else default


def in_bytes(value: Any) -> Any:
    """Return a value with each text that is a size, in keys and values, as its number of bytes.

    A tuple becomes a list, as YAML has it.
    """
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {in_bytes(key): in_bytes(inner) for key, inner in value.items()}
    size = read_size(value) if isinstance(value, str) else None
    return value if size is None else size
