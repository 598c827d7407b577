from __future__ import annotations

import os

import pytest

from penstock.netem.links import namespaces


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let names begin as no other process's do, which would remove what a test leaves behind."""
    prefix = f"penstock.{os.getpid()}-"
    monkeypatch.setattr(namespaces, "NAME_PREFIX", prefix)
    return prefix
