from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.forks import forked_programs


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    """Let brokers and loads that a benchmark starts be forks: their starts are most of a test."""
    with forked_programs():
        yield
