from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.edge_proxy.__main__ import main


def test_a_wrong_file_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names file, key, what was read and what is allowed; there is no traceback."""
    file = tmp_path / "proxy.yaml"
    file.write_text("upstream: {address: 'b:99999'}\nlimits: {queued_messages: many}")
    assert main(["-c", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        f"penstock proxy: {file}: upstream.address: read 'b:99999'; allowed: host:port"
    )
    assert lines[1].startswith(f"{file}: limits.queued_messages: read 'many'; allowed: ")


def test_a_missing_file_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is named."""
    assert main(["-c", "nowhere.yaml"]) == 2
    assert "penstock proxy: nowhere.yaml: file: read No such file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["-c", "x", "--log-level", "loud"], ["--colour"]])
def test_wrong_arguments_end_with_status_2(arguments: list[str]) -> None:
    """What is missing, unknown or not allowed is a user's mistake."""
    assert main(arguments) == 2


def test_an_address_in_use_ends_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be bound is named."""
    file = tmp_path / "proxy.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(f"upstream: {{address: b}}\nlistener: {{bind: '127.0.0.1:{port}'}}")
        assert main(["-c", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"penstock proxy: listener default: cannot bind 127.0.0.1:{port}" in error


def test_help_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks is told the options."""
    assert main(["--help"]) == 0
    assert "--config" in capsys.readouterr().out


def test_an_edge_broker_needs_the_plugin_uplink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy file without it is one of a broker without a cloud."""
    file = tmp_path / "edge.yaml"
    file.write_text("listeners: {default: {bind: 127.0.0.1:0}}")
    assert main(["--mode", "edge", "-c", str(file)]) == 2
    assert "plugins: read no plugin uplink; allowed: uplink" in capsys.readouterr().err


def test_a_sidecar_has_no_uplink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no sessions in which anything could wait."""
    file = tmp_path / "proxy.yaml"
    file.write_text(
        "upstream: {address: b}\nlistener: {bind: '127.0.0.1:0'}\n"
        "plugins: {uplink: {site: s, uplinks: {c: {upstream: {address: b}, up: [{filter: a}]}}}}"
    )
    assert main(["-c", str(file)]) == 2
    assert (
        "plugins.uplink: read a plugin with clients in a broker's process, as of"
        in capsys.readouterr().err
    )


def test_a_mode_that_there_is_not_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that there are stand in the error."""
    assert main(["--mode", "cloud", "-c", "x"]) == 2
    assert "sidecar, edge" in capsys.readouterr().err


def test_a_proxys_file_is_checked_without_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Addresses, plugins and the files of TLS; what would end a start is told with status 2."""
    file = tmp_path / "proxy.yaml"
    text = "upstream: {address: broker}\nlistener: {bind: '127.0.0.1:0'}\nplugins: {probing: {}}\n"
    file.write_text(text)
    assert main(["--check", "-c", str(file)]) == 0
    told = capsys.readouterr().out
    assert "good: listeners.default.bind: 127.0.0.1:0 is free\n" in told
    assert "good: plugins.probing: its keys and files are good\n" in told
    for wrong, why in (
        (text.replace("probing: {}", "access: {}"), "plugins.access: read a plugin with access"),
        (text.replace("127.0.0.1:0", "192.0.2.1:0"), "listeners.default.bind: cannot bind 192."),
        (
            text.replace("broker}", f"broker, tls: {{cafile: {file}}}}}"),
            f"cafile {file}: no certificates",
        ),
    ):
        file.write_text(wrong)
        assert main(["--check", "-c", str(file)]) == 2
        assert why in capsys.readouterr().err
