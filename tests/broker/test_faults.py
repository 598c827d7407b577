from __future__ import annotations

import logging

import pytest

from penstock.broker.faults import note_fault


def test_faults_are_counted_each_and_logged_ever_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first whole, then each time the number has doubled, by the name of what failed."""
    by_name: dict[str, int] = {}
    for _ in range(7):
        note_fault(logging.getLogger("test"), by_name, "part", ValueError("odd"), kind="extension ")
    assert by_name == {"part": 7}
    assert caplog.messages == [
        "extension part failed: ValueError('odd')",
        "extension part failed 2 times: ValueError('odd')",
        "extension part failed 4 times: ValueError('odd')",
    ]
    assert caplog.records[0].exc_info is not None


def test_what_the_system_refuses_is_logged_without_the_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A missing file descriptor is no fault of the program."""
    note_fault(logging.getLogger("test"), {}, "look", OSError(24, "Too many open files", "/x"))
    assert caplog.messages == ["look failed: [Errno 24] Too many open files: '/x'"]
    assert not caplog.records[0].exc_info
