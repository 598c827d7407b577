"""A wrong policy for withholding ends the program with one line for each mistake and status 2."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from penstock.broker.__main__ import main
from penstock.edge_proxy.__main__ import main as proxy_main
from tests.helpers.process import anonymous_policy, running_broker

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
    (
        "{probe_period: 5}",
        "probe_period: read a key that has moved; allowed: it as plugins.probing.probe_period",
    ),
    ("{max_withhold: -20}", "max_withhold: read -20; allowed: greater than 0"),
    ("{congestion_rate: 0}", "congestion_rate: read 0; allowed: greater than 0"),
    (
        "{threshold_l_by_client: {site-*: -1}}",
        "threshold_l_by_client.site-*: read -1; allowed: seconds above 0, or auto",
    ),
    (
        "{threshold_l_by_user: {ann: fast}}",
        "threshold_l_by_user.ann: read 'fast'; allowed: seconds above 0, or auto",
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
    ("{profile: sizes.txt}", "profile: read 'sizes.txt'; allowed: a table, learned, or a file "),
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


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("sizes.csv", b"10000,1\n1000000\n", "line 2: read '1000000'; allowed: payload bytes, a"),
        ("sizes.csv", b"10000,1\n\xff\n", "byte 8: read no UTF-8; allowed: text in UTF-8"),
        ("sizes.yaml", b"10000: slow\n", "10000: read 'slow'; allowed: a latency, such as 1.0"),
        ("sizes.yaml", b"- 1\n", "file: read [1]; allowed: a mapping of keys to values"),
        ("sizes.yml", b"{\n", "line 2, column 1: read while parsing a flow node, "),
        ("sizes.yml", b"", "file: read no rows; allowed: at least one row of payload bytes"),
    ],
)
def test_wrong_profile_is_told_with_file_and_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    told: str,
) -> None:
    """The profile's own file is named, and where in it the mistake is."""
    profile = tmp_path / name
    profile.write_bytes(content)
    assert main(["-c", str(policy_file(tmp_path, f"{{profile: {profile}}}"))]) == 2
    errors = capsys.readouterr().err
    assert f"{profile}: {told}" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda _: None, "No such file or directory"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "Not a regular file"),
    ],
)
def test_profile_that_cannot_be_read_is_told_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], told: str
) -> None:
    """The start ends, with the key to correct; a FIFO, which nobody writes, is not waited for."""
    profile = tmp_path / "sizes.csv"
    make(profile)
    path = policy_file(tmp_path, f"{{profile: {profile}}}")
    assert main(["-c", str(path)]) == 2
    errors = capsys.readouterr().err
    allowed = "allowed: a file that can be read"
    assert f"{path}: plugins.withholding.profile: read {profile}: {told}; {allowed}" in errors
    assert "Traceback" not in errors


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


def test_profile_is_read_again_at_sighup(tmp_path: Path) -> None:
    """A file that cannot be used is told, and the one before holds."""
    profile = tmp_path / "sizes.csv"
    profile.write_text("10000,1\n1000000,10\n")
    plugins = {"withholding": {"profile": "sizes.csv"}}
    with running_broker(anonymous_policy(plugins), tmp_path) as broker:
        profile.write_text("10000,2\n1000000,1\n")
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log("not reloaded: sizes.csv: line 2: read 1000000: 1; allowed: latencies")
        profile.write_text("10000,2\n1000000,3\n")
        broker.process.send_signal(signal.SIGHUP)
        broker.wait_for_log(" reloaded: plugins.withholding.profile sizes.csv;")
        assert broker.stop() == 0
