from __future__ import annotations

import ast
import importlib
import re
import time
from pathlib import Path

import pytest

from penstock import __main__ as command_line
from penstock.broker.config.policy import parse_policy, validate_config
from penstock.broker.errors import ConfigError
from penstock.broker.plugin_loader import load_plugins
from penstock.plugins.withholding.config import WithholdingConfig

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the lines that call the program `penstock`."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"\S*penstock ", line)]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_policy_shown_is_one_that_loads(text: str) -> None:
    """A policy that is copied from the README starts a broker."""
    load_plugins(parse_policy(text, "README.md"), clock=time.monotonic)


@pytest.mark.parametrize("text", blocks("python"))
def test_what_python_shown_imports_is_there(text: str) -> None:
    """Code that is copied from the README finds what it names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("line", commands())
def test_every_command_shown_has_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A program and each option that the README names are there."""
    _, program, *arguments = line.partition("#")[0].split()
    assert command_line.main([program, "--help"]) == 0
    shown = capsys.readouterr().out
    missing = [word for word in arguments if word.startswith("-") and word not in shown]
    assert not missing


def test_mistake_shown_is_what_is_said() -> None:
    """A mistake in a policy file is told as the README tells it."""
    shown = README.partition("$ penstock broker -c policy.yaml\npenstock broker: ")[2]
    keys = {"threshold_s": "ten", "polcy": "historic"}
    with pytest.raises(ConfigError) as caught:
        validate_config(WithholdingConfig, keys, "policy.yaml", "plugins.withholding")
    assert shown.partition("\n```")[0] == str(caught.value)


def test_every_file_linked_is_there() -> None:
    """No link to a file of the repository is dead."""
    links = re.findall(r"\]\(([^):#]+)(?:#[^)]*)?\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
