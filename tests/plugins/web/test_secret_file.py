from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.config.checked_yaml import NamedBy
from penstock.broker.errors import ConfigError
from penstock.plugins.web.secret_file import read_secret


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
