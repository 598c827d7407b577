from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import lossy_links
from benchmarks.lossy_links import (
    CASES,
    Case,
    Outcome,
    State,
    bad_seconds,
    compare,
    main,
    quantile,
    to_markdown,
    verdict,
)
from benchmarks.lossy_load import Arrival
from netem.profiles import LOSSY
from tests.helpers.networks import NEEDS_ROOT


def outcome(broker: str, seed: int, small: list[float], large: list[float]) -> Outcome:
    """Return an outcome with these latencies."""
    arrivals = [
        Arrival(stream, number, 1.0, 1.0 + latency)
        for stream, latencies in (("small", small), ("large", large))
        for number, latency in enumerate(latencies)
    ]
    return Outcome(broker, seed, arrivals, 0, [])


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 5), (0.51, 6), (0.9, 9), (0.99, 10), (1.0, 10)]
)
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(
    share: float, value: float
) -> None:
    """Of ten values, half do not exceed the fifth and 51 % do not exceed the sixth."""
    assert quantile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == value


def test_ours_is_compared_with_the_best_of_the_papers_in_each_measure() -> None:
    """The best may be another policy for each measure; none and mosquitto do not count."""
    outcomes = [
        outcome("none", 1, [0.1], [0.1]),
        outcome("conservative", 1, [1.0], [9.0]),
        outcome("historic", 1, [3.0], [6.0]),
        outcome("adaptive", 1, [1.0], [6.3]),
        outcome("mosquitto", 1, [0.1], [0.1]),
    ]
    by_name = {each.measure: each for each in compare(outcomes)}
    assert by_name["small p50"].ratio == pytest.approx(1.0)
    assert by_name["large mean"].ratio == pytest.approx(1.05)
    assert verdict(list(by_name.values())).startswith("Met: ")
    outcomes[3] = outcome("adaptive", 1, [1.0], [6.4])
    text = verdict(compare(outcomes))
    assert text.startswith("Missed: ")
    assert "large mean 1.07" in text
    assert "small" not in text


def test_milliseconds_are_no_difference_whatever_their_ratio() -> None:
    """20 ms in place of 10 are told and are not missed; 200 in place of 100 are."""
    others = [outcome(name, 1, [0.01], [6.0]) for name in ("conservative", "historic")]
    text = verdict(compare([*others, outcome("adaptive", 1, [0.02], [6.0])]))
    assert text == (
        "Met: adaptive over the best of the paper's three is 1.00 at most, but for small p50,"
        " small p90, small p99: by less than 50 ms."
    )
    assert "small p50 11.00" in verdict(compare([*others, outcome("adaptive", 1, [0.11], [6.0])]))


def test_seeds_are_taken_together() -> None:
    """A mean is that of all seeds' messages."""
    outcomes = [outcome("none", 1, [1.0], [1.0, 2.0]), outcome("none", 2, [1.0], [6.0])]
    assert {each.measure: each.values["none"] for each in compare(outcomes)}["large mean"] == 3.0
    assert "not both run" in verdict(compare(outcomes))


def test_the_table_shows_how_far_single_seeds_are_apart() -> None:
    """Ours is twice as good on one seed and half as good on the other: that is no finding."""
    outcomes = [
        outcome(broker, seed, [1.0], [large])
        for broker, seed, large in (
            ("historic", 1, 2.0),
            ("adaptive", 1, 1.0),
            ("historic", 2, 1.0),
            ("adaptive", 2, 2.0),
        )
    ]
    comparisons = [each for each in compare(outcomes) if each.measure == "large mean"]
    assert comparisons[0].ratio == 1.0
    assert "0.50 to 2.00" in to_markdown(outcomes, compare(outcomes)).splitlines()[-1]


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
    monkeypatch.setitem(CASES, Case.LOSSY, State("often", LOSSY, 1.0))
    file = tmp_path / "outcomes.json"
    words = ["--seeds", "1", "--seconds", "10", "--brokers", "adaptive,historic,mosquitto"]
    assert main([*words, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(("Met: ", "Missed: "))
    for broker in ("adaptive", "historic", "mosquitto"):
        assert f"\n| {broker} | " in shown
    runs = json.loads(file.read_text())["runs"]
    assert [run["broker"] for run in runs] == ["adaptive", "historic", "mosquitto"]
    for run in runs:
        assert run["lost"] == 0
        streams = [arrival["stream"] for arrival in run["arrivals"]]
        assert (streams.count("small"), streams.count("large")) == (20, 2)
        assert {name for _, name in run["link_log"]} == {"good", "lossy"}
        assert run["packets"]["downstream"]["lost"] > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--brokers", "historic,best"], "no broker 'best'; allowed: none, conservative"),
        (["--link", "some"], "downstream"),
        (["--seeds", "0"], "seeds"),
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
