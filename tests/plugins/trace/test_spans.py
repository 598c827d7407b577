from __future__ import annotations

import pytest

from penstock.plugins.trace.spans import MOST_OPEN, Spans


def traceparent(number: int) -> str:
    """Return the context of a span, in the trace with this number."""
    return f"00-{number:032x}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(("sample", "n_chosen"), [(0, 0), (0.25, 256), (1, 1_024)])
def test_a_share_of_the_traces_is_chosen_by_their_numbers(sample: float, n_chosen: int) -> None:
    """The same by each broker; none at 0, and all at 1."""
    spans = Spans(None, sample)
    numbers = [(number << 54) + 1 for number in range(1_024)]  # spread over 64 bits
    chosen = [spans.context_of(traceparent(number)) for number in numbers]
    assert sum(context is not None for context in chosen) == n_chosen


@pytest.mark.parametrize(
    "value", ["", "01" + traceparent(1)[2:], traceparent(0), traceparent(1)[:-1] + "0", "00-1-2-01"]
)
def test_what_is_no_sampled_context_makes_no_span(value: str) -> None:
    """W3C Trace Context, 3.2.2."""
    assert Spans(None, 1.0).context_of(value) is None


def test_what_is_remembered_is_bounded() -> None:
    """However many messages wait."""
    spans = Spans(None, 1.0)
    for number in range(1, MOST_OPEN + 11):
        spans.receive(traceparent(number), "c", "t", 1)
        spans.leave("deliver", traceparent(number), 1, client_id="c")
    assert len(spans._open) == MOST_OPEN
