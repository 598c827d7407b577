"""``script/demo``: what Penstock does, on this machine's own data, in less than a minute."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console

from penstock.broker.config.command_line import CommandLine
from script.demo_program.display import Display
from script.demo_program.errors import DemoError
from script.demo_program.report import Result, commands, draw_latencies, print_result
from script.demo_program.run import Wishes, run
from script.demo_program.schedule import MAX_SECONDS, MIN_SECONDS

INTERRUPTED: Final = 130

app = CommandLine()


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=MIN_SECONDS, max=MAX_SECONDS, help="How long is published.")
    ] = 26.0,
    output: Annotated[
        Path, typer.Option(help="Folder for everything that is made; emptied first.")
    ] = Path("demo-output"),
    *,
    spark: Annotated[
        bool, typer.Option(help="Stream the telemetry into Parquet with Spark.")
    ] = True,
) -> None:
    """Show the broker at work: telemetry and pictures over a link that turns bad and good again."""
    console = Console()
    try:
        with Display(console) as display:
            result, places = run(Wishes(output, seconds, spark), display)
    except KeyboardInterrupt:
        sys.stderr.write("demo: stopped\n")
        raise typer.Exit(INTERRUPTED) from None
    picture = output / "latency.png"
    draw_latencies(result, picture)
    print_result(console, result)
    say_where(console, output, picture, result)
    if result.problems:
        for problem in result.problems:
            console.print(f"LOST: {problem}", style="bold red", highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    console.print(f"Nothing was lost. It took {result.seconds:.0f} s.", style="bold green")
    console.print("\nTo go on by hand:")
    for about, command in commands(places):
        console.print(f"  # {about}\n  {command}", highlight=False, soft_wrap=True, markup=False)


def say_where(console: Console, output: Path, picture: Path, result: Result) -> None:
    """Print what lies where."""
    places = [(picture, "latency over time"), (output / "pictures", "pictures as taken")]
    if result.ingested is not None:
        folder = output / "telemetry-data"
        places += [
            (output / "pipeline.yaml", "Spark's pipeline"),
            (folder / "messages", "messages"),
            (folder / "windows", "aggregates"),
        ]
    places += [(output / "broker.log", "what the broker said")]
    for place, about in places:
        console.print(f"{about}: {place}", highlight=False, soft_wrap=True)


def end(number: int, _frame: FrameType | None) -> None:
    """End in order on SIGTERM, as on Ctrl-C."""
    raise SystemExit(128 + number)


def main(argv: list[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: arguments; None for those of the process.

    Returns:
        0 where nothing was lost; 1 where something was, or the demo failed; 2 for a mistake
        that the user can mend; 130 after Ctrl-C.
    """
    signal.signal(signal.SIGTERM, end)
    try:
        return app.status(argv, "script/demo")
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
