from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.config.secret_file import read_secret, warn_of_readers
from penstock.broker.errors import ConfigError


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


def test_a_secret_is_the_only_line_of_its_file(tmp_path: Path) -> None:
    """Blanks around it are none of it."""
    file = tmp_path / "secret"
    file.write_text("  sixteen letters.\n")
    assert read_secret(file) == "sixteen letters."


@pytest.mark.parametrize("text", ["", "fifteen letters", "two lines of a\ntext", "\u00e9" * 20])
def test_anything_else_is_told_without_being_repeated(text: str, tmp_path: Path) -> None:
    """By the key that names it, or by the file where a command line does."""
    file = tmp_path / "secret"
    file.write_text(text)
    allowed = "another text; allowed: 16 printable ASCII characters or more, on one line"
    with pytest.raises(ConfigError) as told:
        read_secret(file, NamedBy("policy.yaml", "plugins.x.token_file"))
    assert str(told.value) == f"policy.yaml: plugins.x.token_file: read {file}: {allowed}"
    with pytest.raises(ConfigError) as told:
        read_secret(file)
    assert str(told.value) == f"{file}: file: read {allowed}"
