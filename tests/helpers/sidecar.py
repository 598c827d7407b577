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
        ports: the ports of the TCP listeners, by name.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path, **options: Any) -> None:
        """Start a proxy and wait until it listens.

        Args:
            config: the proxy's file.
            folder: the folder in which the file is written.
            options: options of `subprocess.Popen`.
        """
        file = folder / "proxy.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        super().__init__(
            [sys.executable, "-m", "penstock", "proxy", "-c", str(file)], is_forked=True, **options
        )
        try:
            self.wait_for_log("serving the clients of the broker at ")
        except AssertionError:
            self.kill()
            raise
        found = re.findall(r"listener (\S+): listening on \S+:(\d+)$", self.log, re.MULTILINE)
        self.ports = {name: int(port) for name, port in found}

    @property
    def port(self) -> int:
        """The port of the listener `default`."""
        return self.ports["default"]

    def wait_for_account(self, client_id: str) -> str:
        """Wait until all that a client has sent was handled; return what became of its messages."""
        return self.wait_for_match(rf"client {client_id} \(.*left to the broker .*")[0]


def before(broker_port: int, **keys: Any) -> dict[str, Any]:
    """Return the file of a proxy with one listener.

    Args:
        broker_port: the port of the broker behind it.
        keys: further keys of the file.
    """
    return {
        "listener": {"bind": "127.0.0.1:0"},
        "upstream": {"address": f"127.0.0.1:{broker_port}"},
        **keys,
    }


@contextlib.contextmanager
def running_sidecar(
    config: Mapping[str, Any], folder: Path, **options: Any
) -> Iterator[SidecarProcess]:
    """Start a proxy; end it afterwards, and check that nothing went wrong in it.

    Args:
        config: the proxy's file.
        folder: the folder in which the file is written.
        options: options of `subprocess.Popen`.
    """
    proxy = SidecarProcess(config, folder, **options)
    try:
        yield proxy
    finally:
        if proxy.process.poll() is None:
            proxy.stop()
    assert "ERROR" not in proxy.log
    assert "Traceback" not in proxy.log
