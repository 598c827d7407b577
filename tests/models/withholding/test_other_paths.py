from __future__ import annotations

import random

import pytest

from penstock.models.withholding.other_paths import OTHER_PATHS, Path, PathResult, run_paths

N_SECONDS = 400


def seeded(seed: int = 1) -> random.Random:
    """Return the source of chance for one trace."""
    return random.Random(seed)  # noqa: S311 (a simulation has no secrets)


def runs_above(trace: list[float], rtt: float) -> list[int]:
    """Return the lengths of the runs above an RTT."""
    lengths = [0]
    for value in trace:
        if value > rtt:
            lengths[-1] += 1
        elif lengths[-1]:
            lengths.append(0)
    return [length for length in lengths if length]


def test_periodic_path_is_periodic() -> None:
    """8 s of congestion, 22 s of calm."""
    path = Path(length=lambda _: 8, amount=lambda _: 5.0, calm_seconds=22)
    trace = path.generate(seeded(), N_SECONDS)
    assert runs_above(trace, 1.0) == [8] * 13
    assert [value > 1.0 for value in trace[22:60]] == [True] * 8 + [False] * 22 + [True] * 8


def test_fresh_amounts_differ_within_a_burst() -> None:
    """The other reading of the paper's generator."""
    path = OTHER_PATHS["permanent, amounts drawn each second"]
    trace = path.generate(seeded(), N_SECONDS)
    assert max(trace) - min(trace) > 3
    constant = OTHER_PATHS["permanent congestion"].generate(seeded(), N_SECONDS)
    assert max(constant) - min(constant) <= 0.3


def test_calm_rtt_drifts() -> None:
    """Up to three times the paper's, and back."""
    path = Path(burst_probability=0.0, drift=1.0)
    trace = path.generate(seeded(), 1500)
    assert max(trace[:10]) < 1.0
    assert 1.2 < max(trace) <= 1.35


def test_no_congestion_is_the_calm_rtt_alone() -> None:
    """Nothing is added."""
    assert max(OTHER_PATHS["no congestion"].generate(seeded(), N_SECONDS)) <= 0.45


def test_overlapping_bursts_add_up() -> None:
    """A burst begins while another goes on, and the path has both amounts."""
    path = Path(amount=lambda _: 5.0, length=lambda _: 8, overlaps=True)
    trace = path.generate(seeded(), N_SECONDS)
    assert max(trace) > 10
    alone = Path(amount=lambda _: 5.0, length=lambda _: 8).generate(seeded(), N_SECONDS)
    assert 5 < max(alone) < 6


@pytest.mark.parametrize("answers", ["period", "arrival"])
def test_adaptive_is_held_against_the_paper(answers: str) -> None:
    """Every kind of path is run, on the same traces for all; without congestion all are equal."""
    results = run_paths(
        lambda: [seeded(1), seeded(2)], 200, [1], "arrival" if answers == "arrival" else "period"
    )
    assert [result.path for result in results] == list(OTHER_PATHS)
    calm = next(result for result in results if result.path == "no congestion")
    assert calm.ratio("historic").value == pytest.approx(1.0, abs=0.02)
    for result in results:
        assert result.best_of_the_paper() in ("conservative", "probabilistic", "historic")
        assert len(result.means["adaptive"]) == 2


@pytest.mark.parametrize(
    ("latencies", "standing"),
    [
        ([1.0, 2.0], "met"),
        ([1.04, 2.08], "met"),
        ([1.1, 2.2], "missed"),
        ([0.9, 2.2], "not shown"),
    ],
)
def test_target_is_about_the_interval(latencies: list[float], standing: str) -> None:
    """At most 1.05 of historic on the same traces."""
    result = PathResult("p", 1, {"historic": [1.0, 2.0] * 3, "adaptive": latencies * 3})
    assert result.standing() == standing
