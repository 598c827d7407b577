"""Clients that come, publish and vanish, against a broker that is started for it."""

from __future__ import annotations

import pytest

from benchmarks import churn
from benchmarks.peers import PEERS, running


def test_a_small_load_is_served_whole() -> None:
    """The reader gets all that vanished clients had sent, and the broker is idle soon."""
    with running(churn.persistent(PEERS["penstock"])) as peer:
        figures = churn.churn(peer, 20.0, 0.5)
    assert figures.connects_per_second > 0
    assert figures.delivered_per_second > 0
    assert figures.resident_bytes > 0
    assert figures.idle_seconds is not None
    assert figures.idle_seconds < churn.MOST_IDLE_SECONDS


def test_a_broker_that_is_told_to_stop_ends_amid_the_load() -> None:
    """SIGTERM is not put off by clients that go on coming."""
    with running(churn.persistent(PEERS["penstock"])) as peer:
        assert churn.stop_seconds(peer, 0.5) < churn.MOST_STOP_SECONDS


def test_the_table_has_a_line_for_each_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rates that are asked for, twice the best of them, and as much as the clients can."""
    asked: list[float | None] = []

    def measured(_peer: object, rate: float | None, _seconds: float, **_: bool) -> churn.Figures:
        asked.append(rate)
        return churn.Figures(1.0, -(rate or 0.0) + 100.0, 3.0, 0.1, 0.2, 1_000_000)

    monkeypatch.setattr(churn, "churn", measured)
    monkeypatch.setattr(churn, "stop_seconds", lambda *_: 0.5)
    churn.measure("mosquitto", [10.0, 20.0], 1.0)
    assert asked == [10.0, 20.0, 20.0, None]
    assert capsys.readouterr().out.count("| mosquitto") == 4


def test_a_broker_that_there_is_not_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """By its name, with those that there are."""
    assert churn.main(["--peers", "nobody"]) == 2
    assert "no peer 'nobody'; allowed: penstock" in capsys.readouterr().err
