"""``penstock proxy -c proxy.yaml``: runs the edge proxy until it is stopped.

With ``--mode edge`` it runs the broker of a site with an uplink (`penstock.edge_proxy.uplink`).
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Annotated, Final

import typer

from penstock.broker.config.command_line import CommandLine, exit_status
from penstock.broker.config.policy import Policy, load_policy
from penstock.broker.errors import ConfigError, ConfigProblem
from penstock.broker.process.program import Debug, LogLevel, run_until_stopped, set_up_log, take_log
from penstock.broker.server import Server
from penstock.edge_proxy.sidecar.config import load_proxy_config
from penstock.edge_proxy.sidecar.sidecar import Sidecar

app = CommandLine()

MODES: Final = ("sidecar", "edge")

UPLINK: Final = "uplink"
"""Name of the plugin that ``--mode edge`` requires."""


@app.command()
def proxy(
    config: Annotated[
        str,
        typer.Option(
            "-c",
            "--config",
            help="The proxy's file, at least \"upstream: {address: 'HOST:PORT'}\"; with --mode "
            "edge, a policy file with the plugin uplink: 'penstock init' writes one to begin with.",
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            help="sidecar: in front of any MQTT broker; edge: a site's broker with an uplink."
        ),
    ] = MODES[0],
    log_level: LogLevel = None,
    *,
    debug: Debug = False,
    is_check: Annotated[
        bool, typer.Option("--check", help="Say what a start would find, and change nothing.")
    ] = False,
) -> None:
    """Run the edge proxy: in front of any MQTT broker, or as the broker of a site."""
    if mode not in MODES:
        raise typer.BadParameter(f"read {mode!r}; allowed: {', '.join(MODES)}", param_hint="--mode")
    set_up_log("error" if is_check else log_level, debug=debug)
    if is_check:
        service = sidecar(config) if mode == "sidecar" else edge_broker(config)
        raise typer.Exit(asyncio.run(service.check()).tell("penstock proxy", config))
    if mode == "sidecar":
        service = sidecar(config)
        take_log(load_proxy_config(config).keys.log, log_level, debug=debug)
        run_until_stopped(service)
        return
    take_log(load_policy(config).log, log_level, debug=debug)
    run_until_stopped(edge_broker(config))


def sidecar(file: str) -> Sidecar:
    """Return the proxy in front of a broker, by its file.

    Raises:
        ConfigError: the file is wrong.
    """
    return Sidecar(load_proxy_config(file), read_config=partial(load_proxy_config, file))


def edge_broker(file: str) -> Server:
    """Return the broker of a site, by a policy file that names the plugin ``uplink``.

    Raises:
        ConfigError: it does not, or is wrong in another way.
    """
    return Server(_edge_policy(file), read_policy=partial(_edge_policy, file))


def _edge_policy(file: str) -> Policy:
    policy = load_policy(file)
    if UPLINK not in policy.plugins:
        problem = ConfigProblem(
            "plugins", "no plugin uplink", "uplink, with the connection to the cloud's broker"
        )
        raise ConfigError(file, [problem])
    return policy


main = partial(exit_status, app, "penstock proxy")


if __name__ == "__main__":
    sys.exit(main())
