"""``penstock why CLIENT_ID`` shows why a client's last large message was held or sent.

Without a client it is the state of an edge proxy: which of the broker's addresses are up, and what
waits.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine, exit_status, with_options
from penstock.plugins.console.commands.options import ConsoleOptions
from penstock.plugins.console.report_text import describe, describe_proxy

app = CommandLine()


@app.command()
@with_options(ConsoleOptions)
def why(
    options: ConsoleOptions,
    client_id: Annotated[
        str | None, typer.Argument(help="Client Identifier; absent: the state of a proxy.")
    ] = None,
) -> None:
    """Show why a client's last large message was held or sent.

    Without a client, show the state of a proxy.
    """
    console = options.console()
    if client_id is None:
        state = console.get("proxy")
        options.show(console, state, lambda: describe_proxy(state))
    else:
        report = console.client(client_id)
        options.show(console, report, lambda: describe(report))


main = partial(exit_status, app, "penstock why")
