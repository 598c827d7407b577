"""``penstock spark``: stream a queue into Parquet, with windowed aggregates of its telemetry."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.spark_bridge.errors import BridgeError, OptionError
from penstock.spark_bridge.java import Java, find_java
from penstock.spark_bridge.options import SourceOptions, read_options
from penstock.spark_bridge.sink_folder import held_folders

if TYPE_CHECKING:
    from penstock.spark_bridge.pipeline import PipelineOptions, Summary

AVAILABLE_NOW: Final = "available-now"
PROGRAM: Final = "penstock spark"

app = CommandLine()
preparing = CommandLine()


class StopSignals:
    """Counts SIGINT and SIGTERM: one ends the run in good order, a second one ends it at once."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Handle the two signals in place of Spark, which would fail the queries on them."""
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1


def read_trigger(text: str) -> float | None:
    """Return the seconds between two micro-batches; None for ``available-now``.

    Raises:
        OptionError: the text is neither.
    """
    if text == AVAILABLE_NOW:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise OptionError(
            f"--trigger: read {text!r}; allowed: {AVAILABLE_NOW} or a number of seconds above 0"
        )
    return seconds


def read_pairs(option: str, texts: list[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` texts as a dictionary.

    Raises:
        OptionError: a text has no name or no equals sign.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"{option}: read {text!r}; allowed: NAME=VALUE")
        pairs[name] = value
    return pairs


def describe(summary: Summary) -> str:
    """Return the counts of a run on one line."""
    messages, batches = summary.ingested_messages, summary.micro_batches
    seconds = summary.ingest_seconds
    parts = [f"ingested {messages:,} messages in {batches:,} micro-batches, {seconds:,.1f} s"]
    if summary.aggregated_messages:
        parts.append(f"aggregated {summary.aggregated_messages:,}")
        parts += [f"{name} {count:,}" for name, count in summary.problems.items() if count]
    if summary.late_groups:
        parts.append(f"late groups dropped {summary.late_groups:,}")
    return ", ".join(parts)


@app.command()
def stream(
    url: Annotated[str, typer.Option(help="The queue's HTTP API, as http://HOST:PORT.")],
    queue: Annotated[str, typer.Option(help="The logical queue.")],
    output: Annotated[Path, typer.Option(help="Directory of the messages' Parquet files.")],
    checkpoint: Annotated[
        Path, typer.Option(help="Directory that says how far the queue was read; keep it.")
    ],
    aggregate: Annotated[
        Path | None, typer.Option(help="Directory of telemetry aggregates; none without it.")
    ] = None,
    trigger: Annotated[
        str, typer.Option(help=f"{AVAILABLE_NOW}, or SECONDS between two micro-batches.")
    ] = AVAILABLE_NOW,
    window_seconds: Annotated[
        float, typer.Option(min=0.001, help="Length of an aggregation window.")
    ] = 10.0,
    lateness_seconds: Annotated[
        float, typer.Option(min=0, help="How late telemetry may come and still count.")
    ] = 10.0,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the source, as NAME=VALUE.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, as NAME=VALUE.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the run's counts to this file, as JSON.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Spark's log; spark.log beside the checkpoints by default.")
    ] = None,
    *,
    short_run: Annotated[
        bool,
        typer.Option(
            "--short-run",
            help=f"The run ends within minutes: start sooner, at the cost of peak speed. "
            f"So it is with {AVAILABLE_NOW} anyway.",
        ),
    ] = False,
) -> None:
    """Stream a queue into Parquet, each message exactly once.

    With a number of seconds as trigger, the run reads the waiting messages and ends after the first
    SIGINT or SIGTERM; a second one ends it at once and leaves the rest in the queue.
    """
    source = read_options(read_pairs("--option", option or []) | {"url": url, "queue": queue})
    settings = read_pairs("--conf", conf or [])
    trigger_seconds = read_trigger(trigger)
    java = find_java(os.environ)
    check_queue(source)

    from penstock.spark_bridge.pipeline import PipelineOptions  # noqa: PLC0415 - Spark takes a while

    options = PipelineOptions(
        source=source,
        output=output,
        checkpoint=checkpoint,
        aggregate=aggregate,
        window_seconds=window_seconds,
        lateness_seconds=lateness_seconds,
        trigger_seconds=trigger_seconds,
    )
    folders = (output, checkpoint, *([aggregate] if aggregate else []))
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    log_file = log or checkpoint / "spark.log"
    with held_folders(folders):
        try:
            summary = run(
                options,
                java,
                master,
                settings,
                log_file,
                short_run=short_run or trigger_seconds is None,
            )
        except BridgeError as error:
            error.text += f" (Spark's log: {log_file})"
            raise
    typer.echo(f"{PROGRAM}: done: {describe(summary)}")
    if report is not None:
        report.write_text(json.dumps(asdict(summary), indent=1) + "\n")


def check_queue(source: SourceOptions) -> None:
    """Ask for the queue once, before Spark takes seconds to start.

    Raises:
        QueueUnavailableError: it does not answer, or has no such queue.
    """
    from penstock.spark_bridge.queue_reader import QueueReader  # noqa: PLC0415 - needs the extra, as Spark

    reader = QueueReader(source)
    try:
        reader.held()
    finally:
        reader.close()


def run(
    options: PipelineOptions,
    java: Java,
    master: str,
    settings: dict[str, str],
    log_file: Path,
    *,
    short_run: bool,
) -> Summary:
    """Start Spark, run the pipeline and stop Spark."""
    from penstock.spark_bridge import pipeline, session  # noqa: PLC0415 - Spark takes a while

    archive = session.class_archive_path(java, os.environ)
    spark_session = session.build_session(
        master,
        java_settings=session.java_options(short_run=short_run, archive=archive),
        settings=settings,
        log_file=log_file,
    )
    signals = StopSignals()
    signals.install()
    typer.echo(
        f"{PROGRAM}: Spark {spark_session.version} on Java {java.version}, {master}: "
        f"queue {options.source.queue!r} at {options.source.url} to {options.output}"
    )
    try:
        return pipeline.run(
            spark_session,
            options,
            stop_requests=lambda: signals.count,
            on_progress=lambda summary: typer.echo(f"{PROGRAM}: {describe(summary)}"),
        )
    finally:
        spark_session.stop()


@preparing.command()
def prepare() -> None:
    """Write the archive that halves Spark's start time, once per machine."""
    java = find_java(os.environ)

    from penstock.spark_bridge import class_archive, session  # noqa: PLC0415 - Spark takes a while

    archive = session.class_archive_path(java, os.environ)
    class_archive.write_class_archive(archive)
    typer.echo(f"{PROGRAM}: {archive}, {archive.stat().st_size // 1_000_000} MB")


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    Args:
        argv: arguments; None for those of the process. ``prepare`` alone writes the class archive.

    Returns:
        0; 1 where a query failed, the queue did not answer or a folder cannot be written; 2 for
        wrong arguments or no Java.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if arguments[:1] == ["prepare"]:
            return preparing.status(arguments[1:], f"{PROGRAM} prepare")
        return app.status(arguments, PROGRAM)
    except BridgeError as error:
        typer.echo(f"{PROGRAM}: {error.text}", err=True)
        return error.status
    except OSError as error:
        typer.echo(f"{PROGRAM}: cannot write {error.filename}: {error.strerror}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
