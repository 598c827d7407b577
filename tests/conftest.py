from __future__ import annotations

import pytest
from hypothesis import settings

from tests.conformance.plugin import ConformancePlugin

WAITING = ("tests/system/test_spark", "tests/spark_bridge/", "tests/benchmarks/", "tests/system/")
"""Tests that wait for programs, the longest first."""


# How long an example takes is the machine's affair: the suite asserts no times.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Keep docs/conformance.md."""
    config.pluginmanager.register(ConformancePlugin(), "conformance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that wait for programs: a long one at the end would run alone."""

    def place(item: pytest.Item) -> int:
        begins = [n for n, path in enumerate(WAITING) if item.nodeid.startswith(path)]
        return min(begins, default=len(WAITING))

    items.sort(key=place)
