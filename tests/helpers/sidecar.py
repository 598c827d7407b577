"""The sidecar as a process of a test."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.helpers.process import Program


class SidecarProcess(Program):
    """``penstock proxy -c FILE`` and its log.

    Attributes:
        ports: of the TCP listeners, by name.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        """Start a proxy and wait until it listens.

        Args:
            config: the proxy's file.
            folder: where the file is written.
        """
        file = folder / "proxy.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        super().__init__(
            [sys.executable, "-m", "penstock", "proxy", "-c", str(file)], is_forked=True
        )
        try:
            self.wait_for_log("serving the clients of the broker at ")
        except AssertionError:
            self.kill()
            raise
        found = re.findall(r"listener (\S+): listening on \S+:(\d+)$", self.log, re.MULTILINE)
        self.ports = {name: int(port) for name, port in found}


@contextlib.contextmanager
def running_sidecar(config: Mapping[str, Any], folder: Path) -> Iterator[SidecarProcess]:
    """Start a proxy; end it afterwards, and check that nothing went wrong in it."""
    proxy = SidecarProcess(config, folder)
    try:
        yield proxy
    finally:
        if proxy.process.poll() is None:
            proxy.stop()
    assert "ERROR" not in proxy.log
    assert "Traceback" not in proxy.log
