"""Where payloads wait if the proxy's file says nothing: in memory, then in files of bounded size.

A window of withheld messages, of many clients, is more than a process may hold in memory unasked,
and less than what a disk has. So the store spills, as the plugin `memory` does with ``store:
spill``; the plugin replaces it.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from penstock.broker.extensions import PayloadStore
from penstock.broker.plugin_loader import LoadedPlugins
from penstock.plugins.memory.config import DEFAULT_MEMORY_LIMIT
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.spill_file import SpillFile
from penstock.plugins.memory.store import MemoryPlugin

DISK_LIMIT: Final = 10**9
"""Bytes. A thousand different pictures of 1 MB, each once for all clients: enough for 50 clients
that have mosquitto's window of 20 withheld, all different; no system runs full from it."""

DIRECTORY: Final = "/var/tmp"  # noqa: S108 (the files have no name)
"""For temporary files on a disk: /tmp is in memory on many systems, which would save none."""


def choose_store(plugins: LoadedPlugins, logger: logging.Logger) -> PayloadStore | None:
    """Return the store of the proxy's file, else the default one; None for memory alone.

    Args:
        plugins: of the proxy's file.
        logger: for what an operator should know.
    """
    if any(isinstance(plugin, MemoryPlugin) for plugin in plugins.plugins):
        return plugins.payload_store
    return plugins.payload_store or _make_default_store(logger)


def _make_default_store(logger: logging.Logger) -> SpillStore:
    """Return the default store, and log where it keeps payloads."""
    directory = os.environ.get("TMPDIR") or DIRECTORY
    file = SpillFile(directory, DISK_LIMIT)
    try:
        file.check()
    except OSError as error:
        logger.warning(
            "payloads that wait take %d bytes of memory at most, and no files: %s: %s; the plugin "
            "memory sets another directory",
            DEFAULT_MEMORY_LIMIT,
            directory,
            error.strerror,
        )
    else:
        logger.info(
            "payloads beyond %d bytes of memory wait in files in %s, up to %d bytes; the plugin "
            "memory changes that",
            DEFAULT_MEMORY_LIMIT,
            directory,
            DISK_LIMIT,
        )
    return SpillStore(DEFAULT_MEMORY_LIMIT, file, logger)
