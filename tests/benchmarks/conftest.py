from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _forks(forks: None) -> None:
    """Start brokers and loads of all benchmarks as forks."""
