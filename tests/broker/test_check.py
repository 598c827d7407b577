"""``penstock check``: what a start with a policy file would find."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.broker.check import main
from tests.helpers.certificates import Authority
from tests.helpers.process import anonymous_policy, running_broker


def check(policy: dict[str, Any] | str, *options: str) -> int:
    """Write a policy file and check it; return the exit status."""
    text = policy if isinstance(policy, str) else yaml.safe_dump(policy)
    Path("policy.yaml").write_text(text)
    return main(["policy.yaml", *options])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_good_file_is_told_and_nothing_is_created(capsys: pytest.CaptureFixture[str]) -> None:
    """Plugins, TLS, addresses and databases, each by its key."""
    tls = Authority(Path()).listener_keys() | {"bind": "127.0.0.1:0"}
    there = {file.name for file in Path().iterdir()}
    policy = anonymous_policy(
        {"queue": {"path": "queue.db", "http": "127.0.0.1:0"}, "probing": None},
        persistence={"path": "sessions.db"},
    )
    policy["listeners"] |= {"tls": tls, "unix": {"bind": f"unix:{Path.cwd()}/s"}}
    assert check(policy, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["is_good"], found["problems"]) == (True, {})
    assert found["good"] == {
        "plugins.queue": "its keys and files are good",
        "plugins.probing": "its keys and files are good",
        "listeners.default.bind": "127.0.0.1:0 is free",
        "listeners.tls.certfile": "the TLS context is good",
        "listeners.tls.bind": "127.0.0.1:0 is free",
        "listeners.unix.bind": f"unix:{Path.cwd()}/s can be bound",
        "persistence.path": "sessions.db would be created",
        "plugins.queue.http": "127.0.0.1:0 is free",
        "plugins.queue.path": "queue.db would be created",
    }
    assert {file.name for file in Path().iterdir()} == there | {"policy.yaml"}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("limits: [", "line 1, column 10: read "),
        ({"limits": {"sessions": 0}}, "limits.sessions: read 0; allowed: "),
        ({"plugins": {"withholdin": None}}, "plugins.withholdin: read an unknown plugin"),
        ({"plugins": {"access": {"acl_file": "no"}}}, "plugins.access.acl_file: read no: No such"),
        ({"persistence": {"path": "no/s.db"}}, "persistence.path: "),
        ({"persistence": {"path": "policy.yaml"}}, "persistence.path: policy.yaml: file is not a"),
        ({"listeners": {"a": {"bind": "192.0.2.1:0"}}}, "listeners.a.bind: cannot bind 192.0.2.1"),
        ({"listeners": {"a": {"bind": "unix:/no/s"}}}, "listeners.a.bind: unix:/no/s: this user"),
        ({"plugins": {"queue": {"http": "192.0.2.1:80"}}}, "plugins.queue.http: read 192.0.2.1:80"),
    ],
)
def test_what_would_end_a_start_is_told_with_status_2(
    keys: dict[str, Any] | str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key, what was read and what is allowed."""
    assert check(anonymous_policy() | keys if isinstance(keys, dict) else keys) == 2
    assert f"penstock check: policy.yaml: {told}" in capsys.readouterr().err


def test_a_certificate_that_cannot_be_used_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As the start would say it."""
    keys = Authority(Path()).listener_keys() | {"bind": "127.0.0.1:0"}
    Path(keys["keyfile"]).write_text("no key")
    assert check(anonymous_policy() | {"listeners": {"tls": keys}}) == 2
    assert f"listeners.tls: keyfile {keys['keyfile']}: no private key" in capsys.readouterr().err


def test_the_file_of_a_running_broker_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the ports and the database itself; a port of another program is a problem."""
    policy = anonymous_policy(persistence={"path": "sessions.db"})
    with running_broker(policy, tmp_path, is_forked=False) as broker:
        policy["listeners"]["default"]["bind"] = f"127.0.0.1:{broker.port}"
        assert check(policy) == 0
        out = capsys.readouterr().out
        held = f"held by a running program of Penstock, process {broker.process.pid}"
        assert f"{held}, which has to end before a start" in out
        assert "persistence.path: sessions.db can be written" in out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        policy["listeners"]["default"]["bind"] = f"127.0.0.1:{taken.getsockname()[1]}"
        assert check(policy) == 2
    assert f"is in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_mosquitto_conf_is_told_what_makes_a_policy_file_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the words of a start, and with every option."""
    assert check("listener 1883\nallow_anonymous false\n") == 2
    assert "read a mosquitto.conf; allowed: a policy file; penstock import-mosquitto" in (
        capsys.readouterr().err
    )
    assert check("listener 1883\n", "--json") == 2
    assert "read a mosquitto.conf" in json.loads(capsys.readouterr().out)["problems"]["file"]
