from __future__ import annotations

from typing import Final

import pytest

from benchmarks.__main__ import ROWS, measure
from benchmarks.peers import PEERS
from benchmarks.rows import Row, Scale

TINY: Final = Scale(
    seconds=0.02,
    warm_up_messages=100,
    stalled_subscribers=3,
    large_messages=4,
    large_bytes=100_000,
)


CASES: Final = [
    pytest.param(row, peer, id=f"{row.name}-{peer}")
    for row in ROWS.values()
    for peer in (
        "penstock",
        "penstock-stock",
        "mosquitto",
        *(["ceiling"] if row.has_ceiling else []),
    )
]


@pytest.mark.parametrize(("row", "name"), CASES)
def test_each_row_measures(row: Row, name: str) -> None:
    """Each row runs to its end on a real broker and loses nothing."""
    measurement = measure(row, PEERS[name], TINY)
    # Memory may not grow at all where little is sent to a process that has some to spare.
    assert measurement.value > 0 or row.unit == "x payload"
    assert measurement.lost == 0
