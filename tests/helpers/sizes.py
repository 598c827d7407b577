"""Sizes in example files."""

from __future__ import annotations

from typing import Any

from penstock.broker.config.key_types import read_size


def in_bytes(value: Any) -> Any:
    """Return a value with each text that is a size, in keys and values, as its number of bytes."""
    if isinstance(value, dict):
        return {in_bytes(key): in_bytes(inner) for key, inner in value.items()}
    size = read_size(value) if isinstance(value, str) else None
    return value if size is None else size
