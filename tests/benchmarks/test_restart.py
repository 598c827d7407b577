from __future__ import annotations

import pytest

from benchmarks import restart
from benchmarks.restart import main


def test_a_restart_is_measured_and_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed broker is back with all its sessions; the table says where the number is from."""
    monkeypatch.setattr(restart, "QUICK_SESSIONS", 120)
    assert main(["--quick", "--repeats", "1"]) == 0
    table = capsys.readouterr().out
    assert "| 120 sessions, 1,200 messages | 10 |" in table
    assert "commit: " in table
    assert "python -m benchmarks.restart --quick --repeats 1" in table
