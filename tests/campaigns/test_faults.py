from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import PEERS, Options, running
from penstock.broker.mqtt.topics import matches
from tests.campaigns.faults import __main__ as program
from tests.campaigns.faults import (
    bystanders,
    churn,
    clocks,
    descriptors,
    disk,
    kills,
    memory,
    silence,
    uplinks,
    users,
)
from tests.campaigns.faults.case import PENSTOCK, Effort, Fault, Finding
from tests.campaigns.faults.subject import Subject, subject
from tests.helpers.process import SECONDS

TINY = Effort(scale=0.001, seconds=0.2)

pytestmark = pytest.mark.usefixtures("forks")

LOADS = ("churn", "slow_readers", "stall_gate", "sessions_end")
"""The faults whose promises are about time; other tests show what they do to a broker."""

PATIENCE = (
    (clocks, "MOVED_SECONDS"),
    (descriptors, "AFTERWARDS_SECONDS"),
    (disk, "LOST_SECONDS"),
    (kills, "IDLE_SECONDS"),
    (silence, "WITHIN_SECONDS"),
    (uplinks, "WAIT_SECONDS"),
    (users, "WITHIN_SECONDS"),
)
"""The time limits of the faults in these tests, for a machine that may be busy."""

RATIOS = ("memory",)
"""The findings that are ratios of memory, which say nothing about a process that does little."""


@pytest.mark.parametrize("fault", [name for name in program.FAULTS if name not in LOADS + RATIOS])
def test_each_fault_can_be_done_and_keeps_its_promises(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tiny size: every finding is within its bound, for Penstock."""
    monkeypatch.setattr(program, "QUICK", TINY)
    for module, name in PATIENCE:
        monkeypatch.setattr(module, name, SECONDS)
    status = program.main(["--quick", "--faults", fault, "--brokers", "penstock"])
    shown = capsys.readouterr()
    assert status == 0, shown.out
    assert shown.out.startswith("promises broken: none\n")


def test_what_fills_the_limits_of_memory_does() -> None:
    """At a tiny size, where ratios mean nothing: each is filled, and refuses or drops the rest."""
    limit = 100_000
    limits: dict[str, Any] = {"sessions": 100}
    for filling in memory.FILLINGS:
        limits |= {key: each or limit for key, each in filling.limits.items()}
    with subject(PENSTOCK) as broker, ExitStack() as stack:
        broker.configure({"limits": limits, "sys_interval": 0})
        broker.start()
        room = memory.Room(broker, limit, TINY, stack)
        # Sessions have messages inflight before what waits is full, and parts of packets close
        # whoever sends large ones.
        first, last = memory.fill_inflight, memory.fill_parts
        others = [each.fill for each in memory.FILLINGS if each.fill not in (first, last)]
        for fill in (first, *others, last):
            fill(room)
        memory.fill_sessions(memory.Room(broker, 100, TINY, stack))
        assert "allowed: 50 sessions from an address" in broker.log
        assert f"allowed: {limit} bytes of all wills" in broker.log
        assert (
            "(limits.total_queued_messages: None, limits.total_queued_bytes: 100000)" in broker.log
        )


def test_what_is_held_against_memory_can_be_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a tiny size every finding is there, whatever it says."""
    monkeypatch.setattr(program, "QUICK", TINY)
    monkeypatch.setattr(memory, "FILLINGS", memory.FILLINGS[1:2])
    program.main(["--quick", "--faults", "memory", "--brokers", "penstock"])
    shown = capsys.readouterr()
    assert "failed:" not in shown.out, shown.out
    assert "1 KB of one topic: of the limit | at most 1.1 |" in shown.out
    assert "| a session, of `sessions` | at most 6 KB |" in shown.out


def test_a_broken_promise_is_told_with_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1, the fault and the finding in the first line; mosquitto breaks none of ours."""

    def inflict(_broker: Subject, rng: object, _effort: Effort) -> list[Finding]:
        assert rng is not None
        return [Finding("lost", 3, most=0), Finding("kept", 0.5, "MB", least=0.25)]

    monkeypatch.setitem(program.FAULTS, "made", Fault("made", "made for this test", inflict))
    file = tmp_path / "found.json"
    arguments = ["--faults", "made", "--seed", "7", "--json", str(file)]
    assert program.main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("promises broken: made: lost\n")
    assert "| made for this test | lost | at most 0 | 3.00 | 3.00 | 1 |" in shown.out
    assert "|  | kept | at least 0.25 MB | 0.50 MB | 0.50 MB | 1 |" in shown.out
    assert "made, penstock, seed 7: lost 3.00; kept 0.50 MB" in shown.err
    ours, theirs = json.loads(file.read_text())["outcomes"]
    assert [found["is_met"] for found in ours["findings"]] == [False, True]
    assert [found["is_met"] for found in theirs["findings"]] == [None, None]
    assert program.main([*arguments, "--brokers", "mosquitto"]) == 0


def test_a_fault_that_cannot_be_done_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not start is named with its last words, status 1."""

    def inflict(broker: Subject, _rng: object, _effort: Effort) -> list[Finding]:
        broker.configure({"limits": {"connections": "many"}})
        broker.start()
        return []

    monkeypatch.setitem(program.FAULTS, "made", Fault("made", "made for this test", inflict))
    assert program.main(["--faults", "made", "--brokers", "penstock"]) == 1
    told = capsys.readouterr().out
    assert (
        "failed: made, penstock, seed 1: RunError: broker penstock has ended with status 2" in told
    )
    assert "limits.connections" in told


def test_a_small_churn_is_served_whole_and_ends_at_sigterm() -> None:
    """The reader gets what vanished clients had sent; clients that go on coming hold up no end."""
    with running(PEERS["penstock"], Options(is_durable=True)) as peer:
        figures = churn.churn(peer, 20.0, 0.5)
        assert churn.stop_seconds(peer, 0.5) < churn.MOST_STOP_SECONDS
    assert figures.connects_per_second > 0
    assert figures.delivered_per_second > 0
    assert figures.idle_seconds is not None
    assert figures.idle_seconds < churn.MOST_IDLE_SECONDS


def test_the_overlapping_filters_all_match_and_are_all_different() -> None:
    """Else the case would be cheaper than it says."""
    filters = bystanders.overlapping_filters()
    topic = "/".join("a" * bystanders.OVERLAPPING_LEVELS) + "/0"
    assert len(set(filters)) == len(filters) == 8192
    assert all(matches(each, topic) for each in filters)


@pytest.mark.parametrize("case", ["long_filters", "sessions_end"])
def test_the_messages_of_a_pair_come_beside_a_case(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases that are made in the shortest time."""
    monkeypatch.setattr(bystanders, "SESSIONS", 100)
    assert not bystanders.measure("penstock", case, 0.2).lost
