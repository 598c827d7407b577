from __future__ import annotations

import pytest

from benchmarks import sampling
from benchmarks.loads import wire
from benchmarks.sampling import main


def test_what_sampling_costs_is_measured_and_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it and at either period; the table says where the numbers are from."""
    monkeypatch.setattr(sampling, "QUICK_SUBSCRIBERS", 20)
    monkeypatch.setattr(sampling, "QUICK_SECONDS", 0.3)
    monkeypatch.setattr(sampling, "MESSAGE_SECONDS", 0.1)
    monkeypatch.setattr(sampling, "PERIODS", (0.2, 0.1))
    assert main(["--quick", "--repeats", "1"]) == 0
    table = capsys.readouterr().out
    assert "| 20 subscribers, a message every 0.1 s each | target, of a core |" in table
    assert "| sampling, T_Q 0.2 s | 5% |" in table
    assert "| sampling, T_Q 0.1 s |  |" in table
    assert "machine: " in table
    assert "python -m benchmarks.sampling --quick --repeats 1" in table


def test_too_few_open_files_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the machine is told, not a trace of the program."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(wire, "open_clients", refuse)
    assert main(["--quick", "--repeats", "1"]) == 1
    assert "Too many open files; each of two processes needs as many" in capsys.readouterr().err
