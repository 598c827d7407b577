"""The command ``penstock record``, which records a running broker's clients and messages."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.broker.config.command_line import CommandLine, with_options
from penstock.broker.config.key_types import SIZE_ALLOWED, read_size, show_size
from penstock.broker.errors import PenstockError
from penstock.lanes.login import Login
from penstock.models.command_output import Topics
from penstock.models.recording.rows import FullError, MessageRow, RttRow, Writer

app = CommandLine()


@app.command()
@with_options(Login)
def record(
    login: Login,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the files.")],
    url: Annotated[
        str, typer.Option(help="Address of the broker: mqtt://HOST:PORT, mqtts:// with TLS.")
    ] = "mqtt://127.0.0.1:1883",
    topics: Topics = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="For how long; until Ctrl-C without it.")
    ] = None,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks at each client's path.")
    ] = 1.0,
    clients: Annotated[
        int, typer.Option(min=1, help="The most clients whose paths are looked at.")
    ] = 100,
    max_size: Annotated[
        str, typer.Option(help="End when the files are so large: 100 MB, 2 GiB.")
    ] = "100 MB",
    *,
    no_messages: Annotated[
        bool, typer.Option("--no-messages", help="Record paths alone, not sizes of messages.")
    ] = False,
    hide_names: Annotated[
        bool,
        typer.Option(
            "--hide-names", help="Replace client ids and topic levels by random-looking names."
        ),
    ] = False,
) -> None:
    """Record RTTs of a running broker's clients, and sizes and times of messages.

    Payloads are never recorded. `penstock plan --from-running FOLDER` plans for what was recorded.
    It ends with Ctrl-C, and what was recorded so far is kept.
    """
    from penstock.models.recording.recorder import Recorder, RecordingChoice  # noqa: PLC0415 - paho

    max_bytes = read_size(max_size)
    if not max_bytes:
        raise typer.BadParameter(
            f"read {max_size!r}; allowed: {SIZE_ALLOWED}", param_hint="--max-size"
        )
    # A shell without a terminal starts its background processes with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    filters = () if no_messages else tuple(topics or ["#"])
    wanted = RecordingChoice(filters, every, clients, hide_names)
    recorder: Recorder | None = None
    writer: Writer | None = None
    why = "the time is over"
    try:
        recorder = Recorder(url, login, wanted, lambda row: writer.take(row) if writer else None)
        recorder.open()
        writer = Writer(folder, max_bytes)
        recorder.run(math.inf if seconds is None else seconds, _say)
    except KeyboardInterrupt:
        why = "ended"
    except FullError:
        why = f"the files are as large as --max-size {max_size} allows"
    except (PenstockError, OSError) as error:
        _say(f"penstock record: {error}")
        raise typer.Exit(2) from None
    finally:
        if writer is not None:
            writer.close()
    if recorder is None or writer is None:  # Ctrl-C before it began
        raise typer.Exit(130)
    n_rtts, n_messages = writer.n_rows[RttRow], writer.n_rows[MessageRow]
    _say(
        f"{why}: {n_rtts:,} looks at {min(recorder.n_clients, clients):,} of"
        f" {recorder.n_clients:,} clients, {n_messages:,} messages, {show_size(writer.n_bytes)} in"
        f" {folder}"
    )
    if not n_rtts:
        _say(
            "no client's path was seen: that needs Penstock with a sys_interval above 0, a client"
            " beside the recorder, and one sys_interval of time"
        )


def _say(text: str) -> None:
    typer.echo(text, err=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        Exit status: 0, or 2 for wrong arguments and a broker that cannot be recorded.
    """
    return app.status(argv, "penstock record")


if __name__ == "__main__":
    sys.exit(main())
