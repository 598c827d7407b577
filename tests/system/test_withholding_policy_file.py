"""A wrong policy for withholding ends the program with one line for each mistake and status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penstock.broker.__main__ import main
from penstock.edge_proxy.__main__ import main as proxy_main

MISTAKES = [
    ("{policy: historc}", "policy: read 'historc'; allowed: 'none', 'conservative', 'probabi"),
    (
        "{listeners: {feild: {threshold_s: 5}}}",
        "listeners.feild: read an unknown listener; allowed: one of default, field (perhaps field)",
    ),
    (
        "{listeners: {field: {treshold_l: 5}}}",
        "listeners.field.treshold_l: read an unknown key; allowed: one of threshold_l, threshold_s",
    ),
]
"""What only a whole file tells, such as which listeners there are; the plugin tests each value."""


def policy_file(folder: Path, keys: str) -> Path:
    """Write a policy with two listeners and these keys of withholding."""
    path = folder / "policy.yaml"
    path.write_text(
        "listeners: {default: {bind: '127.0.0.1:0'}, field: {bind: '127.0.0.1:0'}}\n"
        f"plugins: {{withholding: {keys}}}\n"
    )
    return path


@pytest.mark.parametrize(("keys", "told"), MISTAKES)
def test_mistake_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: str, told: str
) -> None:
    """File, keys to the place, what was read, what is allowed; no traceback."""
    path = policy_file(tmp_path, keys)
    assert main(["-c", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert f"{path}: plugins.withholding.{told}" in lines[-1]
    assert not any("Traceback" in line for line in lines)


def test_proxy_refuses_the_same_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It hosts the same plugin, and has listeners by name, too."""
    for keys, told in (
        ({"policy": "historc"}, "policy: read 'historc'; allowed: "),
        ({"listeners": {"outside": {}}}, "listeners.outside: read an unknown listener; allowed: "),
    ):
        path = tmp_path / "proxy.yaml"
        config = {"upstream": {"address": "127.0.0.1:1"}, "plugins": {"withholding": keys}}
        path.write_text(yaml.safe_dump(config))
        assert proxy_main(["-c", str(path)]) == 2
        assert f"{path}: plugins.withholding.{told}" in capsys.readouterr().err
