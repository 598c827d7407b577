"""The plugin `memory` selects where the broker keeps the payloads of waiting messages."""

from __future__ import annotations

from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.extensions import PayloadStore, Plugin, PluginContext
from penstock.broker.payload import Payload
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.spill_file import SpillFile


class CopyStore(PayloadStore):
    """Keeps a copy of a payload in memory for each subscriber: the baseline of paper 002."""

    def copy(self, payload: Payload) -> Payload:
        """Return a copy of the bytes."""
        return bytes(memoryview(payload if isinstance(payload, bytes) else payload.read()))


class MemoryPlugin(Plugin):
    """Provides the payload store that the policy file names.

    Attributes:
        payload_store: the store; None for the broker's own, which keeps payloads by reference.
    """

    Config = MemoryConfig

    def __init__(self, config: MemoryConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._file = SpillFile(config.directory, config.disk_limit)
        stores: dict[str, PayloadStore | None] = {
            "reference": None,
            "copy": CopyStore(),
            "spill": SpillStore(config.memory_limit, self._file, context.logger),
        }
        self.payload_store = stores[config.store]

    async def start(self) -> None:
        """Check that payloads could be written to files.

        Raises:
            ConfigError: no file can be created in the directory.
        """
        if not isinstance(self.payload_store, SpillStore):
            return
        try:
            self._file.check()
        except OSError as error:
            problem = ConfigProblem(
                "plugins.memory.directory",
                f"{self.config.directory}: {error.strerror}",
                "a directory that is there, where this user may write",
            )
            raise ConfigError(self.context.policy_file, [problem]) from error
