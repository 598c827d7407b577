"""Fabrics of a test, whose machines are loopback addresses that no other test has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.netem.runs.broker_process import reserved_port


@contextlib.contextmanager
def machines(names: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield `nodes` of a nodes file: all servers are on 127.0.0.0/8, with Redis' own ports."""
    with reserved_port() as port:  # it is this test's alone, and so are the addresses
        network = f"127.{port >> 8}.{port & 255}"
        yield {name: {"address": f"{network}.{at + 1}"} for at, name in enumerate(names)}


def write_nodes_file(folder: Path, nodes: Mapping[str, Any], **keys: Any) -> str:
    """Write a nodes file; return its name."""
    content = {"maxmemory": "64 MiB", "cluster_node_timeout": 1.0, "nodes": dict(nodes), **keys}
    file = folder / "nodes.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(file)
