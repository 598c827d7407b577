from __future__ import annotations

from penstock.edge_proxy.sidecar.qos0_backlog import Qos0Backlog


def test_runs_leave_in_the_order_in_which_they_came() -> None:
    """Each as it is; the sums are those of what waits."""
    runs = Qos0Backlog()
    runs.add(b"abc", 3, 30)
    runs.add(b"d", 1, 10)
    assert (runs.n_messages, runs.n_bytes) == (4, 40)
    assert runs.take() == (b"abc", 3)
    assert (runs.n_messages, runs.n_bytes) == (1, 10)
    runs.add(b"e", 1, 5)
    assert runs.clear() == 2
    assert (runs.n_messages, runs.n_bytes) == (0, 0)
