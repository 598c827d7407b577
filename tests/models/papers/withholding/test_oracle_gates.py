"""Gates that know the link."""

from __future__ import annotations

import pytest

from penstock.broker.link import Link
from penstock.broker.message import Message
from penstock.models.kernels.link_simulation import Bottleneck, Change, State
from penstock.models.papers.withholding.oracle_gates import LOOK_SECONDS, LateGate, OracleGate

PICTURE = Message("pictures/1", bytes(1_000_000), is_large=True)
LINK = Link("dashboard")
QUICK, SLOW, LOSSY = State(1_000_000, 0.04), State(100_000, 0.04), State(100_000, 0.2, 0.2)


def bottleneck(state: State) -> Bottleneck:
    """Return a link that is in a state."""
    return Bottleneck([Change(0.0, state)])


def test_the_oracle_holds_what_would_take_longer_than_the_exposure() -> None:
    """A megabyte at 1 MB/s goes, at 100 kB/s it waits, and is looked at again soon."""
    link = bottleneck(SLOW)
    gate = OracleGate(link)
    verdict = gate.decide(PICTURE, LINK, 0.0, 5.0)
    assert not verdict.deliver
    assert verdict.look_again_at == 5.0 + LOOK_SECONDS
    link.state = QUICK
    assert gate.decide(PICTURE, LINK, 0.05, 5.05).deliver


@pytest.mark.parametrize(("sojourn", "delivers"), [(19.9, False), (20.1, True)])
def test_the_oracle_releases_after_max_withhold(sojourn: float, *, delivers: bool) -> None:
    """However slow the link is."""
    gate = OracleGate(bottleneck(State(0.0, 0.04)))
    assert gate.decide(PICTURE, LINK, sojourn, 30.0).deliver is delivers


def test_one_message_is_on_its_way_at_a_time() -> None:
    """The next one goes when the first is acknowledged."""
    gate = OracleGate(bottleneck(QUICK))
    gate.large_sent(LINK, 1_000_000, 0.0)
    assert not gate.decide(PICTURE, LINK, 0.0, 0.5).deliver
    gate.large_acknowledged(LINK, 1.0)
    assert gate.decide(PICTURE, LINK, 0.5, 1.0).deliver


def test_the_late_gate_learns_of_a_slow_link_by_a_slow_message() -> None:
    """Then it knows, until the link is quick again; losses show by themselves."""
    link = bottleneck(SLOW)
    gate = LateGate(link)
    assert gate.decide(PICTURE, LINK, 0.0, 0.0).deliver
    gate.large_sent(LINK, 1_000_000, 0.0)
    gate.large_acknowledged(LINK, 10.0)
    assert not gate.decide(PICTURE, LINK, 0.0, 10.0).deliver
    link.state = QUICK
    assert gate.decide(PICTURE, LINK, 1.0, 11.0).deliver
    link.state = SLOW
    assert gate.decide(PICTURE, LINK, 0.0, 12.0).deliver
    link.state = LOSSY
    assert not gate.decide(PICTURE, LINK, 0.0, 13.0).deliver
