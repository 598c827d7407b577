from __future__ import annotations

import pytest

from penstock.models.papers.fabric.setting import Fault


@pytest.mark.parametrize(
    ("fault", "standing"),
    [
        (Fault("D", 1.0), [False, True, True]),
        (Fault("D", 1.0, 2.0), [False, True, False]),
        (Fault("D", 1.0, 2.0, slowness=10), [False, False, False]),
    ],
)
def test_when_a_node_does_nothing(fault: Fault, standing: list[bool]) -> None:
    """A killed node never comes back, and a slow one goes on."""
    assert [fault.is_standing(now) for now in (0.9, 1.0, 2.0)] == standing
