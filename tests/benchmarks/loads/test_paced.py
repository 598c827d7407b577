from __future__ import annotations

import itertools
import socket
import time

import pytest

from benchmarks.loads.paced import Schedule, packet, quantile, receive_schedule
from benchmarks.loads.wire import WireError

TIMES = Schedule(clients=3, interval_seconds=0.1, seconds=1.0).times()


def test_each_client_keeps_its_step() -> None:
    """The schedule is fixed before the first message, so that a slow broker cannot stretch it."""
    assert sorted(TIMES) == TIMES
    for client in range(3):
        due = [at for at, who in TIMES if who == client]
        assert len(due) == 10
        steps = [later - earlier for earlier, later in itertools.pairwise(due)]
        assert steps == pytest.approx([0.1] * 9)


def test_lateness_counts_from_when_a_message_was_due() -> None:
    """What waits behind a broker that stood still is charged to it (coordinated omission)."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sequence, (_, client) in enumerate(TIMES):
            theirs.sendall(packet(client, sequence))
        # All come at once, five seconds after the last was due.
        start = time.monotonic() - 6.0
        latencies = receive_schedule(ours, start, TIMES)
    assert len(latencies) == len(TIMES)
    assert all(late >= 6.0 - due for late, (due, _) in zip(latencies, TIMES, strict=True))


@pytest.mark.parametrize(
    "strange",
    [packet(TIMES[0][1], 0) * 2, packet(TIMES[0][1], 10_000), packet(TIMES[0][1] + 1, 0)],
    ids=["twice", "never sent", "another topic"],
)
def test_what_was_not_sent_is_an_error(strange: bytes) -> None:
    """A duplicate or a foreign message is no result."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(strange)
        theirs.close()
        with pytest.raises(WireError, match="came twice or was never sent"):
            receive_schedule(ours, 0.0, TIMES)


def test_quantiles_are_of_the_nearest_rank() -> None:
    """A quantile is one of the values."""
    values = [float(i) for i in range(1, 1001)]
    assert [quantile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert quantile([7.0], 0.999) == 7.0
