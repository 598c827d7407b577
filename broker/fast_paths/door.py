"""Whether a broker has fast paths: the only module of this folder that others import."""

from __future__ import annotations

import os
from typing import Final

from penstock.broker.errors import PenstockError
from penstock.broker.fast_paths.fast_connection import FastConnection
from penstock.broker.fast_paths.fast_core import FastCore
from penstock.broker.receiving.connection import Connection
from penstock.broker.sessions.broker_state import Core

SWITCH: Final = "PENSTOCK_FAST_PATHS"
"""The environment variable that turns all fast paths off, with the value ``off``."""


class SwitchError(PenstockError):
    """`SWITCH` has a value that it does not know."""


def core_class() -> type[Core]:
    """Return the class of which a broker's core is made, with fast paths or without.

    The environment is read here, once for each core.

    Raises:
        SwitchError: the environment variable has another value than ``on`` or ``off``.
    """
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off"):
        raise SwitchError(f"{SWITCH}: read {value!r}; allowed: on, off")
    return FastCore if value == "on" else Core


def connection_class(core: Core) -> type[Connection]:
    """Return the class of the broker's side of a network connection.

    It has fast paths if the core has some that no plugin keeps from being taken.
    """
    has_fast_paths = isinstance(core, FastCore) and core.has_fast_paths
    return FastConnection if has_fast_paths else Connection
