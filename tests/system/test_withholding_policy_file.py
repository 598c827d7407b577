"""A wrong policy for withholding ends the program with one line for each mistake and status 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from penstock.broker.__main__ import main
from penstock.edge_proxy.__main__ import main as proxy_main

MISTAKES = [
    ("{policy: historc}", "policy: read 'historc'; allowed: 'none', 'conservative', 'probabi"),
    ("{policy: 3}", "policy: read 3; allowed: 'none', 'conservative', 'probabilistic', 'histori"),
    (
        "{threshold_s: -1}",
        "threshold_s: read -1; allowed: a whole number of bytes, or a text with a unit",
    ),
    (
        "{threshold_s: 10 KX}",
        "threshold_s: read '10 KX'; allowed: a whole number of bytes, or a text",
    ),
    ("{threshold_l: -0.5}", "threshold_l: read -0.5; allowed: seconds above 0, or auto"),
    ("{threshold_l: soon}", "threshold_l: read 'soon'; allowed: seconds above 0, or auto"),
    ("{max_withhold: -20}", "max_withhold: read -20; allowed: greater than 0"),
    ("{congestion_rate: 0}", "congestion_rate: read 0; allowed: greater than 0"),
    (
        "{threshold_l_by_client: {site-*: -1}}",
        "threshold_l_by_client.site-*: read -1; allowed: seconds above 0, or auto",
    ),
    (
        "{exposure: 0}",
        "exposure: read 0; allowed: seconds above 0 for which a small message may wait behind a",
    ),
    (
        "{threshold_s_by_topic: {cam/#/raw: 5}}",
        "threshold_s_by_topic: read {'cam/#/raw': 5}; allowed: valid topic filters as keys (",
    ),
    (
        "{threshold_s_by_topic: {cam/+: -5}}",
        "threshold_s_by_topic.cam/+: read -5; allowed: a whole number of bytes, or a text",
    ),
    (
        "{listeners: {feild: {threshold_s: 5}}}",
        "listeners.feild: read an unknown listener; allowed: one of default, field (perhaps field)",
    ),
    (
        "{listeners: {field: {threshold_s: -5}}}",
        "listeners.field.threshold_s: read -5; allowed: a whole number of bytes, or a text",
    ),
    (
        "{listeners: {field: {treshold_l: 5}}}",
        "listeners.field.treshold_l: read an unknown key; allowed: one of threshold_l, threshold_s",
    ),
    ("{profile: {10: 2, 20: 1}}", "profile: read {'10': 2, '20': 1}; allowed: latencies that ne"),
    ("{profile: 5}", "profile: read 5; allowed: a mapping"),
    ("{profile: sizes.csv}", "profile: read 'sizes.csv'; allowed: a mapping"),
    ("{treshold_s: 5}", "treshold_s: read an unknown key; allowed: one of congestion_rate, "),
]


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
        (
            {"listeners": {"outside": {}}},
            "listeners.outside: read an unknown listener; allowed: ",
        ),
    ):
        path = tmp_path / "proxy.yaml"
        config = {"upstream": {"address": "127.0.0.1:1"}, "plugins": {"withholding": keys}}
        path.write_text(yaml.safe_dump(config))
        assert proxy_main(["-c", str(path)]) == 2
        assert f"{path}: plugins.withholding.{told}" in capsys.readouterr().err
