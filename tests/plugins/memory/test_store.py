from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config.checked_yaml import validate_config
from penstock.broker.errors import ConfigError
from penstock.broker.extensions import PluginContext
from penstock.plugins.memory.config import MemoryConfig
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.store import CopyStore, MemoryPlugin
from tests.helpers.clock import Clock


def made(**keys: Any) -> MemoryPlugin:
    """Return the plugin as a policy file with these keys makes it."""
    config = validate_config(MemoryConfig, keys, "policy.yaml", "plugins.memory")
    context = PluginContext(logging.getLogger("test"), "policy.yaml", Clock())
    return MemoryPlugin(config, context)


def test_the_store_is_the_one_that_the_policy_names(tmp_path: Path) -> None:
    """By default it is the broker's own, by reference."""
    assert made().payload_store is None
    assert made(store="reference").payload_store is None
    assert isinstance(made(store="copy").payload_store, CopyStore)
    store = made(store="spill", memory_limit="1 MB", directory=str(tmp_path)).payload_store
    assert isinstance(store, SpillStore)
    kept = [store.keep(bytes(100_000)) for _ in range(20)]
    assert store.memory_bytes <= 1_000_000
    assert store.memory_bytes + store.disk_bytes == 2_000_000
    assert len(kept) == 20


async def test_two_brokers_may_share_a_directory(tmp_path: Path) -> None:
    """Their files have no names, so neither sees the other's."""
    plugins = [made(store="spill", memory_limit=0, directory=str(tmp_path)) for _ in range(2)]
    kept = []
    for plugin, letter in zip(plugins, (b"a", b"b"), strict=True):
        await plugin.start()
        assert isinstance(plugin.payload_store, SpillStore)
        kept.append(plugin.payload_store.keep(letter * 5000))
    assert [payload.read() for payload in kept] == [b"a" * 5000, b"b" * 5000]


async def test_a_directory_that_takes_no_file_ends_the_start(tmp_path: Path) -> None:
    """The place in the policy file, what was read and what is allowed are named."""
    await made(store="reference", directory=str(tmp_path / "none")).start()
    with pytest.raises(ConfigError) as caught:
        await made(store="spill", directory=str(tmp_path / "none")).start()
    told = str(caught.value)
    assert "plugins.memory.directory" in told
    assert f"{tmp_path / 'none'}: No such file or directory" in told
    assert "a directory that is there" in told
