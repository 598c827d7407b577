from __future__ import annotations

import pytest

from penstock.plugins.queue.wire.refusals import (
    AccessError,
    BusyError,
    ConflictError,
    NoAnswerError,
    NoSpaceError,
    NotStoredError,
    OtherIncarnationError,
    QueueError,
    RangeGoneError,
    UnavailableError,
    UnknownNameError,
    error_of,
)


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (0, {}, NoAnswerError),
        (400, {}, QueueError),
        (401, {}, AccessError),
        (403, {}, AccessError),
        (404, {}, UnknownNameError),
        (409, {}, ConflictError),
        (409, {"incarnation": "u"}, OtherIncarnationError),
        (410, {"earliest": 3}, RangeGoneError),
        (429, {}, BusyError),
        (429, {"refused": {"0": "queue_full"}}, NotStoredError),
        (500, {}, UnavailableError),
        (503, {}, UnavailableError),
        (507, {}, NoSpaceError),
        (507, {"refused": {"0": "storage_full"}}, NotStoredError),
    ],
)
def test_each_refusal_is_an_error_of_its_own(
    status: int, said: dict[str, object], kind: type[QueueError]
) -> None:
    """A caller handles what it can by class."""
    assert type(error_of(status, "why", said)) is kind
