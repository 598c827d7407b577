from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.spark_bridge.pipelines.compaction import compact
from penstock.spark_bridge.sink_folder import listed_names, prepare_folder


def fill(folder: Path, batches: int, compacted: int, rows: int = 10) -> None:
    """Write a folder as Spark does: a file for each batch, and lists of them."""
    log = folder / "_spark_metadata"
    log.mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    for batch in range(batches):
        file = folder / f"part-00000-{batch:04}-c000.snappy.parquet"
        pq.write_table(pa.table({"id": list(range(batch * rows, (batch + 1) * rows))}), file)
        entry = {"path": file.as_uri(), "size": file.stat().st_size, "isDir": False}
        entries.append(entry | {"modificationTime": 1, "blockReplication": 1, "action": "add"})
        is_compact = batch == compacted
        listed = entries if is_compact else entries[-1:]
        text = "\n".join(["v1", *map(json.dumps, listed)])
        (log / f"{batch}{'.compact' if is_compact else ''}").write_text(text)
    checkpoint = folder.parent / "checkpoint" / "offsets"
    checkpoint.mkdir(parents=True)
    (checkpoint / str(batches - 1)).write_text("v1")


def ids(folder: Path) -> list[int]:
    """Return the rows of all files in a folder."""
    table = ds.dataset(folder, format="parquet", exclude_invalid_files=False).to_table()
    return sorted(table.column("id").to_pylist())


def test_small_files_become_one_and_every_reader_finds_each_row_once(tmp_path: Path) -> None:
    """For Spark by its list, and for others by the files; newer batches stay as they are."""
    folder = tmp_path / "rows"
    fill(folder, batches=6, compacted=3)
    checksum = folder / "_spark_metadata" / ".3.compact.crc"
    checksum.write_bytes(b"of the list before")
    assert compact(folder, 1_000_000) == 4
    assert ids(folder) == list(range(60))
    assert listed_names(folder) == {file.name for file in folder.glob("part-*")}
    assert len(listed_names(folder)) == 3
    assert not checksum.exists()
    assert prepare_folder(folder, tmp_path / "checkpoint") == []
    assert compact(folder, 1_000_000) == 0


def test_files_grow_to_about_the_target(tmp_path: Path) -> None:
    """Those that are large enough stay."""
    folder = tmp_path / "rows"
    fill(folder, batches=8, compacted=7)
    size = max(file.stat().st_size for file in folder.glob("part-*"))
    assert compact(folder, size) == 0
    compact(folder, 4 * size)
    assert 2 <= len(list(folder.glob("part-*"))) < 4
    assert ids(folder) == list(range(80))


def test_files_with_other_columns_are_left(tmp_path: Path) -> None:
    """A pipeline whose columns have changed has both."""
    folder = tmp_path / "rows"
    fill(folder, batches=2, compacted=1)
    other = folder / "part-00000-0001-c000.snappy.parquet"
    pq.write_table(pa.table({"id": [10], "more": ["x"]}), other)
    assert compact(folder, 1_000_000) == 0
    assert len(list(folder.glob("part-*"))) == 2


def test_a_folder_without_a_compact_list_is_left(tmp_path: Path) -> None:
    """A young one, and one that is not there yet."""
    fill(tmp_path / "rows", batches=2, compacted=5)
    assert compact(tmp_path / "rows", 1_000_000) == 0
    assert compact(tmp_path / "none", 1_000_000) == 0
