from __future__ import annotations

import pytest

from benchmarks.loads.lossy_load import Arrival
from benchmarks.lossy_report import (
    FEW_PIECES,
    Outcome,
    compare,
    cut,
    quantile,
    to_markdown,
    verdict,
)


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
    outcomes = [historic, cycle("adaptive", 1, [*(7 * [1.0]), 2.0])]
    comparison = {each.measure: each for each in compare(outcomes)}["large mean"]
    assert comparison.ratio == pytest.approx(1.125)
    assert comparison.interval == pytest.approx((1.0, 1.25), abs=0.13)
    text = verdict(compare(outcomes))
    assert text.startswith("Not shown: ")
    assert "large mean 1.12 (may be chance)" in text


def test_what_is_the_same_in_each_phase_is_none() -> None:
    """Ours lost a tenth in each phase, by which phases differ however much: that is a finding."""
    latencies = [1.0, 9.0, 2.0, 30.0, 4.0, 5.0]
    worse = [1.1 * each for each in latencies]
    outcomes = [cycle("historic", 1, latencies), cycle("adaptive", 1, worse)]
    comparison = {each.measure: each for each in compare(outcomes)}["large mean"]
    assert comparison.interval == pytest.approx((1.1, 1.1))
    assert verdict(compare(outcomes)).startswith("Missed: ")
    last = to_markdown(outcomes, compare(outcomes))[-1]
    assert last.count("1.10 to 1.10") == 5


def test_of_few_phases_there_is_no_interval() -> None:
    """One phase is like itself however often it is drawn."""
    few = (FEW_PIECES - 1) * [1.0]
    outcomes = [cycle("historic", 1, few), cycle("adaptive", 1, few)]
    assert compare(outcomes)[0].interval is None
    assert "| ? |" in to_markdown(outcomes, compare(outcomes))[-1]
