"""``penstock proxy -c proxy.yaml``: run the edge proxy until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from typing import Annotated

import typer

from broker.errors import PenstockError
from broker.log_lines import log_to_stderr
from edge_proxy.config import ProxyConfig, load_proxy_config
from edge_proxy.sidecar import Sidecar

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def proxy(
    config: Annotated[str, typer.Option("-c", "--config", help="The proxy's file.")],
    log_level: Annotated[
        str, typer.Option(envvar="PENSTOCK_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    *,
    debug: Annotated[bool, typer.Option("-d", help="The same as --log-level debug.")] = False,
) -> None:
    """Run the edge proxy in front of any MQTT broker."""
    name = "DEBUG" if debug else log_level.upper()
    if name not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise typer.BadParameter(
            f"read {log_level!r}; allowed: debug, info, warning, error", param_hint="--log-level"
        )
    log_to_stderr(name)
    read = load_proxy_config(config)
    loop_factory = None
    with contextlib.suppress(ImportError):  # there is none for Windows
        import uvloop  # noqa: PLC0415

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve(read))


async def serve(config: ProxyConfig) -> None:
    """Run a proxy until SIGINT or SIGTERM.

    Raises:
        PenstockError: it cannot start.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    sidecar = Sidecar(config)
    await sidecar.start()
    # What lives from here to the end need not be looked at by the collector again.
    gc.collect()
    gc.freeze()
    await stopped.wait()
    await sidecar.stop()


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: arguments after the program's name; None for those of the process.

    Returns:
        Exit status: 0 after a stop by signal, 2 for a mistake in arguments or proxy file.
    """
    try:
        app(args=argv, prog_name="penstock proxy")
    except PenstockError as error:
        sys.stderr.write(f"penstock proxy: {error}\n")
        return 2
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
