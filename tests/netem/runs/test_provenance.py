from __future__ import annotations

from pathlib import Path

import pytest

from penstock.netem.runs import provenance
from penstock.netem.runs.provenance import commit, machine, python


def test_the_machine_and_the_commit_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package is no checkout, even within somebody else's."""
    assert "cores" in machine()
    assert "3." in python()
    assert commit()
    monkeypatch.setattr(provenance, "FOLDER", tmp_path)
    assert commit() is None
