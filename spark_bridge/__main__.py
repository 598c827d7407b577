"""``penstock spark``: run pipelines on queues, or stream a queue into Parquet as it is."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from penstock.broker.config.command_line import CommandLine
from penstock.broker.errors import ConfigError
from penstock.spark_bridge.errors import BridgeError, JavaGoneError, OptionError
from penstock.spark_bridge.java import Java, find_java
from penstock.spark_bridge.options import (
    DEFAULT_WAIT_SECONDS,
    SourceOptions,
    read_bytes,
    read_options,
)
from penstock.spark_bridge.pipelines.config import (
    AVAILABLE_NOW,
    EXAMPLE_QUEUE,
    EXAMPLE_URL,
    Sink,
    as_texts,
    example_text,
    read_pipeline,
)
from penstock.spark_bridge.sink_folder import (
    check_nesting,
    check_paths,
    held_folders,
    held_places,
    local_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark_bridge.pipelines.batch_spans import BatchSpans
    from penstock.spark_bridge.pipelines.running import Query

PROGRAM: Final = "penstock spark"
INGEST: Final = "ingest"
"""The name of the query of `stream` and of its checkpoint."""

INTERRUPTED: Final = 130
"""The exit status of a program that Ctrl-C has ended."""

LONG_RUN_MESSAGES: Final = 2_000_000
"""The number of waiting messages from which on the second compiler of Java saves more than its
12 s of processor time: 9 us a row."""

ENDING_SECONDS: Final = 5.0
"""The longest time for which Java may take to end after half of an answer, seconds."""

START_PATIENCE_SECONDS: Final = 30.0
"""The longest time for which a queue may take to answer when the program starts, seconds: its
address may be wrong."""

app = CommandLine()

Master: TypeAlias = Annotated[str, typer.Option(help="Spark's master.")]
Settings: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="A Spark setting, as NAME=VALUE.")
]
ReportFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="Write the run's counts to this file, as JSON.")
]
LogFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="Spark's log; spark.log beside the checkpoints by default.")
]
Metrics: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address on which Prometheus reads /metrics."),
]
Otlp: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Send a span of each micro-batch here, by OTLP over HTTP; needs the extra otel.",
    ),
]
ShortRun: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--short-run",
        help=f"The run ends within minutes: start sooner, at the cost of peak speed. "
        f"{AVAILABLE_NOW} does so unless {LONG_RUN_MESSAGES:,} messages wait.",
    ),
]
TRIGGER_HELP: Final = f"{AVAILABLE_NOW}, or SECONDS between two micro-batches."


class StopSignals:
    """A counter of SIGINT and SIGTERM: the first ends the run in good order, the second at once.

    A signal that comes while Spark starts ends the run as soon as Spark has started.
    """

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Handle the two signals, on which Spark would fail the queries."""
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


@app.callback()
def spark() -> None:
    """Run pipelines on queues with Spark: JSON and other payloads to tables, each message once."""


@app.command(name="run")
def run_pipeline(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline.")],
    trigger: Annotated[
        str | None, typer.Option(help=f"{TRIGGER_HELP} In place of the file's.")
    ] = None,
    master: Master = "local[2]",
    conf: Settings = None,
    metrics: Metrics = None,
    otlp: Otlp = None,
    report: ReportFile = None,
    log: LogFile = None,
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check all steps and what has changed, without reading the queue."
        ),
    ] = False,
    short_run: ShortRun = False,
) -> None:
    """Run the pipeline of a YAML file.

    Paths in the file begin at its folder. With a number of seconds as trigger, the run reads the
    waiting messages and ends after the first SIGINT or SIGTERM; a second one ends it at once and
    leaves the rest in the queue.
    """
    settings = read_pairs("--conf", conf or [])
    report, log = _absolute(report), _absolute(log)
    name = str(file)
    with _in_folder(file):
        pipeline = read_pipeline(Path(file.name), name)
        seconds = pipeline.trigger_seconds if trigger is None else read_trigger(trigger)
        source = with_wait(as_texts(pipeline.source), seconds)
        pipeline = replace(pipeline, source={**source})
        java = find_java(os.environ)
        n_waiting = check_queue(read_options(pipeline.source_texts(next(iter(pipeline.sinks)))))
        sinks = pipeline.all_sinks.values()
        outputs = [sink.path for sink in sinks if sink.path is not None]

        def build(session: SparkSession) -> tuple[Sequence[Query], Callable[[], None]]:
            from penstock.spark_bridge.pipelines.building import Built  # noqa: PLC0415 - Spark

            built = Built(session, pipeline, name, read=stream_reader(otlp))
            for note in built.notes:
                say(note)
            return ([] if dry_run else built.queries), built.remember

        run(
            build,
            java,
            outputs,
            pipeline.storage,
            log or _log_beside(pipeline.storage),
            report,
            about=f"pipeline {name}",
            master=master,
            settings=as_texts(pipeline.configuration) | settings,
            trigger_seconds=seconds,
            metrics=metrics,
            otlp=otlp,
            short_run=short_run or is_short(seconds, n_waiting),
        )


@app.command()
def new(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write.")] = Path(
        "pipeline.yaml"
    ),
    url: Annotated[str, typer.Option(help="The queue's HTTP API.")] = EXAMPLE_URL,
    queue: Annotated[str, typer.Option(help="The logical queue.")] = EXAMPLE_QUEUE,
) -> None:
    """Write an example pipeline: telemetry of the demo to Parquet."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(example_text(url, queue))
    except FileExistsError:
        raise OptionError(f"{file}: it exists; allowed: a file that does not") from None
    typer.echo(f"{PROGRAM}: {file} is written; look into it, then: {PROGRAM} run {file}")


@app.command()
def stream(
    url: Annotated[str, typer.Option(help="The queue's HTTP API, as http://HOST:PORT.")],
    queue: Annotated[str, typer.Option(help="The logical queue, or several with commas.")],
    output: Annotated[str, typer.Option(help="Folder or URI of the messages' Parquet files.")],
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URI of the read position in the queue; keep it.")
    ],
    trigger: Annotated[str, typer.Option(help=TRIGGER_HELP)] = AVAILABLE_NOW,
    master: Master = "local[2]",
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the source, as NAME=VALUE.")
    ] = None,
    conf: Settings = None,
    metrics: Metrics = None,
    otlp: Otlp = None,
    report: ReportFile = None,
    log: LogFile = None,
    compact: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Join smaller files into files of this size, such as 128MiB, hourly and at the "
            "end. Readers that have listed the folder before must begin again.",
        ),
    ] = None,
    *,
    short_run: ShortRun = False,
) -> None:
    """Stream a queue into Parquet, each message exactly once.

    The name of the command may be left out. The trigger and the signals are those of `run`.
    """
    trigger_seconds = read_trigger(trigger)
    given = read_pairs("--option", option or []) | {"url": url, "queue": queue}
    texts = with_wait(given, trigger_seconds)
    source = read_options(texts)
    settings = read_pairs("--conf", conf or [])
    sink = read_sink(output, compact)
    java = find_java(os.environ)
    n_waiting = check_queue(source)

    def build(session: SparkSession) -> tuple[Sequence[Query], Callable[[], None]]:
        from penstock.spark_bridge.pipelines.running import Query  # noqa: PLC0415 - Spark

        query = Query(
            name=INGEST,
            rows=stream_reader(otlp)(session, texts),
            source=source,
            sinks={INGEST: sink},
            checkpoint=f"{checkpoint.rstrip('/')}/{INGEST}",
        )
        return [query], lambda: None

    run(
        build,
        java,
        [output],
        checkpoint,
        log or _log_beside(checkpoint),
        report,
        about=f"queue {source.shown_queues} at {source.url} to {output}",
        master=master,
        settings=settings,
        trigger_seconds=trigger_seconds,
        metrics=metrics,
        otlp=otlp,
        short_run=short_run or is_short(trigger_seconds, n_waiting),
    )


def read_sink(output: str, compact: str | None) -> Sink:
    """Return the sink of `stream`.

    Raises:
        OptionError: `compact` is not a size, or the output not a folder of this machine.
    """
    size = None if compact is None else read_bytes("--compact", compact)
    try:
        return Sink(options={"path": output}, compact=size)
    except ValueError as error:
        raise OptionError(
            f"--compact: read {compact} for {output}; allowed: with a folder of this machine"
        ) from error


def with_wait(texts: Mapping[str, str], trigger_seconds: float | None) -> dict[str, str]:
    """Return options of the source with a `waitSeconds` shorter than the time between triggers.

    Spark warns of a query that falls behind where an idle one is held for longer. A value of the
    user's stays.
    """
    is_said = any(name.lower() == "waitseconds" for name in texts)
    if is_said or trigger_seconds is None:
        return dict(texts)
    return {**texts, "waitSeconds": str(min(DEFAULT_WAIT_SECONDS, trigger_seconds / 2))}


def stream_reader(otlp: str | None) -> Callable[[SparkSession, dict[str, str]], DataFrame]:
    """Return the function that reads messages as a stream, with their traces where spans are made.

    Raises:
        OptionError: the extra for spans is not installed.
    """
    if otlp is not None:
        from penstock.spark_bridge.pipelines.batch_spans import read_traced  # noqa: PLC0415 - Spark

        return read_traced
    from penstock.spark_bridge.pipelines.building import read_stream  # noqa: PLC0415 - Spark

    return read_stream


def is_short(trigger_seconds: float | None, n_waiting: int) -> bool:
    """Say whether a run is expected to end within minutes, with so many messages in the queues."""
    return trigger_seconds is None and n_waiting < LONG_RUN_MESSAGES


def check_queue(source: SourceOptions) -> int:
    """Return how many messages the queues hold; called before Spark takes seconds to start.

    Raises:
        QueueUnavailableError: they do not answer, or there is no such queue.
    """
    from penstock.spark_bridge.queue_reader import QueueReader  # noqa: PLC0415 - needs the extra, as Spark

    patience = min(source.retry_seconds, START_PATIENCE_SECONDS)
    reader = QueueReader(replace(source, retry_seconds=patience))
    try:
        held = [reader.contents(queue) for queue in source.queues]
    finally:
        reader.close()
    return sum(end - first for one in held for first, end in one.offsets.values())


def run(
    build: Callable[[SparkSession], tuple[Sequence[Query], Callable[[], None]]],
    java: Java,
    outputs: Sequence[str],
    storage: str,
    log_file: Path,
    report: Path | None,
    *,
    about: str,
    master: str,
    settings: dict[str, str],
    trigger_seconds: float | None,
    metrics: str | None,
    otlp: str | None,
    short_run: bool,
) -> None:
    """Start Spark, run queries and stop Spark.

    Args:
        build: a function that returns the queries (none for a dry run) and a function to call when
            they begin.
        java: the Java that Spark uses.
        outputs: folders and URIs of sinks, which are locked against other runs.
        storage: the folder or URI of the checkpoints, which is locked as well.
        log_file: the file for Spark's log.
        report: the file for the counts, or None.
        about: the description of the run, for a line on the terminal.
        master: Spark's master.
        settings: settings of Spark.
        trigger_seconds: see `running.run`.
        metrics: HOST:PORT for Prometheus, or None.
        otlp: URL for the spans of micro-batches, or None.
        short_run: see `session.java_options`.
    """
    places = [*outputs, storage]
    folders = [folder for folder in map(local_folder, places) if folder is not None]
    check_nesting([folder for folder in map(local_folder, outputs) if folder is not None])
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    spans = None if otlp is None else _spans_to(otlp)
    signals = StopSignals()
    signals.install()
    with held_folders(folders), _naming_log(log_file), ExitStack() as stack:
        if spans is not None:
            stack.callback(spans.close)
        session = _start_spark(java, log_file, master, settings, short_run=short_run)
        stack.callback(_stop, session)
        if signals.count:
            say("ended before a query began")
            return
        say(f"Spark {session.version} on Java {java.version}, {master}: {about}")
        check_paths(session, places)
        if metrics is not None:
            from penstock.spark_bridge.pipelines.metrics import QueryMetrics  # noqa: PLC0415 - Spark

            listener = QueryMetrics(metrics)
            stack.callback(listener.close)
            session.streams.addListener(listener)
            say(f"metrics at port {listener.port}")
        elsewhere = [place for place in places if local_folder(place) is None]
        if not elsewhere:
            from penstock.spark_bridge.session import write_checkpoints_by_rename  # noqa: PLC0415

            write_checkpoints_by_rename(session)
        stack.enter_context(held_places(session, elsewhere))
        queries, on_start = build(session)
        if not queries:
            say("dry run: every step can be run")
            return
        from rich.console import Console  # noqa: PLC0415 - of the extra, as Spark

        from penstock.spark_bridge.pipelines import running  # noqa: PLC0415 - Spark
        from penstock.spark_bridge.pipelines.progress import Display, describe  # noqa: PLC0415

        on_start()
        with Display(Console(), say) as display:
            summaries = running.run(
                session,
                queries,
                trigger_seconds,
                stop_requests=lambda: signals.count,
                on_progress=display.show,
                on_batch=(lambda *_: None) if spans is None else spans.add,
                tell=say,
            )
    for name, summary in summaries.items():
        say(f"done: {describe(name, summary)}")
    if report is not None:
        counts = {name: asdict(summary) for name, summary in summaries.items()}
        report.write_text(json.dumps(counts, indent=1) + "\n")


def _spans_to(otlp: str) -> BatchSpans:
    from penstock.spark_bridge.pipelines.batch_spans import BatchSpans  # noqa: PLC0415 - Spark

    return BatchSpans(otlp)


def say(text: str) -> None:
    """Print a line with the program's name."""
    typer.echo(f"{PROGRAM}: {text}")


def _start_spark(
    java: Java, log_file: Path, master: str, settings: dict[str, str], *, short_run: bool
) -> SparkSession:
    from penstock.spark_bridge import session  # noqa: PLC0415 - Spark takes a while

    archive = session.class_archive_path(java, os.environ)
    return session.build_session(
        master,
        java_settings=session.java_options(short_run=short_run, archive=archive),
        settings=settings,
        log_file=log_file,
    )


def _stop(session: SparkSession) -> None:
    """Stop Spark, unless its Java has ended by itself, which another error reports."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        # PySpark warns where Java ends between its look and its call.
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
        session.stop()


def _java_has_ended() -> bool:
    """Say whether Spark's Java process has ended, or ends now."""
    from pyspark import SparkContext  # noqa: PLC0415 - Spark takes a while

    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if java is None:
        return False
    try:
        java.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _is_told(record: logging.LogRecord) -> bool:
    """Say whether a log record is for users: py4j also logs what it raises, with tracebacks."""
    return not record.getMessage().startswith("Exception while sending command")


@contextmanager
def _naming_log(log_file: Path) -> Iterator[None]:
    """Add the place of Spark's log to errors of the block, and recognise the end of Java."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # noqa: PLC0415

    logging.getLogger().addFilter(_is_told)
    try:
        try:
            yield
        except (ConnectionRefusedError, ConnectionResetError, Py4JNetworkError) as error:
            raise JavaGoneError from error
        except Py4JJavaError:
            raise
        except Py4JError as error:  # as when Java ends amid an answer
            if _java_has_ended():
                raise JavaGoneError from error
            raise
    except BridgeError as error:
        error.text += f" (Spark's log: {log_file})"
        raise
    finally:
        logging.getLogger().removeFilter(_is_told)


@contextmanager
def _in_folder(file: Path) -> Iterator[None]:
    """Work in a file's folder, where it exists."""
    folder = file.resolve().parent
    with chdir(folder if folder.is_dir() else Path.cwd()):
        yield


def _absolute(file: Path | None) -> Path | None:
    return None if file is None else file.absolute()


def _log_beside(checkpoints: str) -> Path:
    return (local_folder(checkpoints) or Path()).absolute() / "spark.log"


@app.command()
def prepare() -> None:
    """Write an archive that halves Spark's start time."""
    java = find_java(os.environ)

    from penstock.spark_bridge import class_archive, session  # noqa: PLC0415 - Spark takes a while

    archive = session.class_archive_path(java, os.environ)
    class_archive.write_class_archive(archive)
    typer.echo(f"{PROGRAM}: {archive}, {archive.stat().st_size // 1_000_000} MB")


def main(argv: list[str] | None = None) -> int:
    """Run the program with some arguments, by default those of the process.

    Returns:
        0; 1 where a query failed, the queue did not answer or a folder cannot be written; 2 for
        a wrong file, wrong arguments or no Java; 130 where Ctrl-C came before Spark was started.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"):
        arguments = ["stream", *arguments]
    try:
        return app.status(arguments, PROGRAM)
    except BridgeError as error:
        typer.echo(f"{PROGRAM}: {error.text}", err=True)
        return error.status
    except ConfigError as error:
        for line in str(error).splitlines():
            typer.echo(f"{PROGRAM}: {line}", err=True)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        typer.echo(f"{PROGRAM}: cannot write {error.filename}: {error.strerror}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
