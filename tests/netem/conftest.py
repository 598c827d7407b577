from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.netem.links import namespaces
from tests.helpers.forks import forked_programs


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let names begin as no other process's do, which would remove what a test leaves behind."""
    prefix = f"penstock.{os.getpid()}-"
    monkeypatch.setattr(namespaces, "NAME_PREFIX", prefix)
    return prefix


@pytest.fixture(scope="module")
def forks() -> Iterator[None]:
    """Let brokers, clients and links be forks: their starts are most of a test."""
    with forked_programs():
        yield
