"""The hooks of a commit are checks of script/test, so that what they pass, CI passes."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_hooks_are_checks_of_the_suite() -> None:
    """With the same options."""
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = {hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]}
    assert commands == {
        "ruff format --check --quiet .",
        "ruff check --quiet .",
        "mypy --no-error-summary",
    }
    suite = (ROOT / "script" / "test").read_text()
    assert [command for command in commands if command not in suite] == []
