from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.plugins.queue.sqs.errors import (
    BATCH_IDS_NOT_DISTINCT,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_PARAMETER_VALUE,
    MISSING_PARAMETER,
    SERIALIZATION,
    TOO_MANY_ENTRIES,
    Fault,
    SqsError,
)
from penstock.plugins.queue.sqs.parameters import (
    MAX_ENTRIES,
    entries,
    integer,
    optional_integer,
    optional_text,
    text,
    texts,
)


def fault(read: Callable[[], object]) -> Fault:
    """Return why a parameter is refused."""
    with pytest.raises(SqsError) as refused:
        read()
    return refused.value.fault


def test_a_text_must_be_there() -> None:
    """Empty is as good as missing."""
    assert text({"a": "b"}, "a") == "b"
    for parameters in ({}, {"a": ""}):
        assert fault(lambda found=parameters: text(found, "a")) == MISSING_PARAMETER  # type: ignore[misc]
    assert fault(lambda: text({"a": 1}, "a")) == SERIALIZATION


def test_an_optional_text_may_be_missing() -> None:
    """It is no number, though."""
    assert optional_text({}, "a") is None
    assert fault(lambda: optional_text({"a": ["b"]}, "a")) == SERIALIZATION


def test_a_number_is_whole_and_in_its_range() -> None:
    """The ends are in it."""
    assert [integer({"a": n}, "a", 0, 10) for n in (0, 10)] == [0, 10]
    assert optional_integer({}, "a", 0, 10) is None
    assert fault(lambda: integer({}, "a", 0, 10)) == MISSING_PARAMETER


@pytest.mark.parametrize("value", [-1, 11, "5", 1.5, True, [5], {}])
def test_other_numbers_are_named(value: Any) -> None:
    """With what is allowed."""
    with pytest.raises(SqsError, match=r"parameter a is invalid.*0 to 10") as refused:
        optional_integer({"a": value}, "a", 0, 10)
    assert refused.value.fault == INVALID_PARAMETER_VALUE


def test_lists_hold_texts() -> None:
    """None is an empty one."""
    assert texts({"a": ["b"]}, "a") == ["b"]
    assert texts({}, "a") == []
    for value in ("b", [1], {"b": 1}):
        assert fault(lambda found=value: texts({"a": found}, "a")) == SERIALIZATION  # type: ignore[misc]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], EMPTY_BATCH_REQUEST),
        ([str(n) for n in range(MAX_ENTRIES + 1)], TOO_MANY_ENTRIES),
        (["a", "b", "a"], BATCH_IDS_NOT_DISTINCT),
        (["a b"], INVALID_BATCH_ENTRY_ID),
        (["a" * 81], INVALID_BATCH_ENTRY_ID),
        ([""], MISSING_PARAMETER),
        ([1], SERIALIZATION),
    ],
)
def test_batches_that_are_not_allowed(ids: list[Any], expected: Fault) -> None:
    """Each has an error of its own."""
    assert fault(lambda: entries({"Entries": [{"Id": one} for one in ids]})) == expected


def test_a_batch_of_the_largest_size_is_allowed() -> None:
    """Ten entries with Ids of 80 characters."""
    found = [{"Id": str(n) + "a" * 79} for n in range(MAX_ENTRIES)]
    assert entries({"Entries": found}) == found


@pytest.mark.parametrize("value", ["a", {"1": {}}, ["a"]])
def test_a_batch_is_a_list_of_objects(value: Any) -> None:
    """Nothing else."""
    assert fault(lambda: entries({"Entries": value})) == SERIALIZATION
