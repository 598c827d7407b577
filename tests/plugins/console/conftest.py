from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.browser import Browser, chromium


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """Return a window that knows no site; at the end the page has complained of nothing."""
    window.become()
    window.problems()
    yield window
    assert not window.problems()
