"""Penstock: an MQTT broker, its plugins, an edge proxy, networks to test on and a Spark bridge.

In a checkout the packages below are links to the folders at its root. What applications use is
here by a name of its own, and imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_HOMES: Final = {
    "QueueClient": "penstock.plugins.queue.client",
    "QueueError": "penstock.plugins.queue.client",
}
"""Public name to the module that holds it."""

__all__ = ["QueueClient", "QueueError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - loads sockets and threads

        return version("penstock-mqtt")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
