from __future__ import annotations

import os

import pytest

from benchmarks.tunnel import main
from tests.helpers.networks import NEEDS_ROOT


@NEEDS_ROOT
def test_rate_and_lateness_are_measured_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Both targets stand in the first line; a row for each measurement and each delay follows."""
    few = ["--links", "4", "--used", "3", "--each", "50000"]
    assert main(["--repeats", "1", "--seconds", "0.2", "--datagrams", "3", *few]) == 0
    shown = capsys.readouterr().out
    assert "MB/s unimpaired (at least 50)" in shown.splitlines()[0]
    assert "ms late at light load (at most 1)" in shown.splitlines()[0]
    for delay in ("0", "5", "20", "100"):
        assert f"\n| {delay} | " in shown
    assert "\n| 4 links, 3 of them at 50 kB/s | |\n" in shown
    assert "python -m benchmarks.tunnel --repeats 1 --seconds 0.2 --datagrams 3" in shown


def test_a_link_without_load_is_left_for_datagrams(capsys: pytest.CaptureFixture[str]) -> None:
    """As many connections as links are a mistake."""
    assert main(["--links", "4", "--used", "4"]) == 2
    assert "read 4; allowed: fewer than the 4 links" in capsys.readouterr().err


def test_without_root_it_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told what is missing, without a traceback."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["--repeats", "1"]) == 2
    assert capsys.readouterr().err == "tunnel: network namespaces need root; run it with sudo\n"
