"""``penstock init``: a first policy file."""

from __future__ import annotations

import asyncio
import re
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from penstock.broker.check import main as check
from penstock.broker.mqtt.packets import ConnAck, Connect
from penstock.broker.mqtt.reason_codes import ReasonCode
from penstock.plugins.access.first_policy import main
from penstock.plugins.console.commands.reload import main as reload
from tests.helpers.process import SECONDS, running_broker
from tests.helpers.wire import WireClient, connected


def status_of(url: str, token: str) -> int:
    """Return the status of a request with a bearer token."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 (ours)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def test_a_broker_starts_with_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check passes; the user of the file comes in by the password that was shown."""
    folder = tmp_path / "new folder"
    assert main([str(folder)]) == 0
    told = capsys.readouterr().out
    password = re.search(r"^Password  (\S{20})$", told, re.MULTILINE)
    assert password is not None
    assert f"cd '{folder}' && penstock broker -c policy.yaml" in told
    assert "Page      http://127.0.0.1:8081" in told
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes.pop("prometheus.token") == 0o640
    assert set(modes.values()) == {0o600}
    assert password[1] not in (folder / "passwords").read_text()
    policy = yaml.safe_load((folder / "policy.yaml").read_text())
    # Without TLS, passwords cross a network as they are: whoever wants that writes it.
    assert policy["listeners"] == {"default": {"bind": "127.0.0.1:1883"}}
    assert "MQTT      127.0.0.1:1883, this machine alone" in told
    policy["listeners"]["default"]["bind"] = "127.0.0.1:0"
    policy["plugins"]["console"]["http"] = "127.0.0.1:0"
    monkeypatch.chdir(folder)
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    assert await asyncio.to_thread(check, ["policy.yaml"]) == 0, capsys.readouterr()
    with running_broker(policy, folder) as broker:
        secret = password[1].encode()
        async with await connected(broker.port, username="admin", password=secret) as admin:
            assert (await admin.publish("any/topic", b"x")).reason_code < 0x80
        options = ["--url", broker.console_url, "--token-file", "operator.token"]
        assert await asyncio.to_thread(reload, options) == 0
        metrics = f"{broker.console_url}/metrics"
        assert await asyncio.to_thread(status_of, metrics, "") == 401
        token = (folder / "prometheus.token").read_text()
        assert await asyncio.to_thread(status_of, metrics, token) == 200
        async with await WireClient.dial(broker.port) as other:
            await other.send(Connect(username="admin", password=b"admin"))
            refused = await other.take(ConnAck)
            assert refused.reason_code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    "name", ["policy.yaml", "topics", "passwords", "console.tokens", "prometheus.token"]
)
def test_nothing_is_overwritten(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is there is named, and no other is written."""
    (tmp_path / name).write_text("mine")
    assert main([str(tmp_path)]) == 2
    told = f"penstock init: {tmp_path}: read {name}; allowed: a directory without them"
    assert told in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_in_a_container_the_page_is_reached_through_a_port(tmp_path: Path) -> None:
    """Loopback of a container is out of reach; nothing else differs."""
    for name, options in (("plain", []), ("published", ["--container"])):
        assert main([str(tmp_path / name), *options]) == 0
    plain, published = (
        yaml.safe_load((tmp_path / name / "policy.yaml").read_text())
        for name in ("plain", "published")
    )
    plain["listeners"]["default"]["bind"] = "0.0.0.0:1883"
    plain["plugins"]["console"] |= {"http": "0.0.0.0:8081", "without_tls": True}
    assert published == plain


def test_a_place_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file" / "below")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_without_a_directory_it_is_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next command is then one word shorter."""
    monkeypatch.chdir(tmp_path)
    assert main([]) == 0
    assert "Start     penstock broker -c policy.yaml\n" in capsys.readouterr().out
