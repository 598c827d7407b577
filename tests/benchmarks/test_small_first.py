from __future__ import annotations

import pytest

from benchmarks import small_first
from benchmarks.small_first import BROKERS, Outcome, main, plan, quantile, to_markdown, verdict


def test_messages_are_due_in_order_and_fill_four_fifths_of_the_link() -> None:
    """More would wait for ever, less would hardly wait."""
    messages = list(plan(40.0))
    assert messages == sorted(messages, key=lambda message: message[0])
    sizes = [size for _, _, size in messages]
    assert sizes.count(small_first.SMALL_BYTES) == 400
    assert 0.75 < sum(sizes) / 40.0 / (small_first.SLOW.downstream.rate or 0) < 0.85


def test_verdict_and_table_tell_what_came() -> None:
    """The first line says what the table shows; what did not come is lost."""
    outcomes = [
        Outcome(broker.name, [0.1 * n, 0.2 * n], [1.0, 3.0], lost=n)
        for n, broker in enumerate(BROKERS)
    ]
    assert "take 0.60 s" in verdict(outcomes)
    assert "mosquitto 0.00 s" in verdict(outcomes)
    table = to_markdown(outcomes)
    assert table[5].split("|")[1:] == [
        f" {cell} " for cell in ("penstock", "0.30", "0.60", "0.60", "2.00", "3")
    ] + [""]
    assert quantile([], 0.5) != quantile([], 0.5)


def test_mistake_in_the_arguments_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Too short a run would have nothing to tell."""
    assert main(["--seconds", "1"]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_all_messages_come_over_the_slow_link() -> None:
    """A look at Penstock alone, at the least size, so that the program cannot rot."""
    (outcome,) = small_first.run_side_by_side(BROKERS[3:4], 4.0)
    assert not outcome.lost
    assert len(outcome.large_seconds) == small_first.LARGE_AT_ONCE
