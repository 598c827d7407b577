from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.conformance.plugin import ConformancePlugin

WAITING = ("tests/system/test_spark", "tests/spark_bridge/", "tests/benchmarks/", "tests/system/")
"""Tests that wait for programs, the longest first."""


# How long an example takes is the machine's affair: the suite asserts no times. Examples are the
# same in each run, which so tells of a change and not of chance; `--hypothesis-profile default`
# tries others.
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
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
