from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker.config.secret_file import warn_of_readers


def test_a_file_that_every_account_can_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its folders let everybody in, too; what cannot be looked at is its reader's to tell."""
    tmp_path = tmp_path.resolve()
    caplog.set_level(logging.WARNING)
    file = tmp_path / "passwords"
    file.touch(0o644)
    file.chmod(0o644)
    folders = [each for each in tmp_path.parents if not each.stat().st_mode & 0o001]
    modes = [each.stat().st_mode for each in folders]
    tmp_path.chmod(0o755)
    try:
        for each in folders:
            each.chmod(0o711)
        warn_of_readers("plugins.access.password_file", file)
        told = f"plugins.access.password_file {file}: every account of this machine can read it; "
        assert caplog.messages == [f"{told}chmod o-r {file}"]
        caplog.clear()
        file.chmod(0o640)
        warn_of_readers("plugins.access.password_file", file)
        file.chmod(0o644)
        tmp_path.chmod(0o750)
        warn_of_readers("plugins.access.password_file", file)
        warn_of_readers("plugins.access.password_file", tmp_path / "none")
        assert caplog.messages == []
    finally:
        for each, mode in zip(folders, modes, strict=True):
            each.chmod(mode)
