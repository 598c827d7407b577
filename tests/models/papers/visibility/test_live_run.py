"""A real gateway's leases: laws that hold however slow a machine is."""

from __future__ import annotations

import pytest

from penstock.models.kernels.lease_setting import LeaseSetting
from penstock.models.papers.visibility import live_run
from penstock.models.papers.visibility.live_run import QueueRun, QueueRuns, run, run_setting
from penstock.netem.errors import RunError

RUNS = QueueRuns(2, 1.0)


@pytest.fixture(scope="module")
def timed() -> list[QueueRun]:
    """Queues out of order, whose failed deliveries are visible when a timeout is over."""
    return run_setting(LeaseSetting("any", 3, 3, 0.7, 20.0, 20.0, 20.0, 0.5), RUNS, 3)


@pytest.fixture(scope="module")
def keyed() -> list[QueueRun]:
    """Queues in the order of one key, whose failed deliveries are visible at once."""
    return run_setting(LeaseSetting("settled", 3, 3, 0.7, 8.0, 50.0, 50.0), RUNS, 3)


def test_every_message_is_delivered(timed: list[QueueRun], keyed: list[QueueRun]) -> None:
    """And some more than once, as deliveries fail."""
    for each in (*timed, *keyed):
        found = each.figures()
        assert found.messages == len(each.draws.created)
        assert {number for number, _, _ in each.received} == set(range(found.messages))
        assert found.deliveries == len(each.received) >= found.messages
        assert 0 < found.delivery_seconds < float("inf")
        assert found.waited_seconds >= 0


def test_no_message_is_received_again_within_its_timeout(timed: list[QueueRun]) -> None:
    """Its lease began when it was asked for, at the earliest."""
    for each in timed:
        last: dict[int, float] = {}
        for number, asked_at, at in each.received:
            if number in last:
                assert at >= last[number] + 0.5
            last[number] = asked_at
        assert len(each.received) > len(last)


def test_messages_of_a_key_come_in_their_order(keyed: list[QueueRun]) -> None:
    """A later one not before the earlier one is settled, also when that failed."""
    for each in keyed:
        numbers = [number for number, _, _ in each.received]
        assert list(dict.fromkeys(numbers)) == each.stored
        places = [each.stored.index(number) for number in numbers]
        assert places == sorted(places)


def test_a_queue_that_does_not_answer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's failure is told."""

    def refuse(*_: object) -> None:
        raise OSError("no way")

    monkeypatch.setattr(QueueRun, "_store", refuse)
    with pytest.raises(RunError, match="queue-0: OSError: no way"):
        run_setting(LeaseSetting("any", 1, 1, 1.0, 20.0, 50.0, 50.0), QueueRuns(1, 0.5), 0)


def test_every_setting_has_its_rows(monkeypatch: pytest.MonkeyPatch, timed: list[QueueRun]) -> None:
    """Model and run of the same number of queues."""
    monkeypatch.setattr(live_run, "run_setting", lambda *_: timed)
    rows = run(RUNS, 0, lambda _: None)
    assert len(rows) == 3 * len(live_run.SETTINGS)
    assert rows[0].what == "out of order, failures known at once: delivery time, s"
    assert all(len(each.units) == len(timed) for each in rows)
