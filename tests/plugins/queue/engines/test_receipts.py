from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.queue.engines.receipts import N_NONCES, Receipts, Receive, Received

RECEIPTS = Receipts(b"secret", "incarnation", 1)
SHORT = st.integers(0, 65_535)
NONCE = st.integers(0, N_NONCES - 1)


@given(st.builds(Receive, SHORT, SHORT, NONCE, SHORT), st.integers(0, 2**47), st.integers(1, 300))
def test_handles_name_their_receive(receive: Receive, first: int, n: int) -> None:
    """And have only characters that need no quoting in a URL."""
    offsets = range(first, first + n)
    handles = RECEIPTS.handles(receive, offsets)
    assert len(set(handles)) == n
    assert all(len(one) == 35 for one in handles)
    assert "".join(handles).replace("-", "").replace("_", "").isalnum()
    assert RECEIPTS.read(handles) == ([Received(receive, list(range(n)), list(offsets))], [])


def test_handles_can_be_read_again_and_by_another_program() -> None:
    """Whether or not those that were made are still known."""
    receipts = Receipts(b"secret", "incarnation", 1)
    for number in range(2):
        receive = Receive(number, 1, 2, 0)
        handles = receipts.handles(receive, range(20_000))
        expected: object = ([Received(receive, list(range(20_000)), list(range(20_000)))], [])
        for reader in (receipts, receipts, RECEIPTS):
            assert reader.read(handles) == expected


def test_a_handle_does_not_depend_on_what_is_received_with_its_message() -> None:
    """Nor on the offset at which that begins."""
    receive = Receive(3, 1, 2, 0)
    together = RECEIPTS.handles(receive, range(10, 40))
    singly = [RECEIPTS.handles(receive, range(at, at + 1))[0] for at in range(10, 40)]
    assert together == singly


@given(st.integers(0, 34), st.sampled_from("Aa0-_"))
def test_a_changed_handle_is_none(index: int, character: str) -> None:
    """Every character counts."""
    (handle,) = RECEIPTS.handles(Receive(3, 1, 2, 0), range(99, 100))
    changed = handle[:index] + character + handle[index + 1 :]
    assert (RECEIPTS.read([changed])[1] == []) == (changed == handle)


def test_handles_of_a_receive_make_no_others() -> None:
    """No part of one goes with a part of another, though they were received together."""
    handles = RECEIPTS.handles(Receive(3, 1, 2, 0), range(8, 24))
    for cut in (22, 23):
        mixed = [one[:cut] + other[cut:] for one, other in product(handles, repeat=2)]
        received, _ = RECEIPTS.read(mixed)
        assert {mixed[index] for one in received for index in one.indexes} == set(handles)


def test_handles_of_several_receives_are_told_apart() -> None:
    """In any order, one of them twice, with others among them."""
    one, other = Receive(0, 1, 2, 0), Receive(1, 7, 3, 0)
    first = RECEIPTS.handles(one, range(10, 30))
    second = RECEIPTS.handles(other, range(20, 22))
    mixed = [second[1], first[0], "x", first[19], first[0], second[1][:34]]
    assert RECEIPTS.read(mixed) == (
        [Received(other, [0], [21]), Received(one, [1, 3, 4], [10, 29, 10])],
        [2, 5],
    )


@pytest.mark.parametrize("text", ["", "x", "é" * 35, "=" * 35, "A" * 35, "a" * 36, "a" * 33 + "=="])
def test_other_texts_are_none(text: str) -> None:
    """Texts of any length and alphabet are refused."""
    assert RECEIPTS.read([text]) == ([], [0])


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
    assert RECEIPTS.read(other.handles(Receive(0, 1, 2, 0), range(3, 4))) == ([], [0])
