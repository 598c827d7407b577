"""What has become of staged rows; counters only go up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

UNPUBLISHED_REASONS: Final[Mapping[str, str]] = {
    "expired": "the row's expiry has passed before it could be published",
    "refused": "the broker refuses the row, such as by access control that has changed since",
    "no_room": "the broker has refused the row for max_age_seconds for want of room or of the disk",
}
"""Every reason for which a row of a committed batch is not published, and its meaning."""

REFUSED_REASONS: Final[Mapping[str, str]] = {
    "row": "a row cannot be published",
    "stage_full": "max_rows or max_bytes would be exceeded",
    "disk": "the stage cannot be written",
    "no_stage": "a stage is not there, or not as the request says",
}
"""Every reason for which a request is refused, and its meaning."""


@dataclass(eq=False, slots=True)
class PublishingCounts:
    """Counts of staged publishing, all from 0.

    Attributes:
        staged_rows: rows that were staged, repeated chunks included.
        refused: uploads and commits that were refused, by reason.
        published_batches: batches that are finished.
        repeated_batches: commits of batches that had been committed before.
        published_rows: rows that the broker has acknowledged.
        without_subscriber: of these, rows that no subscription and no queue matched.
        unpublished_rows: rows of committed batches that are not published, by reason.
        given_up_stages: stages that their writer deleted, or did not name in its commit.
        expired_stages: stages that were deleted as nobody committed them.
    """

    staged_rows: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    published_batches: int = 0
    repeated_batches: int = 0
    published_rows: int = 0
    without_subscriber: int = 0
    unpublished_rows: dict[str, int] = field(default_factory=dict)
    given_up_stages: int = 0
    expired_stages: int = 0
