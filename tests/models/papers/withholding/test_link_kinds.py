"""Kinds of bad links."""

from __future__ import annotations

import random

import pytest

from penstock.models.kernels.link_simulation import GOOD
from penstock.models.papers.withholding.link_kinds import KINDS, lossy_rate

SECONDS = 300.0


def chance(seed: int) -> random.Random:
    """Return chance by seed."""
    return random.Random(seed)  # noqa: S311 (a simulation)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("congestion_control", ["cubic", "bbr"])
def test_changes_begin_at_0_and_are_in_order(name: str, congestion_control: str) -> None:
    """Each link ends good, and a seed gives the same link again."""
    kind = KINDS[name]
    for seed in range(5):
        changes = kind.changes(chance(seed), SECONDS, congestion_control)  # type: ignore[arg-type]
        times = [change.at for change in changes]
        assert times[0] == 0.0
        assert times == sorted(times)
        assert changes[-1].state == GOOD
        assert changes == kind.changes(chance(seed), SECONDS, congestion_control)  # type: ignore[arg-type]


def test_links_of_a_kind_differ_by_seed() -> None:
    """What a bad link is, is drawn: no constant can be fitted to it."""
    for name in ("loss", "cliff", "far", "shared"):
        bad = {KINDS[name].changes(chance(seed), SECONDS, "cubic")[1].state for seed in range(20)}
        assert len({state.rate for state in bad}) > 15, name


def test_loss_based_congestion_control_makes_little_of_losses() -> None:
    """With a fifth lost and 0.2 s, a megabyte takes minutes; with bbr, seconds."""
    assert 1_000_000 / lossy_rate(0.2, 0.2) > 60
    assert lossy_rate(0.1, 0.01) > 10 * lossy_rate(0.1, 0.2)
