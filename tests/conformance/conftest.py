from __future__ import annotations

import pytest

from tests.conformance.clients import OnDisk


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Show each statement twice: on a broker in memory, and on one that keeps sessions."""
    if hasattr(metafunc.module, "VirtualBroker"):
        metafunc.fixturenames.append("storage")
        metafunc.parametrize("storage", ["memory", "disk"], indirect=True)


@pytest.fixture
def storage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's brokers keep durable sessions on a disk, or not."""
    if request.param == "disk":
        monkeypatch.setattr(request.module, "VirtualBroker", OnDisk)
