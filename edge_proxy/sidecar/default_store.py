"""The default payload store of the proxy: memory, then files of bounded size.

Withheld messages of many clients are more than a process should keep in memory unasked, and less
than a disk has. So the store spills, as the plugin `memory` does with ``store: spill``. The plugin
replaces it.
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
"""Most bytes in files: a thousand different pictures of 1 MB, which suffice for 50 clients with
mosquitto's window of 20 messages withheld, all different. They fill no ordinary disk."""

DIRECTORY: Final = "/var/tmp"  # noqa: S108 (the files have no name)
"""Directory for temporary files on a disk; /tmp is in memory on many systems."""


def choose_store(plugins: LoadedPlugins, logger: logging.Logger) -> PayloadStore | None:
    """Return the store of the proxy's file, else the default one; None for memory alone."""
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
