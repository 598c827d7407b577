"""The command ``script/demo``: Penstock with this machine's own data, in under a minute."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console

from penstock.broker.config.command_line import CommandLine
from penstock.netem.figures.figure_file import begin, check_writable, write_figure_file
from script.demo_program.cluster import run_cluster
from script.demo_program.display import Display
from script.demo_program.errors import DemoError
from script.demo_program.report import (
    WITHOUT,
    Result,
    commands,
    draw_latencies,
    figure_tables,
    print_result,
    ratio_to_without,
)
from script.demo_program.run import Wishes, run
from script.demo_program.schedule import MAX_SECONDS, MIN_SECONDS

INTERRUPTED: Final = 130

MACHINES_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")

app = CommandLine()


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(min=MIN_SECONDS, max=MAX_SECONDS, help="How long is published.")
    ] = 26.0,
    output: Annotated[
        Path, typer.Option(help="Folder for everything that is made; emptied first.")
    ] = Path("demo-output"),
    congestion_control: Annotated[
        str | None,
        typer.Option(
            help="Of the brokers' connections, such as cubic or bbr. [default: the machine's]"
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the latencies into this file, for a page.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them into this PNG file, too.")] = None,
    *,
    spark: Annotated[
        bool, typer.Option(help="Stream the telemetry into Parquet with Spark.")
    ] = True,
    haproxy: Annotated[
        bool, typer.Option("--haproxy", help="Put HAProxy between the brokers and the link.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Show another demo: kill one of three brokers.")
    ] = False,
) -> None:
    """Show the broker at work: telemetry and pictures over a link that turns bad and good again."""
    if cluster:
        if figures or plot or congestion_control or haproxy or not spark:
            raise typer.BadParameter("allowed with it: --seconds, --output", param_hint="--cluster")
        if run_cluster(output, seconds, Console()):
            raise typer.Exit(1)
        return
    for name, file in (("--figures", figures), ("--plot", plot)):
        if file is not None:
            try:
                check_writable(file)
            except OSError as error:
                raise typer.BadParameter(f"{file}: {error}", param_hint=name) from error
    origin = begin(shlex.join(["script/demo", *sys.argv[1:]]))
    console = Console()
    wishes = Wishes(output, seconds, spark, congestion_control, haproxy)
    try:
        with Display(console) as display:
            result, places = run(wishes, display)
    except KeyboardInterrupt:
        sys.stderr.write("demo: stopped\n")
        raise typer.Exit(INTERRUPTED) from None
    picture = output / "latency.png"
    for file in (picture, plot):
        if file is not None:
            draw_latencies(result, file)
    if figures is not None:
        control = congestion_control or MACHINES_CONTROL.read_text().strip()
        write_figure_file(figures, origin, figure_tables(result.sides, control))
    print_result(console, result)
    say_where(console, output, picture, result)
    told = [f"LOST: {problem}" for problem in result.problems]
    told += [f"NOT PROTECTED: {problem}" for problem in result.too_slow]
    for line in told:
        console.print(line, style="bold red", highlight=False, soft_wrap=True)
    if told:
        raise typer.Exit(1)
    ratios = ", ".join(
        f"{side.name} {ratio_to_without(side, result.sides):.2f}"
        for side in result.sides
        if side.name != WITHOUT
    )
    console.print(
        "Nothing was lost. Small messages on the bad link, p90 over that without: "
        f"{ratios}. It took {result.seconds:.0f} s.",
        style="bold green",
        soft_wrap=True,
    )
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

    Returns:
        0 where nothing was lost and small messages were protected; 1 where not, or where the demo
        failed; 2 for a mistake that the user can mend; 130 after Ctrl-C.
    """
    signal.signal(signal.SIGTERM, end)
    try:
        return app.status(argv, "script/demo")
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
