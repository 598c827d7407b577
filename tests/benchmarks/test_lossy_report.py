from __future__ import annotations

import math

import pytest

from benchmarks.loads.lossy_load import Arrival
from benchmarks.lossy_report import Outcome, compare, cut, to_markdown, verdict
from penstock.netem.figures.estimates import LEAST_UNITS, Standing

N_SEEDS = LEAST_UNITS
"""Pieces where each seed is one."""


def outcomes_of(broker: str, small: float, large: float) -> list[Outcome]:
    """Return outcomes of as many seeds, one message of each stream with these latencies."""
    return [outcome(broker, seed, [small], [large]) for seed in range(N_SEEDS)]


def outcome(broker: str, seed: int, small: list[float], large: list[float]) -> Outcome:
    """Return an outcome with these latencies."""
    arrivals = [
        Arrival(stream, number, 1.0, 1.0 + latency)
        for stream, latencies in (("small", small), ("large", large))
        for number, latency in enumerate(latencies)
    ]
    return Outcome(broker, seed, arrivals, 0, [])


def test_ours_is_compared_with_the_best_of_the_papers_in_each_measure() -> None:
    """The best may be another policy for each measure; none and mosquitto do not count."""
    others = [
        *outcomes_of("none", 0.1, 0.1),
        *outcomes_of("conservative", 1.0, 9.0),
        *outcomes_of("historic", 3.0, 6.0),
        *outcomes_of("mosquitto", 0.1, 0.1),
    ]
    found = compare([*others, *outcomes_of("adaptive", 1.0, 6.2)])
    ratios = {each.measure: each.ratio.value for each in found if each.ratio is not None}
    assert ratios["small p50"] == pytest.approx(1.0)
    assert ratios["large mean"] == pytest.approx(6.2 / 6.0)
    assert verdict(found).startswith("Met: ")
    text = verdict(compare([*others, *outcomes_of("adaptive", 1.0, 6.6)]))
    assert text.startswith("Missed: ")
    assert "large mean 1.10 (1.10 to 1.10)" in text
    assert "small" not in text


def test_milliseconds_are_no_difference_whatever_their_ratio() -> None:
    """20 ms in place of 10 are not missed; 110 are."""
    others = [*outcomes_of("conservative", 0.01, 6.0), *outcomes_of("historic", 0.01, 6.0)]
    found = compare([*others, *outcomes_of("adaptive", 0.02, 6.0)])
    assert {each.standing for each in found} == {Standing.MET}
    assert verdict(found).endswith(" (at most 1.05, or 50 ms more).")
    text = verdict(compare([*others, *outcomes_of("adaptive", 0.11, 6.0)]))
    assert "small p50 11.00" in text


def test_seeds_are_taken_together() -> None:
    """A mean is that of all seeds' messages."""
    outcomes = [outcome("none", 1, [1.0], [1.0, 2.0]), outcome("none", 2, [1.0], [6.0])]
    assert {each.measure: each.values["none"] for each in compare(outcomes)}["large mean"] == 3.0
    assert "not both run" in verdict(compare(outcomes))


def cycle(broker: str, seed: int, large: list[float]) -> Outcome:
    """Return an outcome with a large message in each of as many bad phases, 20 s apart."""
    begins = [10.0 + 20 * number for number in range(len(large))]
    log = [(0.0, "good")]
    for begin in begins:
        log += [(begin, "lossy"), (begin + 10, "good")]
    arrivals = [
        Arrival(stream, number, begin + 1, begin + 1 + latency)
        for number, (begin, latency) in enumerate(zip(begins, large, strict=True))
        for stream in ("small", "large")
    ]
    return Outcome(broker, seed, arrivals, 0, log)


def test_a_run_is_cut_where_bad_phases_begin() -> None:
    """What is due in a bad phase and in the calm after it stays together, as does all before."""
    log = [(0.0, "good"), (10.0, "lossy"), (20.0, "good"), (30.0, "lossy"), (40.0, "good")]
    due = [1.0, 11.0, 25.0, 29.9, 30.0, 45.0]
    arrivals = [Arrival("small", number, at, at + number) for number, at in enumerate(due)]
    pieces = cut([Outcome("none", seed, arrivals, 0, log) for seed in (1, 2)])
    small = [piece["none"]["small"] for piece in pieces]
    assert small == 2 * [[0.0, 1.0, 2.0, pytest.approx(3.0)], [4.0, 5.0]]


def test_what_differs_from_phase_to_phase_may_be_chance() -> None:
    """Ours lost much in one phase of eight and nothing in the others: that shows nothing."""
    historic = cycle("historic", 1, 8 * [1.0])
    found = compare([historic, cycle("adaptive", 1, [*(7 * [1.0]), 2.0])])
    comparison = {each.measure: each for each in found}["large mean"]
    assert comparison.ratio is not None
    assert comparison.ratio.value == pytest.approx(1.125)
    assert comparison.ratio.low == pytest.approx(1.0)
    assert comparison.ratio.high > 1.25
    assert verdict(found).startswith("Not shown: ")


def test_what_is_the_same_in_each_phase_is_none() -> None:
    """Ours lost a tenth in each phase, by which phases differ however much: that is a finding."""
    latencies = [1.0, 9.0, 2.0, 30.0, 4.0, 5.0]
    worse = [1.1 * each for each in latencies]
    outcomes = [cycle("historic", 1, latencies), cycle("adaptive", 1, worse)]
    assert verdict(compare(outcomes)).startswith("Missed: ")
    last = to_markdown(outcomes, compare(outcomes))[-1]
    assert "intervals over 6 bad phases" in last
    assert last.count("1.10 (1.10 to 1.10)") == 5


def test_of_few_phases_there_is_no_interval() -> None:
    """Nothing is shown, whatever came out."""
    few = (LEAST_UNITS - 1) * [1.0]
    found = compare([cycle("historic", 1, few), cycle("adaptive", 1, few)])
    assert found[0].ratio is not None
    assert math.isnan(found[0].ratio.low)
    assert found[0].standing is Standing.NOT_SHOWN
