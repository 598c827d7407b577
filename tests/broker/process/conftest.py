from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _tests_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the collection at the start of a collector leave out what was frozen before the test.

    These are the tests of the whole suite, and a search through them takes half a second.
    """
    unfreeze = gc.unfreeze
    monkeypatch.setattr(gc, "unfreeze", lambda: monkeypatch.setattr(gc, "unfreeze", unfreeze))
