from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.plugins.queue.publishing.stage_file import (
    BatchKey,
    NoStageError,
    Publication,
    StageError,
    StageFile,
    StageKey,
    StageSpaceError,
    StageTotals,
)

BATCH = BatchKey("me", "query", 5)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StageFile]:
    """A file that is open."""
    file = StageFile(str(tmp_path / "stage.db"), "normal")
    file.open_file()
    yield file
    file.close()


def stage(file: StageFile, name: str, *sizes: int, writer: str = "w", at: float = 0.0) -> None:
    """Store chunks of so many rows."""
    for place, n_rows in enumerate(sizes):
        file.store(StageKey("me", writer, name), place, n_rows, 10 * n_rows, b"rows", at)


def finished(file: StageFile, key: BatchKey = BATCH) -> Publication:
    """Finish the next publication, and return what is known of a batch."""
    one = file.next_publication("me")
    assert one is not None
    file.finish(file.advance(one, one.n_rows, {"expired": 1}), 10.0)
    found = file.find(key)
    assert found is not None
    return found


def test_a_chunk_that_is_stored_again_counts_once(file: StageFile) -> None:
    """A request whose answer was lost is repeated."""
    key = StageKey("me", "w", "a")
    assert file.store(key, 0, 3, 30, b"x", 0.0) == 3
    assert file.store(key, 0, 3, 30, b"x", 0.0) == 3
    assert file.store(key, 1, 2, 20, b"y", 0.0) == 5
    assert file.held() == StageTotals(stages=1, rows=5, n_bytes=50, publications=0)


def test_a_chunk_behind_a_gap_is_refused(file: StageFile) -> None:
    """What came before it has expired."""
    with pytest.raises(NoStageError, match=r"stage a: read chunk 1; allowed: 0 to 0"):
        file.store(StageKey("me", "w", "a"), 1, 1, 1, b"", 0.0)


def test_a_commit_publishes_the_named_stages_and_deletes_the_others(file: StageFile) -> None:
    """The attempts that have lost, of this writer and no other."""
    stage(file, "won", 2, 1)
    stage(file, "lost", 4)
    stage(file, "other", 8, writer="another")
    done = file.commit(BATCH, "w", [("won", 3)], 1.0)
    assert (done.is_repeat, done.n_dropped, done.publication.n_rows) == (False, 1, 3)
    assert file.held() == StageTotals(stages=1, rows=11, n_bytes=110, publications=1)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ([("won", 3), ("gone", 1)], "stage gone: read nothing"),
        ([("won", 2)], "stage won: read 2 rows; allowed: 3"),
    ],
)
def test_a_commit_of_a_stage_that_is_not_so_changes_nothing(
    file: StageFile, named: list[tuple[str, int]], told: str
) -> None:
    """Nothing is published, and the stages stay."""
    stage(file, "won", 3)
    with pytest.raises(NoStageError, match=told):
        file.commit(BATCH, "w", named, 1.0)
    assert file.find(BATCH) is None
    assert file.held().stages == 1


def test_a_batch_is_published_once_whatever_it_is_split_into(file: StageFile) -> None:
    """While it is published, and when it is finished; then its stages of this time are deleted."""
    stage(file, "a", 3)
    file.commit(BATCH, "w", [("a", 3)], 1.0)
    stage(file, "b", 1, writer="again")
    done = file.commit(BATCH, "again", [("b", 1)], 2.0)
    assert (done.is_repeat, done.publication.n_rows, done.n_dropped) == (True, 3, 1)
    assert finished(file).is_finished
    stage(file, "c", 1, writer="again")
    done = file.commit(BATCH, "again", [("c", 1)], 3.0)
    assert done.is_repeat
    assert done.publication == Publication(BATCH, 3, 3, {"expired": 1})
    assert file.held() == StageTotals(0, 0, 0, 0)


def test_older_batches_of_a_query_are_repeats(file: StageFile) -> None:
    """Batch numbers rise; of another owner or query they mean nothing."""
    stage(file, "a", 1)
    file.commit(BATCH, "w", [("a", 1)], 1.0)
    finished(file)
    older = file.find(BATCH._replace(number=4))
    assert older is not None
    assert (older.is_finished, older.n_rows) == (True, 0)
    for key in (
        BATCH._replace(number=6),
        BATCH._replace(query="other"),
        BATCH._replace(owner="other"),
    ):
        assert file.find(key) is None


def test_chunks_come_in_the_order_of_the_commit(file: StageFile) -> None:
    """Stage by stage as they are named, and from the row on that is next."""
    stage(file, "a", 2, 1)
    stage(file, "b", 5)
    file.commit(BATCH, "w", [("b", 5), ("a", 3)], 1.0)
    one = file.next_publication("me")
    assert one is not None
    seen = []
    while (chunk := file.next_chunk(one)) is not None:
        seen.append((chunk.n_before, chunk.n_rows))
        one = file.advance(one, chunk.n_before + chunk.n_rows, {})
    assert seen == [(0, 5), (5, 2), (7, 1)]


def test_rows_of_an_owner_are_numbered_over_all_of_its_batches(file: StageFile) -> None:
    """Their packet identifiers come of it, also after the last batch was finished."""
    assert file.next_row("me") is None
    for number, n_rows in ((5, 3), (6, 4)):
        stage(file, f"of {number}", n_rows)
        key = BATCH._replace(number=number)
        file.commit(key, "w", [(f"of {number}", n_rows)], 1.0)
    one = file.next_publication("me")
    assert one is not None
    assert (one.first_row, file.next_row("me")) == (0, 0)
    file.advance(one, 2, {})
    assert file.next_row("me") == 2
    finished(file)
    one = file.next_publication("me")
    assert one is not None
    assert (one.first_row, file.next_row("me")) == (3, 3)
    finished(file, one.key)
    assert file.next_row("me") == 7
    assert file.owners() == []


def test_old_stages_expire_and_old_queries_are_forgotten(file: StageFile) -> None:
    """A committed one does not expire; a stage counts from its newest chunk."""
    stage(file, "committed", 1, at=1.0)
    file.commit(BATCH, "w", [("committed", 1)], 1.0)
    stage(file, "old", 1, at=1.0)
    stage(file, "new", 1, at=9.0)
    assert file.expire(5.0, 0.0) == 1
    assert file.held().stages == 1
    finished(file)
    file.expire(5.0, 10.0)
    assert file.find(BATCH) is not None
    file.expire(5.0, 10.5)
    assert file.find(BATCH) is None


def test_what_was_committed_outlives_the_process(tmp_path: Path) -> None:
    """A second process is refused meanwhile; its error names the file."""
    path = str(tmp_path / "stage.db")
    file = StageFile(path, "full")
    file.open_file()
    stage(file, "a", 3)
    file.commit(BATCH, "w", [("a", 3)], 1.0)
    with pytest.raises(StageError, match=rf"stage {path}: in use by process"):
        StageFile(path, "full").open_file()
    file.close()
    file = StageFile(path, "full")
    file.open_file()
    assert file.owners() == ["me"]
    file.close()
    with pytest.raises(StageError, match="it is closed"):
        file.held()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    """It is left as it is."""
    path = tmp_path / "stage.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StageError, match=r"stage .*stage\.db: "):
        StageFile(str(path), "full").open_file()
    assert path.read_bytes() == b"no database" * 100


def test_a_full_disk_is_told_from_other_faults(file: StageFile) -> None:
    """A client may try again when there is space."""
    connection = file._connection
    assert isinstance(connection, sqlite3.Connection)
    connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StageSpaceError, match="SQLITE_FULL"):
        file.store(StageKey("me", "w", "a"), 0, 1, 1, bytes(1_000_000), 0.0)
