"""Builds the Spark session of the program: on one machine, quiet, and quick to start.

Most of the time before the first row goes into loading and compiling Spark's classes. Two measures
shorten it: a compiler that stops at its first level, for runs that end after a few minutes, and a
*class archive* (Java's class data sharing) with Spark's parsed classes. ``penstock spark prepare``
writes the archive once per machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark_bridge.errors import BridgeError, one_line
from penstock.spark_bridge.java import Java
from penstock.spark_bridge.source import register


class SessionError(BridgeError):
    """Spark does not start: it cannot use a master or a setting."""

    status = 2


DEFAULT_MASTER: Final = "local[2]"

_LOCAL_SETTINGS: Final = {
    # Spark listens on this machine only.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The state of a window aggregation has one store per shuffle partition: 200 by default.
    "spark.sql.shuffle.partitions": "2",
}

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is INT96, which the format has given up: it has no time zone and no
    # statistics by which readers leave out what they do not look for.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The sizes of pages and row groups are looked at from the first row on, not from the hundredth:
    # a hundred pictures are more than Java has memory for.
    "spark.hadoop.parquet.page.size.row.check.min": "1",
    "spark.hadoop.parquet.block.size.row.check.min": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A worker that is killed by a signal writes a traceback.
    "spark.python.worker.faulthandler.enabled": "true",
    # Reports are read twice a second, one call each: more than end in that time, but no more.
    "spark.sql.streaming.numRecentProgressUpdates": "50",
}

CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting of Spark with the class that writes checkpoints and the lists of a file sink's
files."""

_RENAMING: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The class of Spark that writes a file under another name and renames it."""

_OWN_PATH: Final = "PENSTOCK_PYTHONPATH"

_LONG_RUN_JAVA: Final = ("-XX:+UseParallelGC",)
"""The options for a long run: garbage is collected by all cores, without a concurrent thread."""
_SHORT_RUN_JAVA: Final = (*_LONG_RUN_JAVA, "-XX:TieredStopAtLevel=1")


def class_archive_path(java: Java, environment: Mapping[str, str]) -> Path:
    """Return the path of the class archive of this Java and this Spark; it may not exist.

    An archive fits one Java, one set of jars at one place and one garbage collector. The file's
    name depends on all of them.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    fitting = f"{java.program} {java.version} {jars} {' '.join(_LONG_RUN_JAVA)}"
    digest = hashlib.sha256(fitting.encode()).hexdigest()[:12]
    return _cache_folder(environment) / f"spark-{pyspark.__version__}-{digest}.jsa"


def _cache_folder(environment: Mapping[str, str]) -> Path:
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "penstock"


def worker_python(environment: Mapping[str, str]) -> Path:
    """Return the program that starts this Python for Spark's workers.

    Spark puts a zip of itself first on the path of its Python processes, of which a query uses half
    a dozen. Each would compile Spark's modules again, for half a second, which this environment has
    compiled. So a script replaces the path by the user's own from ``PENSTOCK_PYTHONPATH``.
    """
    text = f'#!/bin/sh\nexport PYTHONPATH="${_OWN_PATH}"\nexec {shlex.quote(sys.executable)} "$@"\n'
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    script = _cache_folder(environment) / f"python-{digest}"
    if not script.is_file():
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o700)
            Path(file.name).replace(script)
        except OSError:
            # Without a place to write, it is slower, but it works.
            return Path(sys.executable)
    return script


def name_pythons(master: str, environment: MutableMapping[str, str]) -> None:
    """Set in the environment which Python the driver and Spark's workers use.

    The machines of a cluster may have another Python, which the user names in ``PYSPARK_PYTHON``.
    """
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if _is_local(master):
        environment["PYSPARK_PYTHON"] = str(worker_python(environment))
        environment[_OWN_PATH] = environment.get("PYTHONPATH", "")
    else:
        environment.setdefault("PYSPARK_PYTHON", sys.executable)


def _is_local(master: str) -> bool:
    return master.startswith("local")


def java_options(*, short_run: bool, archive: Path | None, write_archive: bool = False) -> str:
    """Return the options of the driver's Java.

    Args:
        short_run: whether the run ends within minutes, so that a quick start matters more than peak
            speed.
        archive: the class archive, or None. Java ignores one that does not fit.
        write_archive: whether Java writes the archive when it ends instead of using it.
    """
    options = list(_SHORT_RUN_JAVA if short_run else _LONG_RUN_JAVA)
    if archive is not None and (write_archive or archive.is_file()):
        use = "ArchiveClassesAtExit" if write_archive else "SharedArchiveFile"
        # Java prints a line for each class that cannot be archived.
        options += [f"-XX:{use}={archive}", "-Xshare:auto", "-Xlog:disable"]
    return " ".join(options)


def build_session(
    master: str = DEFAULT_MASTER,
    *,
    java_settings: str = "",
    settings: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """Start Spark with ``format("penstock")`` known to it.

    Args:
        master: Spark's master, as ``local[2]`` or ``spark://host:port``.
        java_settings: options of the driver's Java; see ``java_options``.
        settings: Spark's settings that override ours.
        log_file: the file for Spark's log and its output; None leaves them on standard error.

    Raises:
        SessionError: Spark does not start with these settings.
    """
    name_pythons(master, os.environ)
    chosen = dict(_SETTINGS)
    if _is_local(master):
        chosen |= _LOCAL_SETTINGS
    if java_settings:
        chosen["spark.driver.extraJavaOptions"] = java_settings
    chosen |= settings or {}
    builder = SparkSession.builder.appName("penstock").master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        with _standard_error_to(log_file), _interrupts_held() as held:
            spark = builder.getOrCreate()
        register(spark)
    except (PySparkException, Py4JError) as error:
        raise SessionError(f"Spark does not start: {one_line(error)}") from error
    if held:
        signal.raise_signal(signal.SIGINT)
    return spark


def write_checkpoints_by_rename(spark: SparkSession) -> None:
    """Have Spark write checkpoints on disks of this machine without starting programs.

    Spark uses Hadoop's `FileContext`, which runs ``readlink`` some five times for each file: twenty
    processes for a micro-batch. Hadoop's `FileSystem` renames a file by a system call. It would
    replace a file that another run has just written, which the locks of the folders prevent. A
    setting of the user's stays. Call it before queries are started.
    """
    if spark.conf.get(CHECKPOINT_FILES, None) is not None:
        return
    java: Any = spark._jvm  # noqa: SLF001 - nothing else tells which classes Spark has
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    with contextlib.suppress(Py4JError):  # a later Spark may not have the class
        loader.loadClass(_RENAMING)
        spark.conf.set(CHECKPOINT_FILES, _RENAMING)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[list[int]]:
    """Collect Ctrl-C inside the block, and restore its handler, which Spark replaces.

    A KeyboardInterrupt while Java starts would leave Java running: PySpark deletes the file that
    Java is to write, without which Java does not notice that this process has gone.
    """
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return
    kept = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, kept)


@contextlib.contextmanager
def _standard_error_to(log_file: Path | None) -> Iterator[None]:
    """Redirect the standard error of programs started inside the block to a file."""
    if log_file is None:
        yield
        return
    log_file.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log_file.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
