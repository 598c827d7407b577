from __future__ import annotations

import os

import pytest

from benchmarks.tunnel import main
from tests.helpers.networks import NEEDS_ROOT


@NEEDS_ROOT
def test_rate_and_lateness_are_measured_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Both targets stand in the first line; a row for each measurement and each delay follows."""
    assert main(["--repeats", "1", "--seconds", "0.2", "--datagrams", "3"]) == 0
    shown = capsys.readouterr().out
    assert "MB/s unimpaired (at least 50)" in shown.splitlines()[0]
    assert "ms late at light load (at most 1)" in shown.splitlines()[0]
    for delay in ("0", "5", "20", "100"):
        assert f"\n| {delay} | " in shown
    assert "python -m benchmarks.tunnel --repeats 1 --seconds 0.2 --datagrams 3" in shown


def test_without_root_it_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told what is missing, without a traceback."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["--repeats", "1"]) == 2
    assert capsys.readouterr().err == "tunnel: network namespaces need root; run it with sudo\n"
