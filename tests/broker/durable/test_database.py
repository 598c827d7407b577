"""The SQLite file: what is written is read, and a file that is not ours is refused."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.durable import database as database_module
from penstock.broker.durable.database import (
    DELETE_BYTES,
    PLENTY_BYTES,
    RESERVE_BYTES,
    ROWS_AT_A_TIME,
    DatabaseError,
    SessionDatabase,
)
from penstock.broker.durable.records import Batch, RunDeliveryRows, RunRows
from penstock.broker.fast_paths.message_run import MessageRun
from penstock.broker.mqtt.packets import Publish
from penstock.broker.mqtt.writer import write_packet
from penstock.broker.session_rows import (
    DeliveryRow,
    IncomingRow,
    MessageRow,
    RetainedRow,
    SessionRow,
    Stored,
    SubscriptionRow,
    WillRow,
)

SESSION = SessionRow(1, "c", "user", "default", 5, 60.0, 1.5, b"origin", 7)
ROWS: dict[str, list[Any]] = {
    "sessions": [SESSION, SessionRow(2, "é", None, "default", 4, None, None, b"other", 0)],
    "subscriptions": [
        SubscriptionRow(1, "t/#", 1, True, False, 7, True),
        SubscriptionRow(2, "t/#", 1, True, False, 7, True, "large"),
    ],
    "messages": [
        MessageRow(3, "t/1", b"\0payload", 2, True, 1.0, 2.0, b"\2\1\1", "p"),
        MessageRow(4, "t/2", None, 1, False, 1.0, None, None, ""),
    ],
    "deliveries": [
        DeliveryRow(5, 1, 3, 2, True, "1,2", 9, True, ""),
        DeliveryRow(6, 1, 4, 1, False, None, 0, False, "$share/g/t/#"),
    ],
    "incoming": [IncomingRow(1, 12)],
    "retained": [RetainedRow("t/1", 3)],
    "wills": [WillRow("c", None, "default", "w", b"gone", 1, False, b"\0")],
}


def whole() -> Batch:
    """Return a batch that puts all rows."""
    batch = Batch()
    for name, rows in ROWS.items():
        setattr(batch, name, rows)
    return batch


def opened(path: Path) -> SessionDatabase:
    """Return a database, opened or made."""
    return SessionDatabase(str(path), is_flushed=False)


@pytest.mark.parametrize("n_messages", [3, 250])
def test_a_run_is_written_as_the_rows_of_its_messages(tmp_path: Path, n_messages: int) -> None:
    """With the properties and the expiry that it came with; it is deleted by ranges."""
    packets = b"".join(
        write_packet(
            Publish(
                "t",
                b"%03d" % number,
                qos=2,
                packet_id=number + 1,
                properties={"message_expiry_interval": 7},
            ),
            5,
        )
        for number in range(n_messages)
    )
    size = len(packets) // n_messages
    run = MessageRun(packets, [(n_messages, 0, size, 5, 3, ("t", b"t"))], 2, 5, "p", 10.0, 10.5)
    run.row = 100
    database = opened(tmp_path / "s.db")
    batch = Batch()
    batch.runs = [RunRows(run, 1, 1000.0)]
    batch.run_deliveries = [RunDeliveryRows(401, 1, 101, n_messages - 1, 2, 11, 1)]
    batch.released = [(402, 402)]
    database.write(batch)
    database.write(batch)
    stored = database.read(bytes)
    assert stored.messages[0] == MessageRow(
        101, "t", b"001", 2, False, 1010.0, 1017.5, b"\5\2\0\0\0\7", "p"
    )
    assert [row.payload for row in stored.messages] == [b"%03d" % n for n in range(1, n_messages)]
    assert stored.deliveries[0] == DeliveryRow(401, 1, 101, 2, False, None, 11, True, "")
    assert [row.is_released for row in stored.deliveries] == [1, 1] + [0] * (n_messages - 3)
    gone = Batch()
    gone.gone_messages = array("q", range(101, 100 + n_messages))
    gone.gone_deliveries = array("q", [*range(402, 400 + n_messages), 401])
    database.write(gone)
    assert database.read(bytes) == Stored()
    database.close()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_what_is_written_is_read(tmp_path: Path, *, is_flushed: bool) -> None:
    """By another process too; a batch that is written twice is there once."""
    path = str(tmp_path / "s.db")
    database = SessionDatabase(path, is_flushed=is_flushed)
    assert database.read(bytes) == Stored()
    batch = whole()
    database.write(batch)
    database.write(batch)
    database.close()
    database = SessionDatabase(path, is_flushed=is_flushed)
    stored = database.read(bytes)
    database.close()
    assert {name: getattr(stored, name) for name in ROWS} == ROWS
    assert all(isinstance(row, SessionRow) for row in stored.sessions)


def test_what_is_read_of_a_payload_is_what_stands_for_it(tmp_path: Path) -> None:
    """Its store has it from then on; one that was lost when it was written is not kept."""
    database = opened(tmp_path / "s.db")
    database.write(whole())
    stored = database.read(lambda payload: b"kept " + payload)
    database.close()
    assert [row.payload for row in stored.messages] == [b"kept \0payload", None]


def test_what_goes_is_gone(tmp_path: Path) -> None:
    """Each by its key; a session takes its subscriptions and packet identifiers along."""
    database = opened(tmp_path / "s.db")
    database.write(whole())
    gone = Batch(
        gone_sessions=[(1,)],
        gone_messages=array("q", [3]),
        gone_deliveries=array("q", [5]),
        gone_retained=[("t/1",)],
        gone_wills=[("c",)],
    )
    database.write(gone)
    stored = database.read(bytes)
    assert stored == Stored(
        sessions=ROWS["sessions"][1:],
        subscriptions=ROWS["subscriptions"][1:],
        messages=ROWS["messages"][1:],
        deliveries=ROWS["deliveries"][1:],
    )
    database.write(whole())
    database.write(Batch(gone_subscriptions=[(1, "t/#")], gone_incoming=[(1, 12)]))
    stored = database.read(bytes)
    database.close()
    assert stored.subscriptions == ROWS["subscriptions"][1:]
    assert not stored.incoming


@pytest.mark.parametrize("n_rows", [ROWS_AT_A_TIME - 1, ROWS_AT_A_TIME, 2 * ROWS_AT_A_TIME + 1])
def test_many_deliveries_come_and_go(tmp_path: Path, n_rows: int) -> None:
    """As many as go into one statement, and the rest; no other row is touched."""
    database = opened(tmp_path / "s.db")
    rows = [DeliveryRow(n, 1, 3, 1, False, None, n % 7, False, "") for n in range(1, n_rows + 1)]
    database.write(Batch(deliveries=rows))
    assert database.read(bytes).deliveries == rows
    database.write(Batch(gone_deliveries=array("q", range(2, n_rows + 1))))
    assert database.read(bytes).deliveries == rows[:1]
    database.close()


def test_a_row_put_again_replaces(tmp_path: Path) -> None:
    """As a session does that has lost its connection."""
    database = opened(tmp_path / "s.db")
    database.write(Batch(sessions=[SESSION]))
    database.write(Batch(sessions=[SESSION._replace(lost_at=None)]))
    assert database.read(bytes).sessions == [SESSION._replace(lost_at=None)]
    database.close()


def test_a_delivery_that_moves_keeps_its_message_and_options(tmp_path: Path) -> None:
    """From waiting to inflight, to its PUBREC, or to another session; twice is once."""
    database = opened(tmp_path / "s.db")
    database.write(whole())
    batch = Batch(moved_deliveries=array("q", [1, 10, 1, 5, 2, 0, 0, 6]))
    database.write(batch)
    database.write(batch)
    first, second = ROWS["deliveries"]
    assert database.read(bytes).deliveries == [
        first._replace(packet_id=10, is_released=True),
        second._replace(session=2),
    ]
    database.close()


def test_a_batch_is_written_whole_or_not(tmp_path: Path) -> None:
    """A row that SQLite does not take leaves nothing of its batch behind."""
    database = opened(tmp_path / "s.db")
    bad = Batch(sessions=[SESSION], retained=[RetainedRow("t", None)])  # type: ignore[arg-type]
    with pytest.raises(DatabaseError, match=r"s\.db"):
        database.write(bad)
    assert database.read(bytes) == Stored()
    database.write(Batch(sessions=[SESSION]))
    assert database.read(bytes).sessions == [SESSION]
    database.close()


def refused(path: Path) -> str:
    """Return why a file is refused."""
    with pytest.raises(DatabaseError) as caught:
        opened(path).read(bytes)
    return str(caught.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """With what was read and what is allowed."""
    path = tmp_path / "s.db"
    opened(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "read format 99; allowed: 1." in refused(path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """And left as it is."""
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    assert "another program's database" in refused(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Whether its header or what it holds is no database; what can be done is said."""
    path = tmp_path / "s.db"
    path.write_bytes(b"not a database" * 1000)
    assert "not a database" in refused(path)
    assert "move the file away" in refused(path)
    path = tmp_path / "t.db"
    database = opened(path)
    database.write(whole())
    database.close()
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xee" * (len(data) - 8192)
    path.write_bytes(data)
    assert "malformed" in refused(path)


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A directory that is not there, or a directory in place of the file."""
    assert "cannot be written" in refused(tmp_path / "no" / "s.db")
    (tmp_path / "d").mkdir()
    assert "unable to open" in refused(tmp_path / "d")


def test_a_batch_is_not_stored_in_a_file_that_was_deleted(tmp_path: Path) -> None:
    """It would be gone with the process: whoever waits for it is not told that it is safe."""
    path = tmp_path / "s.db"
    with closing(opened(path)) as database:
        database.write(whole())
        path.rename(tmp_path / "away")
        with pytest.raises(DatabaseError, match=r"s\.db was deleted or replaced"):
            database.write(whole())
        (tmp_path / "away").rename(path)
        database.write(whole())


ON_A_FULL_DISK = """
import resource, sys
from penstock.broker.durable.database import DatabaseError, SessionDatabase
from penstock.broker.durable.records import Batch
from penstock.broker.session_rows import RetainedRow

resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
database = SessionDatabase(sys.argv[1], is_flushed=False)
print([row.client_id for row in database.read(bytes).sessions])
try:
    database.write(Batch(retained=[RetainedRow("t/2", 3)]))
except DatabaseError as error:
    print(type(error).__name__)
database.close()
"""


def test_a_full_disk_is_no_obstacle_to_a_start(tmp_path: Path) -> None:
    """Without room for the log's index in a file, SQLite keeps the index in memory."""
    path = tmp_path / "s.db"
    with closing(opened(path)) as database:
        database.write(whole())
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["['c', 'é']", "DatabaseError"], done.stderr


def test_space_is_reserved_beside_the_file(tmp_path: Path) -> None:
    """Where a link leads to it; a reserve that would be written elsewhere is refused."""
    folder = tmp_path / "disk"
    folder.mkdir()
    (tmp_path / "s.db").symlink_to(folder / "s.db")
    with closing(opened(tmp_path / "s.db")) as database:
        assert database.room_bytes > 0
    reserve = folder / "s.db.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    reserve.unlink()
    reserve.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatabaseError, match=r"s\.db\.reserve: read a symbolic link"):
        opened(tmp_path / "s.db")
    reserve.unlink()
    opened(tmp_path / "s.db").close()


def test_where_no_space_can_be_reserved_messages_are_stored_without(tmp_path: Path) -> None:
    """As where files may not be so large, or the file system cannot do it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (RESERVE_BYTES // 2, hard))
    try:
        with closing(opened(tmp_path / "s.db")) as database:
            assert database.room_bytes > RESERVE_BYTES
            assert not (tmp_path / "s.db.reserve").exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_reserve_without_blocks_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZFS only sets the size of the file: messages must leave the disk what deleting takes."""
    monkeypatch.setattr(os, "posix_fallocate", lambda file, _, n_bytes: os.truncate(file, n_bytes))
    status = os.statvfs(tmp_path)
    some = os.statvfs_result((*status[:4], 2 * DELETE_BYTES // status.f_frsize, *status[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: some)
    with closing(opened(tmp_path / "s.db")) as database:
        assert 0 < database.room_bytes <= DELETE_BYTES // 2


def test_room_is_looked_at_after_a_commit_unless_there_is_plenty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There has to be much less, or the time to be over, before it can matter."""
    monkeypatch.setattr(database_module, "MEASURED_SECONDS", 3600.0)
    left = [4 * PLENTY_BYTES]
    monkeypatch.setattr(database_module, "_left_on_disk", lambda _: left[0])
    with closing(opened(tmp_path / "s.db")) as database:
        plenty = database.room_bytes
        left[0] = PLENTY_BYTES // 2
        database.write(Batch(number=1))
        assert database.room_bytes == plenty
        database.measure()
        assert database.room_bytes < PLENTY_BYTES
        left[0] //= 2
        before = database.room_bytes
        database.write(Batch(number=2))
        assert database.room_bytes < before


def test_room_is_looked_at_after_a_commit_that_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there was."""
    monkeypatch.setattr(database_module, "MEASURED_SECONDS", 3600.0)
    left = [4 * PLENTY_BYTES]
    monkeypatch.setattr(database_module, "_left_on_disk", lambda _: left[0])
    with closing(opened(tmp_path / "s.db")) as database:
        left[0] = PLENTY_BYTES // 2
        database._opened()[0].execute("DROP TABLE incoming")
        with pytest.raises(DatabaseError):
            database.write(Batch(number=1, incoming=[IncomingRow(1, 1)]))
        assert database.room_bytes < PLENTY_BYTES


def test_a_log_that_has_taken_the_space_of_the_reserve_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing fails that would empty it, and messages that fit into free pages were refused."""
    log = tmp_path / "s.db-wal"
    status = os.statvfs(tmp_path)

    def left(_: str) -> os.statvfs_result:
        n_bytes = RESERVE_BYTES + 100_000 - (log.stat().st_size if log.exists() else 0)
        return os.statvfs_result((*status[:4], n_bytes // status.f_frsize, *status[5:]))

    def reserve(*_: int) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    monkeypatch.setattr(os, "statvfs", left)
    with closing(opened(tmp_path / "s.db")) as database:
        n_bytes = 5_000_000
        message = MessageRow(1, "t", bytes(n_bytes), 1, False, 0.0, None, None, "p")
        database.write(Batch(messages=[message]))
        database.write(Batch(gone_messages=array("q", [1])))
        assert log.stat().st_size < n_bytes
        assert database.room_bytes > 0.8 * n_bytes


def test_a_payload_without_room_elsewhere_stays_in_the_file(tmp_path: Path) -> None:
    """It is read back in pieces, until its message is gone."""
    payload = bytes(range(256)) * 300
    database = opened(tmp_path / "s.db")
    with closing(database):
        row = MessageRow(3, "t", payload, 1, False, 1.0, None, None, "p")
        database.write(Batch(messages=[row]))

        def keep(_: bytes) -> bytes:
            raise OSError("no room")

        (found,) = database.read(keep).messages
        stays = found.payload
        assert stays is not None
        assert not isinstance(stays, bytes)
        assert database.n_staying == 1
        assert len(stays) == len(payload)
        assert stays.read() == payload
        assert stays.read_piece(0) + stays.read_piece(65_536) == payload
        database.write(Batch(gone_messages=array("q", [3])))
        with pytest.raises(OSError, match="cannot be read"):
            stays.read_piece(0)
