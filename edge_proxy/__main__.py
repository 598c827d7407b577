"""``penstock proxy -c proxy.yaml``: runs the edge proxy until it is stopped."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.process.program import (
    Debug,
    LogLevel,
    exit_status,
    run_until_stopped,
    set_up_log,
)
from penstock.edge_proxy.sidecar.config import load_proxy_config
from penstock.edge_proxy.sidecar.sidecar import Sidecar

app = CommandLine()


@app.command()
def proxy(
    config: Annotated[str, typer.Option("-c", "--config", help="The proxy's file.")],
    log_level: LogLevel = "info",
    *,
    debug: Debug = False,
) -> None:
    """Run the edge proxy in front of any MQTT broker."""
    set_up_log(log_level, debug=debug)
    run_until_stopped(Sidecar(load_proxy_config(config)))


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: arguments after the program's name; None for those of the process.

    Returns:
        Exit status: 0 after a stop by signal, 2 for a mistake in arguments or proxy file.
    """
    return exit_status(app, argv, "penstock proxy")


if __name__ == "__main__":
    sys.exit(main())
