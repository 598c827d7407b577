from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker.extensions import PayloadStore
from penstock.broker.plugin_loader import load_plugins
from penstock.edge_proxy.sidecar.config import parse_proxy_config
from penstock.edge_proxy.sidecar.default_store import choose_store
from penstock.plugins.memory.spill import SpillStore
from penstock.plugins.memory.store import CopyStore

LOGGER = logging.getLogger("test.proxy")


def chosen(memory: str) -> PayloadStore | None:
    """Return the store of a proxy's file with some keys of the plugin `memory`."""
    text = f"upstream: {{address: a}}\nplugins: {{{memory}}}"
    return choose_store(load_plugins(parse_proxy_config(text, "f"), is_proxy=True), LOGGER)


def test_without_the_plugin_payloads_go_to_files_beyond_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says where they are, how many, and what changes that; TMPDIR says another place."""
    caplog.set_level("INFO")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = chosen("")
    assert isinstance(store, SpillStore)
    kept = store.keep(bytes(64_000_000))
    assert (store.disk_bytes, kept.read_piece(0)[:1]) == (64_000_000, b"\0")
    assert f"payloads beyond 64000000 bytes of memory wait in files in {tmp_path}" in caplog.text


def test_without_a_place_for_files_memory_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The proxy starts, and a payload beyond the limit is refused."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    store = chosen("")
    assert isinstance(store, SpillStore)
    assert "no files" in caplog.text
    with pytest.raises(OSError, match="none"):
        store.keep(bytes(64_000_000))


@pytest.mark.parametrize(
    ("keys", "kind"), [("reference", type(None)), ("copy", CopyStore), ("spill", SpillStore)]
)
def test_the_plugin_decides_where_it_is_named(keys: str, kind: type) -> None:
    """Also for memory alone, where it brings no store."""
    assert isinstance(chosen(f"memory: {{store: {keys}}}"), kind)
