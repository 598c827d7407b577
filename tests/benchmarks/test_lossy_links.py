from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import pytest

from benchmarks import lossy_links
from benchmarks.lossy_links import CASES, Case, State, bad_seconds, main
from penstock.netem.links.profiles import LOSSY
from tests.helpers.networks import NEEDS_ROOT


def test_the_time_in_which_a_link_was_bad_is_that_between_its_changes() -> None:
    """From each change to another than good until the next change."""
    log = [(0.0, "good"), (5.0, "lossy"), (7.0, "good"), (8.0, "lossy"), (8.5, "good")]
    assert bad_seconds(log) == 2.5


@NEEDS_ROOT
def test_brokers_are_compared_on_real_links(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each broker has its links and its row; every message arrives and is in the file."""
    monkeypatch.setattr(lossy_links, "MEAN_SECONDS", 1.0)
    monkeypatch.setattr(lossy_links, "CALM_SECONDS", 2.0)
    monkeypatch.setattr(lossy_links, "LONGER_SECONDS", 1.0)
    monkeypatch.setitem(CASES, Case.LOSSY, State("often", LOSSY, 1.0))
    file = tmp_path / "outcomes.json"
    brokers = ["historic", "adaptive", "mosquitto"]
    words = ["--seeds", "2", "--at-once", "3", "--seconds", "10", "--brokers", ",".join(brokers)]
    assert main([*words, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("Met: ", "Not shown: ", "Missed: "))
    for broker in brokers:
        assert f"\n| {broker} | " in shown
    runs = json.loads(file.read_text())["runs"]
    assert [(run["seed"], run["broker"]) for run in runs] == list(product((1, 2), brokers))
    for run in runs:
        assert run["lost"] == 0
        streams = [arrival["stream"] for arrival in run["arrivals"]]
        assert (streams.count("small"), streams.count("large")) == (22, 2)
        assert {name for _, name in run["link_log"]} == {"good", "lossy"}
        assert run["packets"]["downstream"]["lost"] > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--brokers", "historic,best"], "no broker 'best'; allowed: none, conservative"),
        (["--link", "some"], "downstream"),
        (["--seeds", "0"], "seeds"),
        (["--at-once", "0"], "at-once"),
    ],
)
def test_a_wrong_argument_is_told_with_what_is_allowed(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake on the command line ends with status 2 before anything starts."""
    assert main(words) == 2
    assert named in capsys.readouterr().err


def test_without_root_it_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told what is missing, without a traceback."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert main(["--quick"]) == 2
    assert "need root" in capsys.readouterr().err


@NEEDS_ROOT
def test_a_broker_that_does_not_start_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1 and the broker's last words; the network is taken down."""
    monkeypatch.setattr(lossy_links, "_mosquitto", lambda _directory: ["sh", "-c", "echo no; exit"])
    assert main(["--quick", "--brokers", "mosquitto"]) == 1
    assert "mosquitto: the broker has failed: no" in capsys.readouterr().err
