from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.models.kernels.closed_forms import UnstableError
from penstock.models.kernels.lease_setting import Setting, analytic


def test_the_analytic_network_of_one_thread_each() -> None:
    """Two M/M/1 stages, of which the second gets lambda / q (equations 3, 8 and 9)."""
    found = analytic(Setting("any", 1, 1, 0.8, 4.0, 10.0, 10.0, link_delay=0.1))
    assert found.delivery == pytest.approx(1 / 6 + 5 / 4 / 5 + 2.2 * 0.1)
    assert found.sender_utilisation == pytest.approx(0.4)
    assert found.broker_utilisation == pytest.approx(0.5)
    assert found.waiting == pytest.approx(0.4**2 / 0.6 + 0.5**2 / 0.5)


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({"sender_threads": 3}, "sender overflows: 30.3 .* 30/s"),
        ({"broker_threads": 3}, "broker overflows: 30.61 .* 30/s"),
        ({"order": "settled"}, "broker, one message at a time, overflows: .* rho is 3.06"),
        (
            {"order": "settled", "arrival_rate": 5, "visibility_timeout": 60},
            "broker, one message at a time, overflows",
        ),
    ],
)
def test_the_stage_that_overflows_is_named(changes: dict[str, Any], stage: str) -> None:
    """A strict order lets one message at a time through, and a failed one holds up all others."""
    with pytest.raises(UnstableError, match=stage):
        Setting(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"order": "fifo"}, "order: read 'fifo'; allowed: any, arrived or settled"),
        ({"sender_threads": 0}, "sender_threads: read 0; allowed: 1 or more"),
        ({"broker_threads": 0}, "broker_threads: read 0"),
        ({"reliability_ratio": 0}, "reliability_ratio: read 0; allowed: above 0, up to 1"),
        ({"reliability_ratio": 1.1}, "reliability_ratio: read 1.1"),
        ({"arrival_rate": 0}, "arrival_rate: read 0; allowed: a finite number above 0"),
        ({"sender_rate": math.nan}, "sender_rate: read nan"),
        ({"broker_rate": -1}, "broker_rate: read -1"),
        ({"visibility_timeout": 0}, "visibility_timeout: read 0"),
        ({"link_delay": -1}, "link_delay: read -1; allowed: 0 or more, finite"),
    ],
)
def test_impossible_parameters_name_themselves(changes: dict[str, Any], told: str) -> None:
    """What was read, and what is allowed."""
    with pytest.raises(ValueError, match=told):
        Setting(**changes)
