"""Output folders of streaming queries: their owners, and files that killed runs have left.

Spark's file sink writes a micro-batch's files and then lists them in ``_spark_metadata``, in one
file for each batch. Spark leaves two problems unsolved. A killed query leaves files that are in no
list; Spark skips them, but every other reader counts their messages. And a query with a *new*
checkpoint numbers its batches from 0 again; Spark silently skips batches whose number is listed
already. This module is importable without Spark.

A file is deleted only if the query's metadata show that the query may have written it: the
checkpoint has the plan of an unlisted batch, and the file is not older than that plan, is in a
folder of the sink's partitions, and has a name of Spark's form. Other files in the folder may
belong to other programs. A separate file names what a killed compaction may have left.

An unlisted file may also be one that another run is writing. So a run locks its folders with a lock
that ends with its process. Elsewhere, such as in ``s3a://`` and ``hdfs://``, it creates a file with
its name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from penstock.spark_bridge.errors import BridgeError
from penstock.spark_bridge.hadoop_files import HadoopFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = "_spark_metadata"
_COMPACT = ".compact"
_PREFIX = "part-"
_NAME = re.compile(r"part-\d{5,}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d{3,}\..+")
"""The names of the files of Spark's sink: the task, a UUID, a number and the format's suffix."""
_DRAFT = re.compile(r"\.{1,2}\d+\..+\.tmp(\.crc)?")
"""The names of unfinished files of Spark's logs, and of their checksums."""
_LOCK = ".penstock.lock"
_JOINING = ".penstock.joining"
"""Spark skips files whose names begin with a dot."""

_PROCESS_BYTES = 20


class SinkFolderError(BridgeError):
    """A folder and a checkpoint do not belong together."""

    status = 2


class FolderInUseError(BridgeError):
    """Another run uses one of the folders."""

    status = 2


def local_folder(place: str) -> Path | None:
    """Return the folder of a path or URI if it is on this machine; else None."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(place)


@contextmanager
def held_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Lock folders against other runs.

    Raises:
        FolderInUseError: another run holds one of them.
        OSError: a folder cannot be written.
    """
    with ExitStack() as held:
        for folder in sorted({each.resolve() for each in folders}):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process = os.pread(lock, _PROCESS_BYTES, 0).decode(errors="replace").strip()
                raise FolderInUseError(
                    f"{folder} is in use by process {process or 'unknown'}; allowed: one run at a "
                    "time for each output, aggregate and checkpoint folder"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield


class PlaceError(BridgeError):
    """Spark cannot write to a place."""

    status = 2


def check_paths(spark: SparkSession, places: Iterable[str]) -> None:
    """Check that paths without a scheme are folders of this machine to Spark, too.

    Raises:
        PlaceError: Spark's configuration has another default file system.
    """
    default = HadoopFolder(spark, "file:///").default_file_system
    for place in places:
        if not urlsplit(place).scheme and default.getScheme() != "file":
            raise PlaceError(
                f"{place}: read a path without a scheme, and Spark's default file system is "
                f"{default}; allowed: a URI, such as {Path(place).absolute().as_uri()} or one of "
                "that file system"
            )


@contextmanager
def held_places(spark: SparkSession, places: Iterable[str]) -> Iterator[None]:
    """Lock places that are not folders of this machine, such as in ``s3a://``.

    Spark's file system creates a lock file with the run's name if there is none. A killed run
    leaves the file. The next run on the same machine replaces it; on another machine, the user has
    to delete it, because only the user knows that the run has ended.

    Raises:
        FolderInUseError: another run holds one of them.
        PlaceError: Spark has no file system for one of them, or cannot write there.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415

    with ExitStack() as held:
        for place in sorted({each.rstrip("/") for each in places}):
            try:
                held.callback(_hold(spark, place))
            except Py4JJavaError as error:
                raise PlaceError(
                    f"{place}: Spark cannot write there ({error.java_exception.toString()}); "
                    "allowed: a URI of a file system whose package and settings Spark has, such as "
                    "by --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION for s3a"
                ) from error
        yield


def _hold(spark: SparkSession, place: str) -> Callable[[], None]:
    """Create the lock file of a place; return a function that deletes it."""
    folder = HadoopFolder(spark, place)
    owner = folder.read(_LOCK)
    if owner is not None:
        if not _has_ended(owner):
            raise FolderInUseError(
                f"{place} is in use by {owner}; allowed: one run at a time for each output and "
                f"checkpoint. If that run was killed, delete {place}/{_LOCK}"
            )
        folder.delete(_LOCK)
    text = json.dumps({"host": socket.gethostname(), "process": os.getpid()})
    folder.write(_LOCK, text, overwrites=False)  # fails if another run was faster
    return lambda: folder.delete(_LOCK)


def _has_ended(owner: str) -> bool:
    """Tell whether the run of a lock file is known to have ended: it ran on this machine."""
    try:
        run = json.loads(owner)
        if run["host"] != socket.gethostname():
            return False
        os.kill(run["process"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False


def check_nesting(outputs: Iterable[Path]) -> None:
    """Check that no output is inside the output of another query.

    Raises:
        SinkFolderError: one of them is inside a folder that another query writes to, or contains
            such a folder.
    """
    own = {folder.resolve() for folder in outputs}
    for folder in sorted(own):
        for outer in folder.parents:
            if outer not in own and (outer / _LOG).is_dir():
                raise _nested(folder, outer)
        for inside, folders, _ in os.walk(folder):
            if _LOG in folders:
                folders.remove(_LOG)
                if Path(inside) not in own:
                    raise _nested(Path(inside), folder)


def _nested(inner: Path, outer: Path) -> SinkFolderError:
    return SinkFolderError(
        f"{inner}: read a folder within {outer}, and both are outputs of queries; allowed: outputs "
        "that do not lie within each other"
    )


def prepare_folder(folder: Path, checkpoint: Path, partition_by: Sequence[str] = ()) -> list[Path]:
    """Prepare a folder for its query, which must not be running.

    Returns:
        the files of a killed run that were deleted, as their messages will be written again.

    Raises:
        SinkFolderError: the folder holds the output of another query. Nothing is deleted.
    """
    plans = _batches(checkpoint / "offsets")
    listed = max(_batches(folder / _LOG), default=-1)
    _check_owner(
        str(folder),
        str(checkpoint),
        listed=listed,
        planned=max(plans, default=-1),
        finished=max(_batches(checkpoint / "commits"), default=-1),
        has_files=not plans and any(file.is_file() for file in folder.rglob(f"{_PREFIX}*")),
    )
    litter = _finish_joining(folder)
    unlisted = [file.stat().st_mtime for batch, file in plans.items() if batch > listed]
    if unlisted:
        names = listed_names(folder)
        litter += [
            file
            for file in _own_files(folder, partition_by)
            if file.name not in names and file.stat().st_mtime >= min(unlisted)
        ]
    for file in litter:
        # Spark deletes files of tasks that failed, at its own time.
        file.unlink(missing_ok=True)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    end_joining(folder)
    return litter


def _own_files(folder: Path, partition_by: Sequence[str]) -> list[Path]:
    """Return files with names of Spark's form, in the folders of a query's partitions."""
    levels = [f"{column}=".lower() for column in partition_by]
    found = []
    for file in folder.glob("/".join(["*"] * len(levels) + [f"{_PREFIX}*"])):
        values = [unquote(value).lower() for value in file.parent.relative_to(folder).parts]
        is_partition = all(map(str.startswith, values, levels))
        if is_partition and _NAME.fullmatch(file.name) and file.is_file():
            found.append(file)
    return sorted(found)


def note_joining(folder: Path, names: Iterable[str]) -> None:
    """Write a note of the files that are about to be joined, before any of them is changed.

    `prepare_folder` deletes those that are in no list afterwards, and the note.
    """
    note = folder / _JOINING
    with note.open("w", encoding="utf-8") as file:
        json.dump(sorted(names), file)
        file.flush()
        os.fsync(file.fileno())


def end_joining(folder: Path) -> None:
    """Delete the note, once its files are joined and deleted."""
    (folder / _JOINING).unlink(missing_ok=True)


def _finish_joining(folder: Path) -> list[Path]:
    """Return the files in the note that are in no list."""
    try:
        names = json.loads((folder / _JOINING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except ValueError:  # killed while writing the note: nothing was changed
        return []
    there = listed_names(folder)
    if not there:
        return []
    files = [folder / name for name in names if name not in there]
    return [file for file in files if file.is_file()]


def check_place(spark: SparkSession, place: str, checkpoint: str) -> None:
    """Check through Spark's file systems that a place belongs to its query; delete nothing.

    Raises:
        SinkFolderError: the place holds the output of another query.
    """

    def newest(log: str) -> int:
        return max(map(_batch_number, HadoopFolder(spark, log).names()), default=-1)

    planned = newest(f"{checkpoint}/offsets")
    _check_owner(
        place,
        checkpoint,
        listed=newest(f"{place}/{_LOG}"),
        planned=planned,
        finished=newest(f"{checkpoint}/commits"),
        has_files=planned < 0 and HadoopFolder(spark, place).has_file(_PREFIX),
    )


def _check_owner(
    place: str, checkpoint: str, *, listed: int, planned: int, finished: int, has_files: bool
) -> None:
    if finished > listed:
        raise SinkFolderError(
            f"{place} lacks what its query has written (batches up to {listed} are listed in it, "
            f"{checkpoint} has finished batches up to {finished}), as where it was deleted; "
            "allowed: the folder that belongs to the checkpoint. To begin anew, delete the "
            "checkpoint, too, and run penstock queue seek QUEUE GROUP earliest"
        )
    if listed > planned or (planned < 0 and has_files):
        raise SinkFolderError(
            f"{place} holds files of another query (batches up to {listed} are listed in it, "
            f"{checkpoint} knows of batches up to {planned}); use an empty folder, or the "
            "checkpoint that belongs to it, without which Spark would pass over batches"
        )


def prepare_checkpoint(checkpoint: Path) -> list[Path]:
    """Delete what a query has left that was killed while it planned its first micro-batch.

    Spark writes a plan to a file whose name begins with a dot, and renames it. It refuses to start
    a query whose checkpoint has such a file and no plan. The query must not be running.

    Returns:
        The files that were deleted.
    """
    plans = checkpoint / "offsets"
    if _batches(plans):
        return []
    unfinished = sorted(file for file in plans.glob(".*") if _DRAFT.fullmatch(file.name))
    for file in unfinished:
        file.unlink(missing_ok=True)
    return unfinished


def listed_names(folder: Path) -> set[str]:
    """Return the names of the files that finished micro-batches wrote."""
    batches = _batches(folder / _LOG)
    # A compact file repeats all batches up to its own.
    compact = max((batch for batch, file in batches.items() if _is_compact(file)), default=-1)
    names = set()
    for batch, file in batches.items():
        if batch >= compact:
            _version, *lines = file.read_text().splitlines()
            names |= {Path(json.loads(line)["path"]).name for line in lines}
    return names


def newest_list(folder: Path) -> Path | None:
    """Return the newest file that lists all batches up to its own; None where there is none."""
    files = [file for file in _batches(folder / _LOG).values() if _is_compact(file)]
    return files[-1] if files else None


def _batches(log: Path) -> dict[int, Path]:
    """Return the files of one of Spark's logs by batch."""
    found = {}
    for file in log.glob("[0-9]*"):
        number = _batch_number(file.name)
        if number >= 0 and (_is_compact(file) or number not in found):
            found[number] = file
    return dict(sorted(found.items()))


def _batch_number(name: str) -> int:
    """Return the batch of a file of a log; -1 for any other file."""
    number = name.removesuffix(_COMPACT)
    return int(number) if number.isdecimal() else -1


def _is_compact(file: Path) -> bool:
    return file.name.endswith(_COMPACT)
