from __future__ import annotations

import pytest

from tests.conformance.plugin import ConformancePlugin


def pytest_configure(config: pytest.Config) -> None:
    """Keep docs/conformance.md."""
    config.pluginmanager.register(ConformancePlugin(), "conformance")
