from __future__ import annotations

import pytest

from penstock.broker.mqtt.properties import read_publish_properties
from penstock.plugins.queue.publishing.rows import StagedRow, new_row, read_rows, write_rows

ROWS = [
    new_row("a/ü", b"", 0, retain=False, properties={}),
    new_row("b", b"x" * 70_000, 1, retain=True, properties={"message_expiry_interval": 0}),
    new_row(
        "c",
        bytes(range(256)),
        2,
        retain=False,
        properties={
            "user_property": [("k", "v"), ("k", "w")],
            "correlation_data": b"\0\xff",
            "message_expiry_interval": 2**32 - 1,
        },
    ),
]


def properties_of(row: StagedRow, age_seconds: int = 0) -> dict[str, object]:
    """Return the properties of a row's PUBLISH."""
    return read_publish_properties(row.encoded_properties(age_seconds), 0)[0]


def test_rows_are_read_as_they_were_written() -> None:
    """Each part of each row, in their order."""
    assert list(read_rows(write_rows(ROWS))) == ROWS


def test_the_qos_of_a_row_stands_behind_its_own_user_properties() -> None:
    """The broker takes it from there."""
    assert properties_of(ROWS[0]) == {"user_property": [("penstock-qos", "0")]}
    assert properties_of(ROWS[2])["user_property"] == [
        ("k", "v"),
        ("k", "w"),
        ("penstock-qos", "2"),
    ]


@pytest.mark.parametrize(("age", "left"), [(0, 10), (4, 6), (9, 1)])
def test_expiry_is_counted_down_from_the_staging(age: int, left: int) -> None:
    """What is left is the Message Expiry Interval of the PUBLISH; of the last second, one is."""
    row = new_row("a", b"", 1, retain=False, properties={"message_expiry_interval": 10})
    assert not row.is_expired(age)
    assert properties_of(row, age)["message_expiry_interval"] == left
    assert row.is_expired(10)


def test_a_row_without_expiry_never_expires() -> None:
    """However old it is."""
    assert not ROWS[0].is_expired(1e9)
    assert "message_expiry_interval" not in properties_of(ROWS[0], 10**9)
