from __future__ import annotations

import io
import sys

import pytest

from penstock.netem.progress_display import Display, clock


class Terminal(io.StringIO):
    """Text that goes to a person."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_elsewhere_than_on_a_terminal_each_stage_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On standard error, once, with the time of day."""
    with Display("small", 10.0) as display:
        display.stage("brokers start")
        display.left(9.0)
        display.stage("brokers start")
        display.stage("calm")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" ", 1)[1] for line in err.splitlines()] == ["brokers start", "calm"]


def test_a_terminal_has_a_bar_with_what_is_going_on_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes when the run ends."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Display("small", 100.0) as display:
        display.stage("traffic")
        display.left(65.0)
    assert "traffic" in terminal.getvalue()
    assert "1:05 left" in terminal.getvalue()


def test_words_that_are_too_long_leave_the_bar_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 80 columns, with many brokers: their names are cut."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Display("small", 100.0) as display:
        display.stage(f"traffic for 300 s; {'mosquitto, adaptive, ' * 10}")
        display.left(65.0)
    newest = terminal.getvalue().rpartition("1:05 left")
    assert "━" * 5 in newest[0][-80:]
    assert "traffic for 300 s; mosquitto" in newest[2]


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (-3, "0:00"), (61, "1:01")])
def test_times_are_minutes_and_seconds(seconds: float, shown: str) -> None:
    """Nobody counts 61 seconds."""
    assert clock(seconds) == shown
