"""Puts the files of a backup in the places of databases that no program has open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from penstock.broker.durable.database_file import DatabaseFile, DatabaseFileError

_BESIDE: Final = ("-wal", "-shm", ".reserve")
"""What belongs to a database, and would be taken for the restored one's."""


def restore(places: Mapping[Path, str]) -> None:
    """Replace databases by copies, which stay. Nothing is replaced before all are written.

    Each of the places is a copy with the name of its database.

    Raises:
        DatabaseFileError: a copy is none, a program has a database, or one cannot be written.
    """
    for copy in places:
        _check(copy)
    with ExitStack() as stack:
        written: dict[str, str] = {}
        for copy, place in places.items():
            try:
                file = stack.enter_context(closing(DatabaseFile(place)))
                descriptor, part = tempfile.mkstemp(
                    ".part", f"{Path(file.path).name}.", Path(file.path).parent
                )
                stack.callback(_delete, part)
                with os.fdopen(descriptor, "wb") as target, copy.open("rb") as source:
                    shutil.copyfileobj(source, target)
                    target.flush()
                    os.fsync(target.fileno())
            except (OSError, DatabaseFileError) as error:
                raise DatabaseFileError(f"{place}: {error}") from error
            written[part] = file.path
        for part, path in written.items():
            for suffix in _BESIDE:
                _delete(path + suffix)
            Path(part).replace(path)


def _check(copy: Path) -> None:
    """Check that a copy is whole.

    Raises:
        DatabaseFileError: it is not.
    """
    try:
        uri = f"{copy.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as opened:
            (found,) = opened.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise DatabaseFileError(f"{copy}: read {found}; allowed: a file of penstock backup")


def _delete(path: str) -> None:
    with suppress(FileNotFoundError):
        Path(path).unlink()
