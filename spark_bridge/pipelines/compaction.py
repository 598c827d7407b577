"""Joins the small Parquet files of a sink into larger ones.

Each micro-batch leaves a file for each task. Spark lists the files in ``_spark_metadata``: one
compact list has all batches up to its own, and there is a list for each batch after it. Only files
of the compact list are joined; then the list is replaced in one step. A run that is killed before
that step leaves a joined file that no list has. One that is killed after it leaves old files that
no list has any more. A note names both kinds before anything is touched, and
`sink_folder.prepare_folder` deletes those that no list has.

The sink's query must not run meanwhile. Readers with an older list may miss files and must begin
again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from penstock.spark_bridge.sink_folder import end_joining, newest_list, note_joining

_Entry = dict[str, Any]


def compact(folder: Path, target_bytes: int) -> int:
    """Join files of a folder that are smaller than the target.

    Returns:
        The number of files that were replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    listed = newest_list(folder)
    if listed is None:
        return 0
    version, *lines = listed.read_text().splitlines()
    entries: list[_Entry] = [json.loads(line) for line in lines]
    replaced: dict[str, _Entry | None] = {}
    groups = [(folder / _new_name(), group) for group in _groups(entries, target_bytes)]
    if not groups:
        return 0
    old = {_file(folder, entry["path"]).name for _, group in groups for entry in group}
    note_joining(folder, old | {file.name for file, _ in groups})
    for file, group in groups:
        joined = _join(folder, group, file)
        if joined is not None:
            replaced |= {entry["path"]: None for entry in group}
            replaced[group[0]["path"]] = joined
    if not replaced:
        end_joining(folder)
        return 0
    kept = [replaced.get(entry["path"], entry) for entry in entries]
    text = "\n".join([version, *(json.dumps(entry) for entry in kept if entry is not None)])
    _replace(listed, text)
    for path in replaced:
        file = _file(folder, path)
        file.unlink(missing_ok=True)
        _checksum(file).unlink(missing_ok=True)
    end_joining(folder)
    return len(replaced)


def _groups(entries: list[_Entry], target_bytes: int) -> Iterator[list[_Entry]]:
    """Yield neighbours in the list that are to become one file."""
    group: list[_Entry] = []
    n_bytes = 0
    for entry in entries:
        if entry["size"] * 2 > target_bytes:
            continue
        group.append(entry)
        n_bytes += entry["size"]
        if n_bytes >= target_bytes:
            yield group
            group, n_bytes = [], 0
    if len(group) > 1:
        yield group


def _new_name() -> str:
    return f"part-joined-{uuid.uuid4()}.snappy.parquet"


def _join(folder: Path, group: list[_Entry], written: Path) -> _Entry | None:
    """Write the rows of some files into one; None where their columns differ."""
    files = [_file(folder, entry["path"]) for entry in group]
    schemas = [pq.read_schema(file) for file in files]
    if any(not schema.equals(schemas[0]) for schema in schemas):
        return None
    with pq.ParquetWriter(written, schemas[0]) as writer:
        for file in files:
            with pq.ParquetFile(file) as rows:
                for index in range(rows.num_row_groups):
                    writer.write_table(rows.read_row_group(index))
    _sync(written)
    found = written.stat()
    place = {"path": written.resolve().as_uri(), "size": found.st_size}
    return group[0] | place | {"modificationTime": int(found.st_mtime * 1_000)}


def _replace(file: Path, text: str) -> None:
    """Replace a file of Spark's in one step, and its checksum before that."""
    draft = file.with_name(f".{file.name}.{uuid.uuid4()}.tmp")
    draft.write_text(text)
    _sync(draft)
    _checksum(file).unlink(missing_ok=True)
    draft.replace(file)


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")


def _file(folder: Path, path: str) -> Path:
    """Return the file of an entry; the folder may have been moved since."""
    return folder / Path(unquote(urlsplit(path).path)).name
