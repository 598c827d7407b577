"""The folder of a streaming query's Parquet files: which query owns it, which files are litter.

Spark's file sink writes a micro-batch's files and then lists them in ``_spark_metadata``, in one
file for each batch. Spark does not handle two consequences. A killed query leaves files that are in
no list; Spark skips them, but every other reader takes them for messages. And a query with a *new*
checkpoint counts its batches from 0 again: batches whose number is listed already are skipped
silently, as if they were written. Importable without Spark.

A file that no list has may also be one that another run is writing. So a run holds its folders, by
a lock that ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.spark_bridge.errors import BridgeError

_LOG = "_spark_metadata"
_COMPACT = ".compact"
_WRITTEN = "part-*.parquet"
_LOCK = ".penstock.lock"
"""Readers of a folder leave out names that begin with a dot."""

_PROCESS_BYTES = 20


class SinkFolderError(BridgeError):
    """A folder and a checkpoint that do not belong together."""

    status = 2


class FolderInUseError(BridgeError):
    """Another run has one of the folders."""

    status = 2


@contextmanager
def held_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Keep other runs out of the folders.

    Args:
        folders: existing ones, for output and checkpoints.

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


def prepare_folder(folder: Path, checkpoint: Path) -> list[Path]:
    """Prepare a folder for its query, which must not be running.

    Args:
        folder: of the query's output.
        checkpoint: the query's own checkpoint.

    Returns:
        The files that a killed run had left; they were deleted, as their messages are written
        again.

    Raises:
        SinkFolderError: the folder holds the output of another query. Nothing is deleted.
    """
    planned = max(_batches(checkpoint / "offsets"), default=-1)
    listed = max(_batches(folder / _LOG), default=-1)
    files = set(folder.glob(_WRITTEN))
    if listed > planned or (planned < 0 and files):
        raise SinkFolderError(
            f"{folder} holds files of another query (batches up to {listed} are listed in it, "
            f"{checkpoint} knows of batches up to {planned}); use an empty folder, or the "
            "checkpoint that belongs to it"
        )
    names = listed_names(folder)
    litter = sorted(file for file in files if file.name not in names)
    for file in litter:
        file.unlink()
        (folder / f".{file.name}.crc").unlink(missing_ok=True)
    return litter


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


def _batches(log: Path) -> dict[int, Path]:
    """Return the files of one of Spark's logs by batch."""
    found = {}
    for file in log.glob("[0-9]*"):
        number = file.name.removesuffix(_COMPACT)
        if number.isdecimal() and (_is_compact(file) or int(number) not in found):
            found[int(number)] = file
    return found


def _is_compact(file: Path) -> bool:
    return file.name.endswith(_COMPACT)
