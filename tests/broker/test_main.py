from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from penstock.broker.__main__ import main
from penstock.broker.config.policy import load_policy
from penstock.broker.mqtt.packets import Connect
from penstock.broker.mqtt.writer import write_packet
from tests.helpers.process import anonymous_policy, running_broker


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Return a TCP port of this machine that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C and a service manager's signal end it with status 0."""
    with running_broker(anonymous_policy(), tmp_path, is_forked=False) as broker:
        assert broker.stop(number) == 0
        assert "stopping" in broker.log
        assert "Traceback" not in broker.log


def test_port_in_use_is_one_line_and_status_2(
    tmp_path: Path, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the listener and the address."""
    bind = f"127.0.0.1:{taken_port}"
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(anonymous_policy(listeners={"default": {"bind": bind}})))
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"penstock broker: listener default: cannot bind {bind}: ")
    assert "in use" in line


@pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")
def test_congestion_control_that_is_not_there_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the listener, the key, what was read, what there is, and how to get more."""
    path = tmp_path / "policy.yaml"
    keys = {"bind": "127.0.0.1:0", "congestion_control": "none-such"}
    path.write_text(yaml.safe_dump(anonymous_policy(listeners={"default": keys})))
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = "penstock broker: listener default: congestion_control: read 'none-such'; available: "
    assert line.startswith(told)
    assert line.endswith(" (modprobe tcp_none-such may add it)")


def test_each_wrong_place_of_the_file_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, keys to the place, what was read and what is allowed; status 2."""
    path = tmp_path / "policy.yaml"
    path.write_text("limits: {receive_maximum: 0}\nlisteners: {default: {bnd: 1}}\n")
    assert main(["-c", str(path)]) == 2
    told = capsys.readouterr().err
    assert f"{path}: limits.receive_maximum: read 0; allowed: " in told
    assert (
        f"{path}: listeners.default.bnd: read an unknown key; allowed: one of allowed_origins, bind"
        in told
    )
    assert "Traceback" not in told


def test_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy file that is not there is named; status 2."""
    path = tmp_path / "none.yaml"
    assert main(["-c", str(path)]) == 2
    assert f"{path}: file: read No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--config"),
        (["-c"], "-c"),
        (["-c", "x", "--log-level", "loud"], "read 'loud'; allowed: debug, info, warning, error"),
        (["--confg", "x"], "--config"),
    ],
)
def test_wrong_arguments_are_told_with_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake on the command line names what is allowed; no traceback."""
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_log_level_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PENSTOCK_LOG_LEVEL stands for the option."""
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "loud")
    assert main(["-c", "x"]) == 2
    assert "read 'loud'" in capsys.readouterr().err


def test_log_level_decides_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With debug the log says more than where it listens."""
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "debug")
    with (
        running_broker(anonymous_policy(), tmp_path) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as client,
    ):
        assert " DEBUG " in broker.log
        client.sendall(write_packet(Connect(client_id="pump"), 5))
        broker.wait_for_log("client pump: connected")


def test_a_client_that_is_refused_writes_no_line_of_its_own(tmp_path: Path) -> None:
    """Before anyone has looked at a password, a client id stands in the log."""
    policy = {"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": {"access": {}}}
    connect = write_packet(Connect(client_id="a\nINFO penstock: all is well"), 5)
    with (
        running_broker(policy, tmp_path) as broker,
        socket.create_connection(("127.0.0.1", broker.port)) as client,
    ):
        client.sendall(connect)
        broker.wait_for_log(r"client a\nINFO penstock: all is well")


def test_help_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names the options and is no mistake."""
    assert main(["--help"]) == 0
    assert "--config" in capsys.readouterr().out


def test_an_example_is_printed_that_starts_a_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who has installed a wheel has no other file to begin with."""
    assert main(["--example"]) == 0
    file = tmp_path / "policy.yaml"
    file.write_text(capsys.readouterr().out)
    assert list(load_policy(file).plugins) == ["probing", "withholding", "queue"]


def test_a_mosquitto_conf_is_told_from_a_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who moves from mosquitto tries it first; the error names what makes a policy file of it."""
    path = tmp_path / "mosquitto.conf"
    path.write_bytes(b"# f\xfcr alle\nlistener 1883\nallow_anonymous true\n")
    assert main(["-c", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"penstock broker: {path}: file: read a mosquitto.conf; allowed: a policy file; penstock "
        "import-mosquitto makes one of it"
    )
