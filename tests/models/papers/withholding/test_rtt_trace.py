from __future__ import annotations

import random
from statistics import mean

import pytest

from penstock.models.papers.withholding.rtt_trace import TraceParameters, generate_trace, read_trace

N_SECONDS = 5_000


def seeded(seed: int) -> random.Random:
    """Return the source of chance for one trace."""
    return random.Random(seed)  # noqa: S311 (a simulation has no secrets)


def test_trace_has_bursts_of_one_height() -> None:
    """A burst adds one amount for 10 to 25 s (paper 002, simulation 1)."""
    parameters = TraceParameters(calm_rtt=(0.2, 0.2))
    trace = generate_trace(seeded(1), N_SECONDS, parameters)
    runs: list[tuple[float, int]] = []
    for rtt in trace:
        if runs and runs[-1][0] == rtt:
            runs[-1] = (rtt, runs[-1][1] + 1)
        else:
            runs.append((rtt, 1))
    bursts = [(rtt - 0.2, length) for rtt, length in runs[:-1] if rtt > 0.2]
    assert len(bursts) > 100
    assert {length for _, length in bursts} == set(range(10, 26))
    assert mean(added for added, _ in bursts) == pytest.approx(1 / 0.3, rel=0.2)


def test_calm_rtt_is_uniform_between_its_bounds() -> None:
    """Without bursts the RTT stays between 0.15 and 0.45 s and fills that range."""
    trace = generate_trace(seeded(1), N_SECONDS, TraceParameters(burst_probability=0.0))
    assert 0.15 <= min(trace) < 0.16
    assert 0.44 < max(trace) <= 0.45
    assert mean(trace) == pytest.approx(0.3, abs=0.01)


def test_trace_is_that_of_its_seed() -> None:
    """A seed names one trace, so that policies can be compared on it."""
    first, again, other = (generate_trace(seeded(seed), 100) for seed in (1, 1, 2))
    assert first == again != other


def test_file_gives_each_second_the_row_before_it() -> None:
    """Rows hold until the next; times begin anywhere, a heading and empty lines are skipped."""
    lines = ["seconds,rtt", "100.5,0.2", "", "102,0.3", "102.2,0.4", "103.5,0.5"]
    # At 100.5 and 101.5 it is 0.2, at 102.5 already 0.4, at 103.5 it is 0.5.
    assert read_trace(lines) == [0.2, 0.2, 0.4, 0.5]


def test_file_with_one_row_is_one_second() -> None:
    """The least trace there is."""
    assert read_trace(["7,0.25"]) == [0.25]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "read no rows; allowed: at least one"),
        (["seconds,rtt"], "read no rows"),
        (["0,0.1", "1,fast"], "line 2: read '1,fast'; allowed: seconds,RTT in seconds"),
        (["0,0.1", "1"], "line 2: read '1'"),
        (["0,0.1", "1,0.1,7"], "line 2: read '1,0.1,7'"),
        (["0,0.1", "1,inf"], "line 2: read '1,inf'"),
        (["0,-0.1"], "line 1: read RTT -0.1; allowed: 0 or above"),
        (["5,0.1", "5,0.1"], "line 2: read time 5; allowed: above 5"),
        (["0,0.1", "1e9,0.1"], "read more than 1000000 seconds"),
    ],
)
def test_wrong_file_names_line_value_and_what_is_allowed(lines: list[str], told: str) -> None:
    """A user's mistake is found in the file, not in the result."""
    with pytest.raises(ValueError, match=told):
        read_trace(lines)
