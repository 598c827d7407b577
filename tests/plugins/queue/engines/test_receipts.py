from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.engines.receipts import Receipts, Receive

RECEIPTS = Receipts(b"secret", "incarnation", 1)
SHORT = st.integers(0, 65_535)


@given(SHORT, SHORT, SHORT, SHORT, st.integers(0, 2**63 - 1))
def test_a_handle_names_its_receive(n: int, count: int, nonce: int, epoch: int, at: int) -> None:
    """And has only characters that need no quoting in a URL."""
    handle = RECEIPTS.handle(n, count, nonce, epoch, at)
    assert len(handle) == 32
    assert handle.replace("-", "").replace("_", "").isalnum()
    assert RECEIPTS.read(handle) == Receive(n, count, nonce, epoch, at)


@given(st.integers(0, 31), st.sampled_from("Aa0-_"))
def test_a_changed_handle_is_none(index: int, character: str) -> None:
    """Every character counts."""
    handle = RECEIPTS.handle(3, 1, 2, 0, 99)
    changed = handle[:index] + character + handle[index + 1 :]
    assert (RECEIPTS.read(changed) is not None) == (changed == handle)


@pytest.mark.parametrize("text", ["", "x", "é" * 32, "=" * 32, "A" * 32, "A" * 33, "A" * 30 + "=="])
def test_other_texts_are_none(text: str) -> None:
    """Of any length and alphabet."""
    assert RECEIPTS.read(text) is None


@pytest.mark.parametrize(
    "other",
    [
        Receipts(b"other", "incarnation", 1),
        Receipts(b"secret", "other", 1),
        Receipts(b"secret", "incarnation", 2),
    ],
)
def test_handles_of_another_storage_queue_or_group_are_none(other: Receipts) -> None:
    """A handle of one means nothing in the other."""
    assert RECEIPTS.read(other.handle(0, 1, 2, 0, 3)) is None
