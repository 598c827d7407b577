from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.withholding.tcp_rate import seconds_per_byte


@pytest.mark.parametrize(
    ("rtt", "rttvar", "loss_ratio", "bytes_per_second"),
    [
        # 0.1 * sqrt(0.006666667) is 0.008165; t_RTO is 0.3 and the rest 3 * sqrt(0.00375) * 0.01 *
        # 1.0032 is 0.001843, together 0.000553: 1448 / 0.008718.
        (0.1, 0.025, 0.01, 166_096),
        # 0.2 * 0.365148 is 0.073030; 0.4 * 3 * 0.273861 * 0.2 * 2.28 is 0.149857.
        (0.2, 0.05, 0.2, 6_496.5),
        # The same where the RTT varies by 0.2 s: t_RTO is 1 s and the rest 0.374642.
        (0.2, 0.2, 0.2, 3_234.6),
    ],
)
def test_rate_is_that_of_the_throughput_equation(
    rtt: float, rttvar: float, loss_ratio: float, bytes_per_second: float
) -> None:
    """By hand, from RFC 5348, 3.1, with Linux's least t_RTO."""
    assert 1 / seconds_per_byte(rtt, rttvar, loss_ratio) == pytest.approx(
        bytes_per_second, rel=1e-3
    )


@given(st.floats(0.001, 10), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_more_loss_is_never_faster(rtt: float, rttvar: float, one: float, other: float) -> None:
    """And none limits nothing."""
    less, more = sorted((one, other))
    assert seconds_per_byte(rtt, rttvar, less) <= seconds_per_byte(rtt, rttvar, more)
    assert seconds_per_byte(rtt, rttvar, 0.0) == 0.0
