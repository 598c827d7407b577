"""Tables of a run: what is written can be read, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.netem.errors import NetemError
from penstock.netem.figures.table_files import Format, read_table, write_table
from penstock.netem.figures.table_rows import (
    DeliveryRow,
    MemoryRow,
    MessageRow,
    Tables,
    WithheldRow,
)

MESSAGES = [
    MessageRow("adaptive", 1, "pub, 1", "small", "a/1", 0, 100, 1, 0.1, 0.1001, 0.15, 0.1002),
    MessageRow("mosquitto", 2, "pub-2", "large", "p/1", 7, 10**6, 0, 35.0, 35.1, None, None),
]


@pytest.mark.parametrize("form", Format)
def test_rows_are_read_as_they_were_written(tmp_path: Path, form: Format) -> None:
    """Names with commas, what is not known and whole numbers come back as they were."""
    path = write_table(tmp_path, MessageRow, MESSAGES, form)
    assert path == tmp_path / f"messages.{form}"
    assert read_table(tmp_path, MessageRow) == MESSAGES


@pytest.mark.parametrize("form", Format)
def test_flags_and_no_rows_at_all_are_read_as_written(tmp_path: Path, form: Format) -> None:
    """An empty table is one; a flag stays a flag."""
    delivery = DeliveryRow(
        "adaptive", 1, "sub", "pub", "small", 0, 1, is_duplicate=True, delivered_s=1.5
    )
    write_table(tmp_path, DeliveryRow, [delivery], form)
    write_table(tmp_path, MemoryRow, [], form)
    assert read_table(tmp_path, DeliveryRow) == [delivery]
    assert read_table(tmp_path, MemoryRow) == []


def test_a_missing_or_wrong_table_is_named(tmp_path: Path) -> None:
    """The error names the file, and what is not as it should be."""
    with pytest.raises(NetemError, match=r"messages\.csv"):
        read_table(tmp_path, MessageRow)
    (tmp_path / "memory.csv").write_text("broker,seed\na,1\n")
    with pytest.raises(NetemError, match=r"memory\.csv: read columns \['broker', 'seed'\]"):
        read_table(tmp_path, MemoryRow)
    (tmp_path / "messages.parquet").write_bytes(b"no parquet")
    with pytest.raises(NetemError, match=r"messages\.parquet"):
        read_table(tmp_path, MessageRow)


def test_rows_of_several_brokers_stand_together() -> None:
    """In the order in which they come."""
    rows = Tables(withheld=[WithheldRow("penstock", 1, "sub", 0, 1, 1)])
    rows.add(Tables(withheld=[WithheldRow("penstock", 2, "sub", 0, 1, 1)]))
    assert [row.seed for row in rows.withheld] == [1, 2]
