"""The plugin in a policy file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import yaml

from penstock.broker.check import main
from tests.helpers.process import anonymous_policy


def checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], section: object) -> str:
    """Return what ``penstock check`` says of a section; "" where it is good."""
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(anonymous_policy(cluster=section)))
    status = main([str(file)])
    told = capsys.readouterr()
    assert status in (0, 2)
    return told.err if status else ""


def test_a_file_is_checked_without_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host name is the node's, if it can be a name."""
    section = {"name": "c", "redis": {"server": "127.0.0.1:1"}}
    assert not checked(tmp_path, capsys, section)
    for name in ("", "a b", "a/b", "{a}", "x" * 300):
        told = checked(tmp_path, capsys, {"name": "c", "node": name})
        assert " cluster.node: read" in told
    assert " cluster.name: " in checked(tmp_path, capsys, {})
    monkeypatch.setattr(socket, "gethostname", lambda: "two words")
    told = checked(tmp_path, capsys, section)
    assert " cluster.node: read none, and the host name 'two words'" in told
    assert not checked(tmp_path, capsys, section | {"node": "a"})


def test_files_of_the_engine_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the servers and of the sentinels; a start would take them for servers that are away."""
    missing, text = tmp_path / "missing", tmp_path / "text"
    text.write_text("no certificate")
    for keys, told in (
        ({"password_file": str(missing)}, "cluster.redis: read [Errno 2] No such file or direc"),
        ({"tls": {"ca": str(missing)}}, f"cluster.redis: read cafile {missing}: No such file"),
        ({"tls": {"ca": str(text)}}, f"cluster.redis: read cafile {text}: no certificates in PEM"),
    ):
        servers = {"servers": ["127.0.0.1:1"], "master": "m"}
        sentinel = {"name": "c", "redis": {"sentinel": servers | keys}}
        assert told in checked(tmp_path, capsys, {"name": "c", "redis": keys})
        assert told.replace("redis", "redis.sentinel") in checked(tmp_path, capsys, sentinel)
