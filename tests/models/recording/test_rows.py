from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from penstock.models.recording.rows import (
    FILES,
    FigureRow,
    FullError,
    MessageRow,
    RttRow,
    SubscriptionRow,
    Writer,
    read_rows,
)

RTT = RttRow(12.5, "dev, 7", True, 0.25, 0, None, 100, 1.5, 9_000, False, 0.125)
MESSAGE = MessageRow(0.001, 'a/"b"\n', 3, None)
SUBSCRIPTION = SubscriptionRow(3.0, "dev", None)
FIGURE = FigureRow(1.25, "uptime", "12")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Names of clients and topics may have any character."""
    folder = tmp_path / "new" / "recording"
    writer = Writer(folder, 10_000)
    for row in (RTT, MESSAGE, SUBSCRIPTION, FIGURE, FIGURE):
        writer.take(row)
    assert writer.n_bytes == sum((folder / name).stat().st_size for name in FILES.values())
    writer.close()
    assert read_rows(folder, RttRow) == [RTT]
    assert read_rows(folder, MessageRow) == [MESSAGE]
    assert read_rows(folder, SubscriptionRow) == [SUBSCRIPTION]
    assert read_rows(folder, FigureRow) == [FIGURE, FIGURE]


def test_files_are_never_larger_than_allowed(tmp_path: Path) -> None:
    """The row that has no room is not written in part."""
    writer = Writer(tmp_path, 500)
    with pytest.raises(FullError):
        deque(map(writer.take, [MESSAGE] * 100), 0)
    writer.close()
    assert 450 < sum((tmp_path / name).stat().st_size for name in FILES.values()) <= 500
    assert set(read_rows(tmp_path, MessageRow)) == {MESSAGE}


def test_a_recording_is_not_written_over(tmp_path: Path) -> None:
    """It may have taken days."""
    Writer(tmp_path, 500).close()
    with pytest.raises(FileExistsError, match="is not empty"):
        Writer(tmp_path, 500)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"messages.csv: read columns \[\]; allowed: \['seconds', 'topic'"),
        ("a,b\n", r"messages.csv: read columns \['a', 'b'\]"),
        ("{}\n1,t,3\n", "messages.csv, line 2: read 3 cells; allowed: 4"),
        ("{}\n1,t,x,\n", "messages.csv, line 2: read 'x'; allowed: a number"),
        ("{}\nnan,t,3,\n", "messages.csv, line 2: read 'nan'; allowed: a number of 0 or above"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    """A recording may have been edited."""
    (tmp_path / FILES[MessageRow]).write_text(text.format(",".join(MessageRow._fields)))
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path, MessageRow)
